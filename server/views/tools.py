"""The views of tools: a call with its error, a loop's items, a line of the catalogue, and a full definition.

The items of a loop come in pages, as a loop may have 10,000 of them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution.events import MatchedRule
from planwarden.agent.core.execution.state import STEP_TERMINAL, Call, StepState
from planwarden.agent.core.tool import ToolDefinition

PAGE_ITEMS = 100
MAX_PAGE_ITEMS = 1_000
MAX_PAGE_BYTES = 1024 * 1024
"""The most bytes of results on a page; the first item of a page is there even if its result is larger."""


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Why something failed."""

    code: str
    """A stable word for what went wrong."""
    message: str
    """What happened, to which id, and what to do next."""


class RehearsedCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would have needed, had the rehearsal made it."""

    risk: str | None
    """`read`, `confirm`, `dangerous` or `critical`; null for a wait."""
    asks: str | None
    """The kind of question that a person would have been asked first, or `wait` for the clock; null if none."""
    needs: str | None
    """The assurance that a decision would have needed, or null."""
    quorum: int = 1
    """How many different people would have had to approve."""
    confirms: tuple[str, ...] = ()
    """Later steps whose calls the same answer would have covered; left out if none."""
    covered_by: str | None = None
    """The call whose question would have covered this one; left out if none."""
    grant_id: str | None = None
    """The standing grant that would have let it through; left out if none."""
    found: tuple[str, ...] = ()
    """What planwarden found about it, in sentences; left out if nothing."""
    rule: MatchedRule | None = None
    """The rule of the operator that would have decided about the call; left out if none."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a step lists, or that a suspension asks about."""

    call_id: str
    """`STEP:NUMBER`, unique in the execution."""
    tool_name: str
    """Name in the catalogue."""
    arguments: dict[str, JsonValue]
    """As they ran or will run: references resolved, defaults filled in."""
    resolved: Literal[True] | None
    """True when a binding, a template or somebody's edit gave an argument its value; left out if none did."""
    status: str | None = None
    """`succeeded`, `failed`, `suspended`, `rejected`, `outcome_unknown` or `rehearsed`; left out in suspensions."""
    error: Error | None = None
    """Why it failed; left out if it did not."""
    once: dict[str, JsonValue] | None = None
    """Its business key, which no other call has: values by JSON pointer into the arguments; left out if none."""
    beside: JsonValue = None
    """What its server sent in addition to the structured result; left out if there was nothing more."""
    taken_from: str | None = None
    """If a retry took the call over, the execution that made it; left out otherwise."""
    rehearsal: RehearsedCall | None = None
    """What a rehearsal found instead of making the call; left out if it was made."""
    rule: MatchedRule | None = None
    """The rule of the operator that let it through, or denied it; left out if none."""


class LoopItems(msgspec.Struct, frozen=True, kw_only=True):
    """How far along a loop is, in numbers of items."""

    total: int
    """Items in the loop's list."""
    succeeded: int
    """Items whose calls all succeeded."""
    failed: int
    """Items with a failed call."""
    rejected: int
    """Items with a rejected call."""
    next: int | None = None
    """The first item whose result this page lacks, as `itemsFrom` for the next page; left out if no page follows."""


