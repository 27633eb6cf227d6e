"""Whose an execution is when a person decides in it.

A second person is somebody other than its owner. Whoever started it in a channel of the operator is not that: one
person could start a critical call and approve it alone.
"""

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.policy import Policy


def find_owner_for(policy: Policy, execution: ExecutionState, decider: str) -> str:
    """The owner with whom the policy compares the decider: the decider itself, if that person started the execution."""
    starter = execution.starter
    if starter is not None and policy.person(starter.principal) == policy.person(decider):
        return decider
    return execution.principal
