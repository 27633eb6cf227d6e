"""Which saved plan a retry or fork is a run of.

`saved_plan` says of which saved plan an execution is a run. A model that revises the plan afterwards, or a person in a
review, makes another plan of it.
"""

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import Plan
from planwarden.agent.core.state import ExecutionState


def keep_version(source: ExecutionState, plan: Plan) -> ev.PlanVersion | None:
    """Return the version that an execution with `plan` records when it goes on from `source`; None for another plan."""
    return None if source.is_revised or not is_same_json(source.plan, plan) else source.saved_plan
