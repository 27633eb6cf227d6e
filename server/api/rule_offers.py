"""Writes a rule that would have allowed calls which a person approved again and again, as text to copy. Planwarden
never adds the rule.

Only the newest executions of one principal are searched, for approvals of one tool that came from people or from
programs that embed planwarden, so the work is bounded however many executions there are. A rule is offered only if it
can bound every difference between the calls: numbers in a range, a few distinct texts, addresses on one host, paths in
one folder. The rule must match each of these calls, and must not match a call that has any other argument.
"""

import json
import os.path
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import cast

import msgspec

from planwarden.agent.approval.grants import MAKERS
from planwarden.agent.approval.path_and_host_rules import find_host
from planwarden.agent.common.canonical import exceeds, is_same_json
from planwarden.agent.common.errors import InvalidArguments, LogUnreadable, UnknownThread
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Lookups
from planwarden.agent.runtime.log_reader import find_execution
from planwarden.server.settings.rules import build_rule_book

MIN_APPROVALS = 10
"""The fewest approvals for which a rule is offered."""
MAX_APPROVALS = 50
"""At most this many approvals, from the newest executions, are examined; the rule has to match all of them."""
MAX_EXECUTIONS = 60
"""At most this many executions that use the tool are examined, the newest first."""
MAX_EVENTS = 300
"""Logs with more events than this are skipped."""
MAX_VALUES = 5
"""A rule lists at most this many distinct values."""
MAX_PLACES = 12
MAX_DEPTH = 3
MAX_CHARS = 200
"""The longest text that a rule contains, in characters."""
DAY_S = 86_400.0
_ABSENT = object()
ArgumentPath = tuple[str, ...]
"""The names that lead to a value of the arguments."""
Approval = tuple[float, Mapping[str, JsonValue]]
"""When a call was approved, and its arguments."""


class RuleOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that nobody has written yet."""

    count: int
    """The number of approvals that the rule would have made needless."""
    text: str
    """The rule as text for planwarden.toml."""


async def find_offer(
    store: Lookups, execution: ExecutionState, suspension: SuspensionState, definition: ToolDefinition | None
) -> RuleOffer | None:
    """Return the rule that this approved call and others of its tool suggest; None if they suggest none.

    Raises:
        StoreError: the store cannot be read.
    """
    question = suspension.question
    if definition is None or not _is_eligible(suspension, definition) or question.rule is not None:
        return None
    approvals = await _list_approvals(store, execution.principal, definition)
    if len(approvals) < MIN_APPROVALS:
        return None
    return build_offer(definition.name, approvals)


def build_offer(tool_name: str, approvals: Sequence[Approval]) -> RuleOffer | None:
    """Return the rule that matches all of these calls; None if no rule can."""
    calls = [arguments for _, arguments in approvals]
    values = [dict(_list_values(call)) for call in calls]
    conditions: dict[str, dict[str, JsonValue]] = {}
    objects: dict[ArgumentPath, set[str]] = {}
    for path in dict.fromkeys(path for call in values for path in call):
        condition = _bound([call.get(path, _ABSENT) for call in values])
        if condition is None or len(conditions) >= MAX_PLACES:
            return None
        conditions[_format_pointer(path)] = condition
        for depth in range(len(path)):
            objects.setdefault(path[:depth], set()).add(path[depth])
    # Every call has these objects, because `_bound` refuses a value that one of the calls lacks.
    for path, names in objects.items():
        conditions[_format_pointer(path) or "/"] = {"only": list[JsonValue](sorted(names))}
    times = sorted(at for at, _ in approvals)
    busiest_day = max(sum(1 for other in times if at - DAY_S < other <= at) for at in times)
    text = _format_rule(tool_name, conditions, busiest_day, times)
    return RuleOffer(count=len(calls), text=text) if _matches_all(text, tool_name, calls) else None


async def _list_approvals(store: Lookups, principal: str, definition: ToolDefinition) -> list[Approval]:
    approvals: list[Approval] = []
    filters = ExecutionFilter(tool=definition.name, principal=principal)
    page = await store.list_executions(filters, limit=MAX_EXECUTIONS)
    for row in page.rows:
        if row.version > MAX_EVENTS or len(approvals) >= MAX_APPROVALS:
            continue
        with suppress(UnknownThread, LogUnreadable):
            items = (await find_execution(store, row.execution_id)).suspensions.values()
            eligible = (item for item in items if _is_eligible(item, definition))
            approvals += ((item.decided_at or item.created_at, item.question.arguments or {}) for item in eligible)
    return approvals[:MAX_APPROVALS]


def _is_eligible(suspension: SuspensionState, definition: ToolDefinition) -> bool:
    """Return whether a person or program approved a call that a rule may let through, and the tool is unchanged."""
    question, decision = suspension.question, suspension.decision
    return (
        question.kind == "approval"
        and question.tool_name == definition.name
        and question.definition_digest == definition.digest
        and question.risk in ("confirm", "dangerous")
        and definition.risk != "critical"
        and decision is not None
        and decision.approved
        and suspension.assurance in MAKERS
    )


def _list_values(
    value: JsonValue | Mapping[str, JsonValue], path: ArgumentPath = ()
) -> Iterator[tuple[ArgumentPath, JsonValue]]:
    """Yield each path with its value; an object is taken apart down to `MAX_DEPTH`, and a list is one value."""
    if isinstance(value, Mapping) and value and len(path) < MAX_DEPTH:
        for name, inside in value.items():
            yield from _list_values(inside, (*path, name))
    else:
        yield path, cast("JsonValue", value)


def _format_pointer(path: ArgumentPath) -> str:
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def _bound(values: Sequence[object]) -> dict[str, JsonValue] | None:
    """Return the narrowest condition that these values fit; None if no condition covers how they differ."""
    if any(value is _ABSENT for value in values):
        return None
    if all(type(value) in (int, float) for value in values):
        numbers = [value for value in values if isinstance(value, int | float)]
        return {"min": min(numbers), "max": max(numbers)}
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        # If the values are not all texts or all numbers, a rule can list them only if they are all the same.
        first = cast("JsonValue", values[0])
        is_same = all(_is_plain(value) and is_same_json(value, first) for value in values)
        return {"in": [first]} if is_same else None
    if not all(len(text) <= MAX_CHARS and text.isprintable() for text in texts):
        return None
    different = sorted({*texts})
    if len(different) <= MAX_VALUES:
        return {"in": list[JsonValue](different)}
    hosts = {find_host(text) for text in texts}
    if len(hosts) == 1 and (host := hosts.pop()) is not None:
        return {"domain": host}
    if all(map(os.path.isabs, texts)):
        folder = os.path.commonpath([os.path.dirname(os.path.normpath(text)) for text in texts])
        return {"under": folder} if folder.count(os.path.sep) > 1 else None
    return None


def _is_plain(value: object) -> bool:
    """Return whether a rule can list the value as it is: no null, no object, nothing long."""
    parts = cast("list[object]", value) if isinstance(value, list) else [value]
    if len(parts) > MAX_VALUES or not all(isinstance(part, str | int | float) for part in parts):
        return False
    return not exceeds(parts, MAX_VALUES + 1, MAX_CHARS) and all(str(part).isprintable() for part in parts)


def _format_rule(
    tool_name: str, conditions: Mapping[str, Mapping[str, JsonValue]], count: int, times: Sequence[float]
) -> str:
    first, last = (datetime.fromtimestamp(at, UTC).date().isoformat() for at in (times[0], times[-1]))
    lines = ["[[rules]]", f"tool = {_quote(tool_name)}"]
    for pointer, condition in conditions.items():
        table = ", ".join(f"{key} = {_quote(value)}" for key, value in condition.items())
        lines.append(f"when.{_quote(pointer)} = {{ {table} }}")
    lines += ['then = "allow"', f'budget = [{{ count = {count}, per = "day" }}]']
    lines += [f'because = "{len(times)} calls like it were approved from {first} to {last}"']
    return "\n".join(lines) + "\n"


def _quote(value: JsonValue) -> str:
    """Return the value as JSON. For printable texts, numbers, true, false and lists of them, that is also TOML."""
    return json.dumps(value, ensure_ascii=False)


def _matches_all(text: str, tool_name: str, calls: Sequence[Mapping[str, JsonValue]]) -> bool:
    """Return whether the rule, parsed like one of the settings, allows all calls. Links in paths are not followed."""
    try:
        book = build_rule_book(tomllib.loads(text)["rules"])
    except (tomllib.TOMLDecodeError, InvalidArguments):
        return False
    for call in calls:
        paths = {text: text for _, text in _list_values(call) if isinstance(text, str)}
        folders = {folder: folder for condition in book.rules[0].conditions for folder in condition.folders}
        judged = book.judge(tool_name, call, {**paths, **folders})
        if judged is None or not judged.is_certain or judged.then != "allow":
            return False
    return True
