"""Commands: what somebody wants of an execution, as functions from its state and the time to the events to append.

A run calls the function inside its transaction, and again on a newer state when another writer was faster. A function
that returns no events asks for nothing; one that raises `PlanwardenError` refuses.
"""

from planwarden.agent.approval.questions import is_of_policy
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import find_due_alarm
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Guard, StartRequest
from planwarden.agent.runtime.transaction import BuildEvents, EventBatch


def create(*events: ev.Event, start: StartRequest | None) -> BuildEvents:
    """Append exactly these events, the first ones of an execution."""
    batch = EventBatch(events, start=start)
    return lambda execution, now: batch


def start(options: ev.Options, client_id: str | None, request: StartRequest | None) -> BuildEvents:
    """Run a planned execution, or go on with an incomplete one."""
    batch = EventBatch((ev.ExecutionStarted(options=options, client_id=client_id),), start=request)

    def build(execution: ExecutionState, now: float) -> EventBatch:
        if execution.status not in ("planned", "incomplete"):
            raise InvalidArguments(
                f"execution {execution.execution_id!r} is {execution.status}; only a planned or incomplete one starts"
            )
        return batch

    return build


def cancel(reason: str | None) -> BuildEvents:
    """Stop the execution unless it is over, or somebody has stopped it before."""

    def build(execution: ExecutionState, now: float) -> EventBatch:
        if execution.is_finished or execution.cancel_requested:
            return EventBatch()
        return EventBatch((ev.CancelRequested(reason=reason),))

    return build


def withdraw(suspension_id: str, reason: str) -> BuildEvents:
    """Close an open question that somebody else asked through us."""

    def build(execution: ExecutionState, now: float) -> EventBatch:
        found = execution.suspensions.get(suspension_id)
        if found is None or not found.is_open or not found.question.asker:
            return EventBatch()
        guard = Guard(suspension_id=suspension_id, digest=found.question.digest, deadline="any")
        return EventBatch((ev.SuspensionWithdrawn(suspension_id=suspension_id, reason=reason),), guard)

    return build


def wake(suspension_id: str, policy: Policy) -> BuildEvents:
    """Let an open question time out, or let its next alarm fire, whichever is due.

    Silence approves only under the policy that the question was asked under.
    """

    def build(execution: ExecutionState, now: float) -> EventBatch:
        suspension = execution.suspensions.get(suspension_id)
        if suspension is None or not suspension.is_open or execution.is_finished:
            return EventBatch()
        question = suspension.question
        if question.expires_at is None or question.expires_at > now:
            reminded = find_due_alarm(suspension, now)
            guard = Guard(suspension_id=suspension_id, digest=question.digest)
            return EventBatch() if reminded is None else EventBatch((reminded,), guard)
        is_clock = question.addressee == "clock"
        outcome = question.on_timeout if is_clock or is_of_policy(question, policy) else "reject"
        timed_out = ev.SuspensionTimedOut(suspension_id=suspension_id, outcome=outcome)
        guard = Guard(suspension_id=suspension_id, digest=question.digest, deadline="passed")
        return EventBatch((timed_out,), guard)

    return build
