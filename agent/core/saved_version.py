"""Whether an execution runs a saved plan exactly as its files said, and what a retry or fork keeps of that.

`saved_plan` and `used_plans` say what the accepted plan was made of. Whoever revises the plan afterwards, a model or a
person in a review, makes another plan of it, and the versions say only where it came from. What is granted to a saved
plan holds for the exact plan alone.
"""

from typing import NamedTuple

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import Plan, plan_to_json
from planwarden.agent.core.state import ExecutionState


class PlanVersions(NamedTuple):
    """What a plan was made of."""

    saved: ev.PlanVersion | None = None
    used: tuple[ev.PlanVersion, ...] = ()


def is_saved_version(execution: ExecutionState) -> bool:
    """Whether the plan is, step for step, what the saved plan says whose version the execution recorded.

    False as soon as anybody revised the plan, also when the revisions cancel each other out.
    """
    return execution.saved_plan is not None and execution.plan is not None and not execution.is_revised


def keep_versions(source: ExecutionState, plan: Plan, used: tuple[ev.PlanVersion, ...] = ()) -> PlanVersions:
    """Returns what an execution with `plan` records that goes on from `source`: the same versions for the same plan.

    A plan that differs, or that was revised before, is no saved version; it records those that it was sent to use.
    """
    if source.plan is None or source.is_revised or not _is_same(source.plan, plan):
        return PlanVersions(used=used)
    return PlanVersions(source.saved_plan, source.used_plans)


def _is_same(one: Plan, other: Plan) -> bool:
    # Python takes `1` for `true`, and a tool does not.
    return one == other and canonical_json(plan_to_json(one)) == canonical_json(plan_to_json(other))
