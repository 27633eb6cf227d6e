"""Whether somebody's word counts: what an approval is worth, and from whom.

A second person is somebody other than the owner of the execution. Whoever started it in a channel of the operator is
not that: one person could start a critical call and approve it alone.
"""

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.agent.ports.policy import Policy


def can_decide(
    policy: Policy, execution: ExecutionState, needs: ev.Needs | None, principal: str, assurance: ev.Assurance
) -> ev.Assurance | None:
    """Return what an approval by this person is worth in the execution; None when it is less than `needs`."""
    owner, starter = execution.principal, execution.starter
    if starter is not None and policy.person(starter.principal) == policy.person(principal):
        owner = principal
    return policy.worth(assurance, principal, owner, needs)


def has_voted(policy: Policy, suspension: SuspensionState, principal: str) -> bool:
    """Return whether the person behind the principal has endorsed the question, and cannot answer differently."""
    votes = suspension.endorsements if suspension.question.form is None else ()
    return any(policy.person(vote.principal) == policy.person(principal) for vote in votes)
