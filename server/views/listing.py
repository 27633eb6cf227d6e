"""Lines of lists: executions with their state and progress, saved plans, and schedules with their ticks."""

from datetime import datetime

import msgspec

from planwarden.agent.common.errors import count_of
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.ports.listing import ListedExecution
from planwarden.server.views.instants import to_utc
from planwarden.server.views.status_words import STATUSES, WAITS, WORDS, Words
from planwarden.server.views.tools import ToolCall

NOT_ATTENDED = "no server or worker runs on this store now, so nothing starts until one does"


class ExecutionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One execution in a list. Its texts are cut and not escaped."""

    execution_id: str
    thread_id: str
    principal: str
    state: str
    """One of `STATUSES`."""
    title: str
    """The goal, the saved plan's name, or the descriptions of the steps."""
    saved_plan: str | None = None
    host: str | None
    """The program that asked for the execution, as the program names itself."""
    step_count: int
    steps_done: int
    waits_for: str | None
    """Whom it waits for: the first of `human`, `caller` and `clock` that applies; None if it waits for nobody."""
    suspension_id: str | None
    """The oldest open question to a person."""
    fault: str | None
    """Why the execution did not reach its goal."""
    created_at: datetime
    changed_at: datetime
    calls: tuple[ToolCall, ...] = ()
    """The calls of the execution, if the list shows calls."""

    @property
    def is_quoted(self) -> bool:
        """Whether somebody wrote the title, so that it is not the name of a saved plan."""
        return self.title != self.saved_plan

    @property
    def words(self) -> Words:
        """The words that name the state to a person; for a waiting execution, they say whom it waits for."""
        words = WORDS["execution"][STATUSES[self.state]]
        return words._replace(word=WAITS.get(self.waits_for or "", words.word)) if self.state == "waiting" else words

    def describe_progress(self) -> str:
        """Return in words how far the execution has got; an empty text while it has no plan."""
        if not self.step_count:
            return ""
        steps = f"{count_of(self.step_count, 'step')}"
        is_all = self.state == "planned" or (self.state == "completed" and self.steps_done >= self.step_count)
        return steps if is_all else f"{self.steps_done} of {steps}"


class ExecutionLines(msgspec.Struct, frozen=True):
    """A page of executions, the newest activity first."""

    executions: tuple[ExecutionLine, ...]
    next_cursor: str | None


def build_line(row: ListedExecution) -> ExecutionLine:
    """Return the line for a row of a store."""
    return copy_fields(
        ExecutionLine,
        row,
        state=WORDS["execution"][row.status].word,
        saved_plan=row.saved_plan or None,
        host=row.host or None,
        suspension_id=row.question,
        fault=row.fault or None,
        created_at=to_utc(row.created_at),
        changed_at=to_utc(row.active_at),
    )


class SavedPlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """A saved plan, without its steps."""

    name: str
    """The name that `run_plan` takes."""
    title: str | None
    """A title for people, or null."""
    description: str | None
    """What the plan does and when to use it, or null."""
    inputs: dict[str, JsonValue] | None
    """JSON Schema of a run's inputs; null for a plan without inputs."""
    version: str
    """Digest of its content."""
    source: str
    """`home`, or the folder as `[plans] folders` names it."""


class TickView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one tick."""

    tick_at: datetime
    outcome: str
    """`started`, `skipped`, `missed` or `failed`."""
    reason: str | None
    """Why nothing was started."""
    thread_id: str | None
    execution_id: str | None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule."""

    schedule_id: str
    plan: str
    """Name of the saved plan that the schedule starts."""
    cron: str
    timezone: str
    inputs: dict[str, JsonValue]
    overlap: str
    """What a tick does while the last run is unfinished: `skip` or `queue`."""
    missed: str
    """Which tick starts late if ticks were missed because no server ran: the `latest`, or `none`."""
    owner: str
    """To whom the runs belong."""
    created_by: str
    created_at: datetime
    paused_at: datetime | None
    next_ticks: tuple[datetime, ...]
    """The next ticks; empty while the schedule is paused."""
    queued_ticks: tuple[datetime, ...]
    """The ticks that wait until the last run has ended."""
    last_thread_id: str | None
    """Thread of the newest run in `recent`; None if none of those ticks started a run."""
    recent: tuple[TickView, ...]
    """The last ticks, newest first."""
