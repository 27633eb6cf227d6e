"""The rows that a store keeps beside the log, derived from the events of one transaction; the same for every store."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import find_next_alarm_at
from planwarden.agent.core.plan import list_step_tools
from planwarden.agent.core.synopsis import StepProgress, Synopsis, build_synopsis, count_progress, describe_fault
from planwarden.agent.ports.store import Append

RowStatus = Literal["pending", "decided", "timed_out", "withdrawn"]


class SuspensionOpened(msgspec.Struct, frozen=True):
    question: ev.Question

    @property
    def alarm_at(self) -> float | None:
        return self.question.alarms[0].at if self.question.alarms else None


class SuspensionRowRevised(msgspec.Struct, frozen=True):
    question: ev.Question
    alarm_at: float | None


class SuspensionRowReminded(msgspec.Struct, frozen=True):
    suspension_id: str
    alarm_at: float | None
    """When the next alarm is due."""


class SuspensionClosed(msgspec.Struct, frozen=True):
    suspension_id: str
    status: RowStatus
    at: float


class PendingWithdrawn(msgspec.Struct, frozen=True):
    """Every suspension that was pending when the execution ended."""

    at: float


class GrantUsed(msgspec.Struct, frozen=True):
    grant_id: str


class SynopsisWritten(msgspec.Struct, frozen=True):
    """What a list shows of the execution, from its creation on, or after its plan changed."""

    synopsis: Synopsis


class ExecutionEnded(msgspec.Struct, frozen=True):
    """The execution is finished, or goes on after it was."""

    fault: str = ""
    goes_on: bool = False


RowChange = (
    SuspensionOpened
    | SuspensionRowRevised
    | SuspensionRowReminded
    | SuspensionClosed
    | PendingWithdrawn
    | GrantUsed
    | SynopsisWritten
    | ExecutionEnded
)


_RENAMING: frozenset[type[ev.Event]] = frozenset({ev.ExecutionCreated, ev.PlanAccepted, ev.PlanRevised})
"""Events that may change the synopsis."""
_PROGRESSING: frozenset[type[ev.Event]] = frozenset(
    {
        ev.PlanAccepted,
        ev.PlanRevised,
        ev.StepsTakenOver,
        ev.StepCompleted,
        ev.StepRehearsed,
        ev.StepSkipped,
    }
)
"""Events that may change how many steps there are, or are done."""
_PROJECTED: frozenset[type[ev.Event]] = frozenset(
    {
        ev.Suspended,
        ev.SuspensionRevised,
        ev.SuspensionReminded,
        ev.SuspensionDecided,
        ev.SuspensionTimedOut,
        ev.SuspensionWithdrawn,
        ev.ToolCallIntended,
    }
)
"""Events that may change a row."""


def project_rows(append: Append) -> Iterator[RowChange]:
    """Changes to the rows of suspensions and grants, in the order of the events."""
    for recorded in _events_that_change_rows(append):
        match recorded.event:
            case ev.Suspended(question=question):
                yield SuspensionOpened(question)
            case ev.SuspensionRevised(question=question):
                yield SuspensionRowRevised(
                    question, find_next_alarm_at(append.execution.suspensions[question.suspension_id])
                )
            case ev.SuspensionReminded(suspension_id=suspension_id):
                yield SuspensionRowReminded(
                    suspension_id, find_next_alarm_at(append.execution.suspensions[suspension_id])
                )
            case ev.SuspensionDecided(suspension_id=suspension_id):
                yield SuspensionClosed(suspension_id, "decided", recorded.at)
            case ev.SuspensionTimedOut(suspension_id=suspension_id):
                yield SuspensionClosed(suspension_id, "timed_out", recorded.at)
            case ev.SuspensionWithdrawn(suspension_id=suspension_id):
                yield SuspensionClosed(suspension_id, "withdrawn", recorded.at)
            case ev.ToolCallIntended(grant_id=str() as grant_id):
                yield GrantUsed(grant_id)
            case _:
                pass
    if append.execution.is_finished and any(s.status == "withdrawn" for s in append.execution.suspensions.values()):
        yield PendingWithdrawn(append.execution.updated_at)
    yield from _project_synopsis(append)


def _project_synopsis(append: Append) -> Iterator[RowChange]:
    execution = append.execution
    kinds = {type(recorded.event) for recorded in append.recorded}
    if not kinds.isdisjoint(_RENAMING) or (ev.ToolCallIntended in kinds and _calls_beside_the_plan(append)):
        yield SynopsisWritten(build_synopsis(execution))
    if execution.is_finished:
        yield ExecutionEnded(describe_fault(execution))
    elif append.expected_version and ev.ExecutionStarted in kinds:
        yield ExecutionEnded(goes_on=True)


def _calls_beside_the_plan(append: Append) -> bool:
    """A model calls a tool that its step does not name."""
    intended = [recorded.event for recorded in append.recorded if isinstance(recorded.event, ev.ToolCallIntended)]
    calls = [append.execution.call(event.call_id) for event in intended]
    steps = append.execution.steps
    return any(call.by_model and call.tool_name not in list_step_tools(steps[call.step_id].step) for call in calls)


def project_progress(append: Append) -> StepProgress | None:
    """How far the execution is after the append; None when that is as before."""
    if append.expected_version and not any(type(recorded.event) in _PROGRESSING for recorded in append.recorded):
        return None
    return count_progress(append.execution)


def _events_that_change_rows(append: Append) -> list[ev.Recorded]:
    return [recorded for recorded in append.recorded if type(recorded.event) in _PROJECTED]


def count_grant_uses(changes: Iterable[RowChange]) -> Mapping[str, int]:
    """How often these changes use each grant."""
    used = [change.grant_id for change in changes if isinstance(change, GrantUsed)]
    return Counter(used) if used else {}
