"""What a retry or fork keeps of the saved plans that a plan was made of.

`saved_plan` says of which saved plan an execution is a run. Whoever revises the plan afterwards, a model or a person in
a review, makes another plan of it. Steps that stay as they are keep the plan that they came from.
"""

from typing import NamedTuple

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import Plan, PlanStep, plan_to_json
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.used_plans import UsedPlans, combine_used


class PlanVersions(NamedTuple):
    """What a plan was made of."""

    saved: ev.PlanVersion | None = None
    used: UsedPlans = ()


def keep_versions(source: ExecutionState, plan: Plan, used: UsedPlans = ()) -> PlanVersions:
    """Returns what an execution with `plan` records that goes on from `source`: the same versions for the same plan.

    A plan that differs, or that was revised before, is no saved version. It records the plans that it was sent to use,
    and those that its unchanged steps came from.
    """
    if source.plan is None:
        return PlanVersions(used=used)
    is_saved = not source.is_revised and _is_same(source.plan, plan)
    before = {step.step_id: step for step in source.plan.steps}
    kept = {step.step_id for step in plan.steps if _is_same_step(before.get(step.step_id), step)}
    return PlanVersions(source.saved_plan if is_saved else None, combine_used(source.used_plans, used, kept))


def _is_same_step(one: PlanStep | None, other: PlanStep) -> bool:
    return one is not None and _is_same(Plan(steps=(one,)), Plan(steps=(other,)))


def _is_same(one: Plan, other: Plan) -> bool:
    # Python takes `1` for `true`, and a tool does not.
    return one == other and canonical_json(plan_to_json(one)) == canonical_json(plan_to_json(other))