class LoopItem(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one item of a loop."""

    item: int
    """Its place in the list, counted from 0."""
    status: str
    """`pending`, `running`, `suspended`, `succeeded`, `failed`, `rejected`, `outcome_unknown`, `rehearsed`,
    or `skipped` if the step ended without it."""
    result: JsonValue
    """The value of its call, or the list of its calls' values; left out until all its calls have succeeded."""
    error: Error | None
    """Why one of its calls failed; left out if none did."""


NOT_SEEN = "not known: it was not called yet, so a pointer into its result is a guess"


class ToolLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the catalogue."""

    name: str
    """Name in the catalogue."""
    signature: str
    """The name with its arguments, and a question mark after each argument that may be left out."""
    description: str
    """The first line of the description."""
    capabilities: tuple[str, ...]
    """Words for the search."""
    execution_mode: str
    """`immediate` or `blocking`."""
    risk: str
    """`read`, `confirm`, `dangerous` or `critical`."""
    source: str
    """`builtin`, `python`, or the name of the downstream server."""
    unavailable: str | None = None
    """Why it cannot be called now; left out if it can."""


class ToolPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the catalogue."""

    tools: tuple[ToolLine, ...]
    """Best matches first; sorted by name if there is no query."""
    total: int
    """Number on all pages."""
    next_cursor: str | None
    """For the next page, or null."""


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """One tool with its full schema."""

    name: str
    """Name in the catalogue."""
    description: str
    """The whole description."""
    input_schema: dict[str, JsonValue]
    """JSON Schema of the arguments."""
    output_schema: dict[str, JsonValue] | None
    """JSON Schema of the result, if the tool has one."""
    asks: str
    """Whether a person is asked when it is called, in words."""
    seen_result: JsonValue
    """For a tool without `outputSchema`: the names and kinds, but not the values, in the result of its last call in
    your runs, or a sentence that says that it was not called yet."""
    annotations: dict[str, JsonValue]
    """Hints of a downstream server, as it wrote them."""
    execution_mode: str
    """`immediate` or `blocking`."""
    risk: str
    """`read`, `confirm`, `dangerous` or `critical`."""
    effect: str
    """`read`, `idempotent` or `effect`."""
    definition_digest: str
    """Digest of the whole definition; it changes when the tool changes."""
    unavailable: str | None = None
    """Why it cannot be called now; left out if it can."""


class ToolSchemas(msgspec.Struct, frozen=True, kw_only=True):
    """Full definitions."""

    tools: tuple[ToolView, ...]
    """In the order of the request."""
    unknown: tuple[str, ...]
    """Names that no tool has."""


def build_tool_line(definition: ToolDefinition) -> ToolLine:
    return copy_fields(ToolLine, definition, description=definition.summary)


def build_tool_view(definition: ToolDefinition) -> ToolView:
    asks = _ASKS[definition.is_blocking, definition.risk == "read"]
    return copy_fields(ToolView, definition, asks=asks, seen_result=None, definition_digest=definition.digest)


_ASKS = {
    (True, True): "waits for the time; asks nobody",
    (True, False): "asks a person; the answer is the result",
    (False, True): "runs at once; asks nobody",
    (False, False): "a person is asked before it runs, unless a rule or a permit of theirs allows the call",
}
"""Whether a person is asked, in words. Each key says whether the tool is blocking and whether its risk is `read`."""


def build_error(code: str | None, message: str | None) -> Error | None:
    """Return the error; None without a code."""
    return None if code is None else Error(code=code, message=message or "")


def build_tool_call(call: Call) -> ToolCall:
    final = call.arguments or {}
    return copy_fields(
        ToolCall,
        call,
        arguments=call.proposed if call.arguments is None else call.arguments,
        resolved=any(key in final and final[key] != value for key, value in call.proposed.items()) or None,
        # A call keeps its former error when a person says that it happened after all.
        error=None if call.status == "succeeded" else build_error(call.error_code, call.error_message),
        once=None if call.once is None else call.once.values,
        taken_from=call.origin.partition(":")[0] or None,
        rehearsal=None
        if (rehearsed := call.rehearsed) is None
        else copy_fields(
            RehearsedCall, rehearsed, confirms=tuple(dict.fromkeys(row.step_id for row in rehearsed.covers))
        ),
    )


def count_items(state: StepState, following: int | None) -> LoopItems:
    """Return how far along the loop is; `following` is the first item whose result the view leaves out."""
    ends = [{call.status for call in state.list_item_calls(index)} for index in range(len(state.items or ()))]
    return LoopItems(
        total=len(ends),
        succeeded=sum(statuses == {"succeeded"} for statuses in ends),
        failed=sum("failed" in statuses for statuses in ends),
        rejected=sum("rejected" in statuses for statuses in ends),
        next=following if following is not None and following < len(ends) else None,
    )


def list_items(state: StepState, first: int, limit: int) -> tuple[LoopItem, ...]:
    """Return at most `limit` items from `first` on; only the first may make the results exceed `MAX_PAGE_BYTES`."""
    page: list[LoopItem] = []
    size = 0
    for index in range(first, min(first + limit, len(state.items or ()))):
        item = _build_item(state, index)
        size += measure_at_least(item.result, MAX_PAGE_BYTES)
        if page and size > MAX_PAGE_BYTES:
            break
        page.append(item)
    return tuple(page)


def _build_item(state: StepState, index: int) -> LoopItem:
    calls = state.list_item_calls(index)
    failed = next((call for call in calls if call.error_code is not None), None)
    status = _find_status(state, calls)
    values = [call.value for call in calls]
    return LoopItem(
        item=index,
        status=status,
        result=None if status != "succeeded" else values[0] if len(values) == 1 else values,
        error=None if failed is None or status == "succeeded" else build_error(failed.error_code, failed.error_message),
    )


def _find_status(state: StepState, calls: Sequence[Call]) -> str:
    statuses = {call.status for call in calls}
    for status in ("failed", "rejected", "outcome_unknown", "suspended", "running", "decided", "rehearsed"):
        if status in statuses:
            return "running" if status == "decided" else status
    if "succeeded" in statuses:
        return "succeeded" if len(statuses) == 1 else "running"
    return "skipped" if state.status in STEP_TERMINAL else "pending"
