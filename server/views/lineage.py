"""Where an execution comes from: the saved plan that it runs, and the execution that it goes on from."""

import msgspec

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where an execution comes from."""

    saved_plan: ev.PlanVersion | None = None
    """The saved plan that it runs."""
    retry_of: str | None = None
    """The execution that it goes on from."""
    taken_over: tuple[str, ...] = ()
    """Steps whose results are those of earlier executions."""
    is_rehearsal: bool = False
    is_revised: bool = False
    """The plan is no longer what the saved plan says."""


def build_lineage(execution: ExecutionState) -> Lineage:
    """Return where the execution comes from."""
    return Lineage(
        saved_plan=execution.saved_plan,
        retry_of=execution.retry_of,
        taken_over=tuple(name for name, state in execution.steps.items() if state.taken_from is not None),
        is_rehearsal=execution.options.rehearse,
        is_revised=execution.is_revised,
    )
