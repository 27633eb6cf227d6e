"""The rows that the events of one append change in addition to the log."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import find_next_alarm_at
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.synopsis import Synopsis, build_synopsis, describe_fault
from planwarden.agent.core.plan.plan import list_step_tools
from planwarden.agent.core.tool import Risk
from planwarden.agent.ports.budgets_and_keys import day_of
from planwarden.agent.ports.store import Append
from planwarden.storage.sql.database import SqlTransaction

RISKS: tuple[Risk | None, ...] = ("critical", "dangerous", "confirm", "read", None)
"""Risks in the order in which waiting questions are listed; a question's row stores the index of its risk."""
_RENAMING = (ev.ExecutionCreated, ev.PlanAccepted, ev.PlanRevised)
"""Events that may change the synopsis."""
_PROGRESSING = (
    ev.PlanAccepted,
    ev.PlanRevised,
    ev.StepsTakenOver,
    ev.StepCompleted,
    ev.StepRehearsed,
    ev.StepSkipped,
)
"""Events that may change how many steps there are, or how many of them are done."""
_CLOSING: dict[type[ev.Event], str] = {
    ev.SuspensionDecided: "decided",
    ev.SuspensionTimedOut: "timed_out",
    ev.SuspensionWithdrawn: "withdrawn",
}
"""Events that close a question, and what its row says then."""


class Projection(msgspec.Struct, frozen=True, gc=False):
    """What is known about the rows before the transaction begins."""

    synopsis: Synopsis | None
    """What a list shows of the execution; None if that has not changed."""
    counts: tuple[int, int] | tuple[None, None]
    """How many steps there are, and how many of them are done; both None if neither has changed."""
    grant_uses: Mapping[str, int]
    """How often each grant is used."""
    is_resumed: bool
    """Whether the append starts an execution planned earlier or continues an incomplete one, and does not finish it."""


def project(append: Append) -> Projection:
    """Return what the append changes in addition to the log."""
    execution, events = append.execution, [recorded.event for recorded in append.recorded]
    intended = [event for event in events if isinstance(event, ev.ToolCallIntended)]
    kinds = {type(event) for event in events}
    is_renamed = not kinds.isdisjoint(_RENAMING) or any(_is_unplanned(execution, event) for event in intended)
    is_further = not append.expected_version or not kinds.isdisjoint(_PROGRESSING)
    is_restarted = append.expected_version > 0 and ev.ExecutionStarted in kinds
    return Projection(
        build_synopsis(execution) if is_renamed else None,
        (len(execution.steps), execution.steps_done) if is_further else (None, None),
        Counter(event.grant_id for event in intended if event.grant_id is not None),
        is_restarted and not execution.is_finished,
    )


def _is_unplanned(execution: ExecutionState, intended: ev.ToolCallIntended) -> bool:
    """Return whether a model calls a tool that its step does not name."""
    call = execution.call(intended.call_id)
    return call.by_model and call.tool_name not in list_step_tools(execution.steps[call.step_id].step)


def write_rows(transaction: SqlTransaction, append: Append, projection: Projection, number: int, now: float) -> None:
    """Write what follows from the append, for the execution with that number."""
    execution, execute = append.execution, transaction.execute
    for recorded in append.recorded:
        _write_question(transaction, execution, recorded, number)
    for grant_id, count in projection.grant_uses.items():
        for _ in range(count):
            execute("use_grant", (grant_id, day_of(now)))
    is_finished = execution.is_finished
    if is_finished and any(suspension.status == "withdrawn" for suspension in execution.suspensions.values()):
        execute("withdraw_suspensions", (execution.updated_at, number))
    if projection.synopsis is not None:
        execute("write_synopsis", (number, *list_values(projection.synopsis)))
    fault = describe_fault(execution) if is_finished else ""
    if projection.is_resumed or fault:
        execute("write_fault", (fault, number))


def _write_question(transaction: SqlTransaction, execution: ExecutionState, recorded: ev.Recorded, number: int) -> None:
    """Write what the event changes in the row of its suspension; do nothing if the event has none."""
    execute = transaction.execute
    match recorded.event:
        case ev.Suspended(question=question):
            alarm_at = question.alarms[0].at if question.alarms else None
            names = question.suspension_id, number, question.addressee
            values = RISKS.index(question.risk), question.digest, recorded.at, question.expires_at, alarm_at
            execute("open_suspension", (*names, *values))
        case ev.SuspensionRevised(question=question):
            alarm_at = find_next_alarm_at(execution.suspensions[question.suspension_id])
            values = question.digest, RISKS.index(question.risk), question.expires_at, alarm_at
            execute("revise_suspension", (*values, question.suspension_id))
        case ev.SuspensionReminded(suspension_id=suspension_id):
            alarm_at = find_next_alarm_at(execution.suspensions[suspension_id])
            execute("remind_suspension", (alarm_at, suspension_id))
        case ev.SuspensionDecided() | ev.SuspensionTimedOut() | ev.SuspensionWithdrawn() as event:
            execute("answer_suspension", (_CLOSING[type(event)], recorded.at, event.suspension_id))
        case _:
            pass


def list_values(synopsis: Synopsis) -> tuple[object, ...]:
    """Return what `write_synopsis` takes after the execution's number."""
    return (
        synopsis.title,
        synopsis.is_goal,
        synopsis.host,
        synopsis.saved_plan,
        join_tools(synopsis.tools),
        synopsis.search,
    )


def join_tools(tools: Iterable[str]) -> str:
    """Return the column `tools`: one name on each line, with a line break before and after every name."""
    return "".join(f"\n{name}" for name in tools) + "\n"
