"""The business key of a call: which one it is, who has it, and what a second call is told.

The effect of a call with a key happens at most once over all executions. The store keeps this, in the transaction of
the intent; what is looked up here beforehand only spares people a question about what would be refused anyway.
"""

import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite

from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.common.canonical import canonical_json, digest
from planwarden.agent.common.errors import DuplicateEffect
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Reference
from planwarden.agent.core.binding.pointers import LeadsNowhere, ParsedTexts, follow
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.ports.budgets_and_keys import name_holder
from planwarden.agent.ports.policy import OnceRule

KEY_CHARS = 32
"""Of the digest: 128 bits."""
SHOWN_CHARS = 200
"""Of a value of a key; the digest covers all of it."""


class OnceNeeded(Exception):
    """Not an error: who has these keys must be looked up first."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(f"{len(keys)} key(s)")
        self.wanted = keys


class MissingKey(Exception):
    """Not an error: the arguments have nothing at this pointer."""


def build_once_key(rule: OnceRule, tool_name: str, arguments: Mapping[str, JsonValue]) -> ev.OnceKey:
    """Return the key of a call. Numbers are equal by value, and never equal text.

    Raises:
        MissingKey: an argument is missing or null.
    """
    values = {pointer: _read_value(pointer, arguments) for pointer in rule.pointers}
    short_values = {pointer: _shorten(value) for pointer, value in values.items()}
    return ev.OnceKey(key=digest_key(tool_name, values), values=short_values, keep_s=rule.keep_s)


def digest_key(tool_name: str, values: Mapping[str, JsonValue]) -> str:
    """Return what names the key: the same for equal values at the same pointers, in whatever order."""
    parts: list[JsonValue] = [tool_name, {pointer: _normalize(value) for pointer, value in values.items()}]
    return digest(parts, context="once/v1")[:KEY_CHARS]


def _read_value(pointer: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
    try:
        value = follow(dict(arguments), Reference(step_id="", pointer=pointer), ParsedTexts())
    except LeadsNowhere:
        value = None
    if value is None:
        raise MissingKey(pointer)
    return value


def _normalize(value: JsonValue) -> JsonValue:
    """1.0 as 1, wherever it is."""
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if isinstance(value, dict):
        return {name: _normalize(item) for name, item in value.items()}
    return value


def _shorten(value: JsonValue) -> JsonValue:
    text = canonical_json(value)
    return value if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def explain_missing_key(rule: OnceRule, tool_name: str, arguments: Mapping[str, JsonValue]) -> str | None:
    """Return why nobody can know whether the call was made before, in a sentence; None when its key is there."""
    try:
        build_once_key(rule, tool_name, arguments)
    except MissingKey as missing:
        return (
            f"{tool_name} happens once per {' and '.join(rule.pointers)}, and this call has nothing at "
            f"{missing.args[0]}: nobody can know whether it was made before."
        )
    return None


def find_key(context: ApprovalContext, tool_name: str, arguments: Mapping[str, JsonValue]) -> ev.OnceKey | None:
    """Return the key that the call needs; None when its tool has none, or its arguments do not have all of it."""
    rule = context.policy.find_once(tool_name)
    with suppress(MissingKey):
        return None if rule is None else build_once_key(rule, tool_name, arguments)


def look_up(context: ApprovalContext, keys: Iterable[ev.OnceKey | None]) -> None:
    """Raise `OnceNeeded` for those whose holder is not known yet."""
    unknown = frozenset(once.key for once in keys if once is not None and once.key not in context.once)
    if unknown:
        raise OnceNeeded(unknown)


def find_duplicate(
    context: ApprovalContext, execution: ExecutionState, call: Call, once: ev.OnceKey | None
) -> str | None:
    """Return why the call must not happen because another one has its key, in sentences; None when it may.

    Raises:
        OnceNeeded: as long as nobody has looked.
    """
    if once is None:
        return None
    look_up(context, (once,))
    first = context.once[once.key]
    if first is None or first.holder == name_holder(execution, call):
        return None
    return describe_duplicate(execution.principal, call.tool_name, once, first)


def describe_duplicate(principal: str, tool_name: str, once: ev.OnceKey, first: DuplicateEffect) -> str:
    """Return what the model and people are told, and what a person can do who means it. Another principal's call is not
    named: who made it and when is that principal's business."""
    values = ", ".join(f"{_trim(pointer)} = {canonical_json(value)}" for pointer, value in once.values.items())
    pairs = (shlex.quote(f"{_trim(pointer)}={canonical_json(value)}") for pointer, value in once.values.items())
    command = " ".join(("planwarden once forget", shlex.quote(tool_name), *(f"--key {pair}" for pair in pairs)))
    who = once_more = ""
    if first.principal == principal:
        who = (
            f": call {first.call_id!r} of execution {first.execution_id!r}, started by {principal!r}, at "
            f"{_write_time(first.taken_at)}"
        )
        once_more = f" until {_write_time(first.ends_at)}"
    return (
        f"{tool_name} was called for {values} before{who}. It happens once{once_more}, so nothing was called. A person "
        f"who means a second one runs `{command}` at a terminal, then retries"
    )


def _trim(pointer: str) -> str:
    return pointer.removeprefix("/")


def _write_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
