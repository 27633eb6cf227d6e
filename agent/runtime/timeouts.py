"""What happens to a question when nobody answers it in time, as events for the run that owns the execution.

The scheduler finds the questions that are due. The deadline is set when a question is asked; `renew` extends it.
"""

from msgspec.structs import replace

from planwarden.agent.approval.questions import add_finding, bind_revision, is_of_policy
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import find_due_alarm
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Guard
from planwarden.agent.runtime.lookups import LookedUp
from planwarden.agent.runtime.transaction_builder import BuildEvents, EventBatch


def renew(suspension_id: str) -> BuildEvents:
    """Give people as much time for an open question as they had at first, if at most half of that time is left.

    Change nothing if silence would approve the question, if one of several approvals has already been given, or if the
    question was asked under another policy.
    """

    def build(execution: ExecutionState, now: float, lookups: LookedUp) -> EventBatch:
        suspension = execution.suspensions.get(suspension_id)
        if suspension is None or not suspension.is_open or suspension.endorsements or execution.is_finished:
            return EventBatch()
        question = suspension.question
        first_end, end = (suspension.first or question).expires_at, question.expires_at
        is_renewable = question.on_timeout == "reject" and is_of_policy(question, lookups.approval.policy)
        if first_end is None or end is None or not is_renewable:
            return EventBatch()
        time_s = first_end - suspension.created_at
        if not now < end <= now + time_s / 2:
            return EventBatch()
        findings = add_finding(question, "The identical call was made again, so there is more time for the answer.")
        renewed = bind_revision(lookups.approval, execution, replace(question, expires_at=now + time_s, found=findings))
        guard = Guard(suspension_id=suspension_id, digest=question.digest)
        return EventBatch((ev.SuspensionRevised(question=renewed, reason="the identical call was made again"),), guard)

    return build


def wake(suspension_id: str, policy: Policy) -> BuildEvents:
    """Let an open question time out, or let its next alarm fire, whichever is due.

    A timeout approves only if the question was asked under `policy`, or is a wait for the clock.
    """

    def build(execution: ExecutionState, now: float, _: LookedUp) -> EventBatch:
        suspension = execution.suspensions.get(suspension_id)
        if suspension is None or not suspension.is_open or execution.is_finished:
            return EventBatch()
        question = suspension.question
        if question.expires_at is None or question.expires_at > now:
            alarm = find_due_alarm(suspension, now)
            guard = Guard(suspension_id=suspension_id, digest=question.digest)
            return EventBatch() if alarm is None else EventBatch((alarm,), guard)
        is_clock = question.addressee == "clock"
        outcome = question.on_timeout if is_clock or is_of_policy(question, policy) else "reject"
        timed_out = ev.SuspensionTimedOut(suspension_id=suspension_id, outcome=outcome)
        guard = Guard(suspension_id=suspension_id, digest=question.digest, deadline="passed")
        return EventBatch((timed_out,), guard)

    return build
