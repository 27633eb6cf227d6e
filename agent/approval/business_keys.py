"""The business key of a call: how it is built, which call holds it, and what planwarden says about a second call.

While a call holds a key, no other call with that key runs, in any execution. The store enforces this in the transaction
that records the intent. The keys are looked up earlier only so that nobody is asked about a call that will be refused.
"""

import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.common.canonical import canonical_json, digest, normalize_numbers
from planwarden.agent.common.errors import Needed
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Reference
from planwarden.agent.core.binding.pointers import LeadsNowhere, ParsedTexts, follow
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.ports.budgets_and_keys import HeldKey
from planwarden.agent.ports.policy import OnceRule

KEY_CHARS = 32
"""The number of hexadecimal digits of a digest that name a key; they hold 128 bits."""
SHOWN_CHARS = 200
"""The most characters shown of a value in a key; the digest covers the whole value."""


class OnceNeeded(Needed):
    """The holders of these keys must be looked up first."""

    keys: frozenset[str]


class MissingKey(Exception):
    """Not an error: the arguments have nothing at this pointer."""


def build_once_key(rule: OnceRule, tool_name: str, arguments: Mapping[str, JsonValue]) -> ev.OnceKey:
    """Return the key of a call. It is the same for 1 and 1.0, and different for the text "1".

    Raises:
        MissingKey: an argument is missing or null.
    """
    values = {pointer: _read_value(pointer, arguments) for pointer in rule.pointers}
    short_values = {pointer: _shorten(value) for pointer, value in values.items()}
    return ev.OnceKey(key=digest_key(tool_name, values), values=short_values, keep_s=rule.keep_s)


def digest_key(tool_name: str, values: Mapping[str, JsonValue]) -> str:
    """Return the digest that names the key; the order of the pointers does not matter."""
    return digest(normalize_numbers([tool_name, dict(values)]), context="once/v1")[:KEY_CHARS]


def _read_value(pointer: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
    with suppress(LeadsNowhere):
        if (value := follow(dict(arguments), Reference(step_id="", pointer=pointer), ParsedTexts())) is not None:
            return value
    raise MissingKey(pointer)


def _shorten(value: JsonValue) -> JsonValue:
    text = canonical_json(value)
    return value if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def explain_missing_key(rule: OnceRule, tool_name: str, arguments: Mapping[str, JsonValue]) -> str | None:
    """Return a sentence that says which part of the key is missing; None if the arguments have the whole key."""
    try:
        build_once_key(rule, tool_name, arguments)
    except MissingKey as missing:
        return (
            f"{tool_name} happens once per {' and '.join(rule.pointers)}, and this call has nothing at "
            f"{missing.args[0]}: nobody can know whether it was made before."
        )
    return None


def find_key(context: ApprovalContext, tool_name: str, arguments: Mapping[str, JsonValue]) -> ev.OnceKey | None:
    """Return the key that the call needs; None if its tool has no rule, or the arguments lack a part of the key."""
    rule = context.policy.find_once(tool_name)
    with suppress(MissingKey):
        return None if rule is None else build_once_key(rule, tool_name, arguments)


def check_looked_up(context: ApprovalContext, keys: Iterable[ev.OnceKey | None]) -> None:
    """Raise `OnceNeeded` for the keys whose holder has not been looked up."""
    unknown = {key.key for key in keys if key is not None and key.key not in context.holders}
    if unknown:
        raise OnceNeeded(unknown)


def explain_duplicate(
    context: ApprovalContext, execution: ExecutionState, call: Call, once_key: ev.OnceKey | None
) -> str | None:
    """Return why the call must not happen, as a text, if another call holds its key; None if it may happen.

    Raises:
        OnceNeeded: the holder of the key has not been looked up.
    """
    if once_key is None:
        return None
    check_looked_up(context, (once_key,))
    first = context.holders[once_key.key]
    if first is None or first.holder == execution.idempotency_key(call):
        return None
    return _describe_duplicate(execution.principal, call.tool_name, once_key, first)


def _describe_duplicate(principal: str, tool_name: str, once_key: ev.OnceKey, first: HeldKey) -> str:
    """Return the refusal that the model and people read. It names the first call only to that call's principal."""
    values = ", ".join(f"{_trim(pointer)} = {canonical_json(value)}" for pointer, value in once_key.values.items())
    texts = {pointer: canonical_json(value) for pointer, value in once_key.values.items()}
    is_cut = any(len(text) > SHOWN_CHARS for text in texts.values())
    pairs = (shlex.quote(f"{_trim(pointer)}={'VALUE' if is_cut else text}") for pointer, text in texts.items())
    command = " ".join(("planwarden once forget", shlex.quote(tool_name), *(f"--key {pair}" for pair in pairs)))
    how = ", with the whole values as JSON," if is_cut else ""
    who = until = ""
    if first.principal == principal:
        execution_id, _, call_id = first.holder.partition(":")
        who = (
            f": call {call_id!r} of execution {execution_id!r}, started by {principal!r}, at "
            f"{_write_time(first.taken_at)}"
        )
        until = f" until {_write_time(first.ends_at)}"
    return (
        f"{tool_name} was called for {values} before{who}. It happens once{until}, so nothing was called. A person "
        f"who wants a second call runs `{command}`{how} at a terminal, then retries"
    )


def _trim(pointer: str) -> str:
    return pointer.removeprefix("/")


def _write_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
