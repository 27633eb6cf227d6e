"""Where an execution comes from: the saved plan that it runs, and the execution that it goes on from."""

import msgspec

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where an execution, and perhaps one of its steps, comes from."""

    saved_plan: ev.PlanVersion | None = None
    """The saved plan that it runs."""
    step_plan: ev.UsedPlan | None = None
    """The saved plan within its plan that the step came from, as the log says; None if somebody changed the step."""
    retry_of: str | None = None
    """The execution that it goes on from."""
    taken_over: tuple[str, ...] = ()
    """Steps whose results are those of earlier executions."""
    is_rehearsal: bool = False
    is_revised: bool = False
    """The plan is no longer what the saved plan says."""


def build_lineage(execution: ExecutionState, step_id: str | None) -> Lineage:
    """Returns where the execution comes from, and where the step does."""
    return Lineage(
        saved_plan=execution.saved_plan,
        step_plan=_find_origin(execution.used_plans, step_id) if execution.used_plans and step_id is not None else None,
        retry_of=execution.retry_of,
        taken_over=tuple(name for name, state in execution.steps.items() if state.taken_from is not None),
        is_rehearsal=execution.options.rehearse,
        is_revised=execution.is_revised,
    )


def _find_origin(used: tuple[ev.UsedPlan, ...], step_id: str) -> ev.UsedPlan | None:
    # A server answers its first requests without the plans in plans.
    from planwarden.agent.core.used_plans import find_origin

    return find_origin(used, step_id)
