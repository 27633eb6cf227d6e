"""The rows of a list of executions. A store returns them, newest activity first, without reading a log."""

import math
from typing import Literal

import msgspec

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.state import ExecutionStatus

MAX_CURSOR_CHARS = 64
UNFINISHED: tuple[ExecutionStatus, ...] = ("suspended", "running", "planned")
"""The statuses of unfinished executions, in the order in which lists show them."""
MAX_HOST_SCAN = 2_000
"""The most executions to search for hosts; the newest are searched."""


class ExecutionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which executions to list: those that meet every condition that is not None or empty."""

    search: str = ""
    """Words that must each be in the goal (or else the steps), saved plan, thread or id; case does not matter."""
    status: ExecutionStatus | None = None
    host: str | None = None
    tool: str | None = None
    tool_prefix: str = ""
    """The beginning of the name of a tool."""
    saved_plan: str | None = None
    principal: str | None = None
    is_gated: bool | None = None
    """True lists only calls that a host made through a gate, False only other executions; None lists both."""


class ListedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """One row. Its texts are cut and not escaped."""

    execution_id: str
    thread_id: str
    principal: str
    status: ExecutionStatus
    version: int
    created_at: float
    active_at: float
    """When the execution last changed, in Unix seconds."""
    step_count: int
    steps_done: int
    title: str
    is_goal: bool
    """Whether the title is the goal, in the words of the goal's author."""
    host: str
    saved_plan: str
    fault: str
    """Why the execution did not reach its goal; empty while it runs, and where nothing is known."""
    question: str | None
    """The id of the oldest open question to a person; None if there is none."""
    waits_for: Literal["human", "caller", "clock"] | None
    """Whose answer the execution waits for; of several, a person counts first, then the caller, then the clock."""


class ListedPage(msgspec.Struct, frozen=True):
    rows: tuple[ListedExecution, ...]
    next_cursor: str | None


class ListPosition(msgspec.Struct, frozen=True):
    """Where a page ended; the next page begins below this row."""

    active_at: float = 1e308
    number: int = 2**62

    def to_cursor(self) -> str:
        return f"{self.active_at!r}:{self.number}"


def read_cursor(cursor: str | None) -> ListPosition:
    """Return the position below which the next page begins. Raises `InvalidArguments` for a malformed cursor."""
    if cursor is None:
        return ListPosition()
    at, _, number = cursor.partition(":")
    try:
        position = ListPosition(float(at), int(number)) if len(cursor) <= MAX_CURSOR_CHARS else None
    except ValueError:
        position = None
    if position is None or not math.isfinite(position.active_at) or not 0 <= position.number <= 2**62:
        raise InvalidArguments(f"cursor {cursor[:MAX_CURSOR_CHARS]!r} is not one that this server gave out")
    return position
