"""The rows that a store keeps beside the log, derived from the events of one transaction; the same for every store."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import find_next_alarm_at
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.synopsis import (
    StepProgress,
    Synopsis,
    build_synopsis,
    count_progress,
    describe_fault,
)
from planwarden.agent.core.plan.plan import list_step_tools
from planwarden.agent.core.tool import Risk
from planwarden.agent.ports.store import Append

RowStatus = Literal["pending", "decided", "timed_out", "withdrawn"]


RISKS: tuple[Risk | None, ...] = ("critical", "dangerous", "confirm", "read", None)
"""In the order in which questions about them wait; the row of a question keeps the place of its risk."""


class SuspensionOpened(msgspec.Struct, frozen=True, gc=False):
    question: ev.Question

    @property
    def alarm_at(self) -> float | None:
        return self.question.alarms[0].at if self.question.alarms else None


class SuspensionRowRevised(msgspec.Struct, frozen=True, gc=False):
    question: ev.Question
    alarm_at: float | None


class SuspensionRowReminded(msgspec.Struct, frozen=True, gc=False):
    suspension_id: str
    alarm_at: float | None
    """When the next alarm is due."""


class SuspensionClosed(msgspec.Struct, frozen=True, gc=False):
    suspension_id: str
    status: RowStatus
    at: float


class PendingWithdrawn(msgspec.Struct, frozen=True, gc=False):
    """Every suspension that was pending when the execution ended."""

    at: float


class GrantUsed(msgspec.Struct, frozen=True, gc=False):
    grant_id: str


class SynopsisWritten(msgspec.Struct, frozen=True, gc=False):
    """What a list shows of the execution, from its creation on, or after its plan changed."""

    synopsis: Synopsis


class ExecutionEnded(msgspec.Struct, frozen=True, gc=False):
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


class Projection(msgspec.Struct, frozen=True, gc=False):
    """What one append changes beside the log."""

    changes: tuple[RowChange, ...]
    """In the order of the events."""
    progress: StepProgress | None
    """How far the execution is after the append; None when that is as before."""


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
_ASKING: frozenset[type[ev.Event]] = frozenset(
    {
        ev.Suspended,
        ev.SuspensionRevised,
        ev.SuspensionReminded,
        ev.SuspensionDecided,
        ev.SuspensionTimedOut,
        ev.SuspensionWithdrawn,
    }
)
"""Events that change the row of a suspension."""


def project(append: Append) -> Projection:
    """Return what the append changes beside the log."""
    execution = append.execution
    changes: list[RowChange] = []
    is_renamed = goes_on = False
    is_further = not append.expected_version
    for recorded in append.recorded:
        event = recorded.event
        kind = type(event)
        is_further = is_further or kind in _PROGRESSING
        if kind in _ASKING:
            changes.append(_project_question(execution, recorded))
        elif isinstance(event, ev.ToolCallIntended):
            if event.grant_id is not None:
                changes.append(GrantUsed(event.grant_id))
            is_renamed = is_renamed or _is_beside_the_plan(execution, event)
        elif kind in _RENAMING:
            is_renamed = True
        elif kind is ev.ExecutionStarted:
            goes_on = append.expected_version > 0
    is_finished = execution.is_finished
    if is_finished and any(suspension.status == "withdrawn" for suspension in execution.suspensions.values()):
        changes.append(PendingWithdrawn(execution.updated_at))
    if is_renamed:
        changes.append(SynopsisWritten(build_synopsis(execution)))
    if is_finished or goes_on:
        changes.append(ExecutionEnded(describe_fault(execution)) if is_finished else ExecutionEnded(goes_on=True))
    return Projection(tuple(changes), count_progress(execution) if is_further else None)


def _project_question(execution: ExecutionState, recorded: ev.Recorded) -> RowChange:
    match recorded.event:
        case ev.Suspended(question=question):
            return SuspensionOpened(question)
        case ev.SuspensionRevised(question=question):
            return SuspensionRowRevised(question, find_next_alarm_at(execution.suspensions[question.suspension_id]))
        case ev.SuspensionReminded(suspension_id=suspension_id):
            return SuspensionRowReminded(suspension_id, find_next_alarm_at(execution.suspensions[suspension_id]))
        case ev.SuspensionDecided(suspension_id=suspension_id):
            return SuspensionClosed(suspension_id, "decided", recorded.at)
        case ev.SuspensionTimedOut(suspension_id=suspension_id):
            return SuspensionClosed(suspension_id, "timed_out", recorded.at)
        case ev.SuspensionWithdrawn(suspension_id=suspension_id):
            return SuspensionClosed(suspension_id, "withdrawn", recorded.at)
        case _:
            raise AssertionError(f"{recorded.event!r} is not about a suspension")


def _is_beside_the_plan(execution: ExecutionState, intended: ev.ToolCallIntended) -> bool:
    """A model calls a tool that its step does not name."""
    call = execution.call(intended.call_id)
    return call.by_model and call.tool_name not in list_step_tools(execution.steps[call.step_id].step)


def count_grant_uses(changes: Iterable[RowChange]) -> Mapping[str, int]:
    """Return how often these changes use each grant."""
    used = [change.grant_id for change in changes if isinstance(change, GrantUsed)]
    return Counter(used) if used else {}
