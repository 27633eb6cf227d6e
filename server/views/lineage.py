"""Where an execution comes from: the saved plan that it runs, and the execution that it goes on from."""

import msgspec

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState

MAX_PLANS = 5


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where an execution, and perhaps one of its steps, comes from."""

    saved_plan: ev.PlanVersion | None = None
    """The saved plan that it runs."""
    step_plans: tuple[ev.PlanVersion, ...] = ()
    """The saved plan in it that the step belongs to; several where the log does not say which of them."""
    step_place: str = ""
    """The step in whose place that plan stands."""
    retry_of: str | None = None
    """The execution that it goes on from."""
    taken_over: tuple[str, ...] = ()
    """Steps whose results are those of earlier executions."""
    is_rehearsal: bool = False
    is_revised: bool = False
    """The plan is no longer what the saved plan says."""


def build_lineage(execution: ExecutionState, step_id: str | None) -> Lineage:
    """Returns where the execution comes from, and where the step does."""
    place = _find_place(execution, step_id or "")
    return Lineage(
        saved_plan=execution.saved_plan,
        step_plans=execution.used_plans[:MAX_PLANS] if place else (),
        step_place=place,
        retry_of=execution.retry_of,
        taken_over=tuple(name for name, state in execution.steps.items() if state.taken_from is not None),
        is_rehearsal=execution.options.rehearse,
        is_revised=execution.is_revised,
    )


def _find_place(execution: ExecutionState, step_id: str) -> str:
    """The step in whose place a saved plan stands to which the step belongs; empty if nothing proves that one does."""
    # A server answers its first requests without the plans in plans.
    from planwarden.agent.core.scopes import SUFFIX

    scopes = {} if execution.plan is None else execution.plan.scopes or {}
    parts = step_id.split(".")
    places = (".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1))
    return next((place for place in places if f"{place}{SUFFIX}" in scopes), "")
