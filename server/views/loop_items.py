"""How far along a loop is, and what became of its items; they come in pages, as a loop may have 10,000 of them."""

from collections.abc import Sequence

import msgspec

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import STEP_TERMINAL, Call, StepState
from planwarden.server.views.tools import Error

PAGE_ITEMS = 100
MAX_PAGE_ITEMS = 1_000
MAX_PAGE_BYTES = 1024 * 1024
"""The most bytes of results on a page; the first item of a page is there even if its result is larger."""


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
        error=None
        if failed is None or status == "succeeded"
        else Error(code=failed.error_code or "", message=failed.error_message or ""),
    )


def _find_status(state: StepState, calls: Sequence[Call]) -> str:
    statuses = {call.status for call in calls}
    for status in ("failed", "rejected", "outcome_unknown", "suspended", "running", "decided", "rehearsed"):
        if status in statuses:
            return "running" if status == "decided" else status
    if "succeeded" in statuses:
        return "succeeded" if len(statuses) == 1 else "running"
    return "skipped" if state.status in STEP_TERMINAL else "pending"
