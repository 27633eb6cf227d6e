"""What happens to a question when nobody answers it in time, as events for the run that owns the execution.

The scheduler finds the questions that are due; the deadline itself is set when a question is asked.
"""

from planwarden.agent.approval.questions import is_of_policy
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.notifications import find_due_alarm
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Guard
from planwarden.agent.runtime.lookups import LookedUp
from planwarden.agent.runtime.transaction_builder import BuildEvents, EventBatch


def wake(suspension_id: str, policy: Policy) -> BuildEvents:
    """Let an open question time out, or let its next alarm fire, whichever is due.

    Silence approves only under the policy that the question was asked under.
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
