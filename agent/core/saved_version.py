"""Which saved plan a retry or fork is a run of.

`saved_plan` says of which saved plan an execution is a run. A model that revises the plan afterwards, or a person in a
review, makes another plan of it.
"""

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import Plan, plan_to_json
from planwarden.agent.core.state import ExecutionState


def keep_version(source: ExecutionState, plan: Plan) -> ev.PlanVersion | None:
    """Return the version that an execution with `plan` records when it goes on from `source`; None for another plan."""
    if source.plan is None or source.is_revised or source.plan != plan:
        return None
    # Python takes `1` for `true`, and a tool does not.
    is_same = canonical_json(plan_to_json(source.plan)) == canonical_json(plan_to_json(plan))
    return source.saved_plan if is_same else None
