"""Finds the required tools of a step that no call has proven yet; `control/decide.py` uses this to complete steps.

Only recorded, successful results count, over the whole history of the step. A model's words about a tool do not count.
Names and rules are those of the Tool-Aware Execution Framework (TAEF), described in docs/concepts.md.

A rehearsal makes only calls that read. The result of a step with any other call stays unknown. A later step that
only has to wait for that step still runs. A later step that takes the unknown result is skipped, and so is one whose
calls a model writes, because the model would write them from that result.
"""

from collections.abc import Iterator

from planwarden.agent.core.execution.state import STEP_TERMINAL, ExecutionState, StepState
from planwarden.agent.core.plan.plan import PlanStep, list_step_tools
from planwarden.agent.core.tool import ToolDefinition


def find_missing_tools(step: StepState) -> tuple[str, ...]:
    """Return the required tools, in the plan's order, that have no recorded, successful result in this step."""
    proven = {call.tool_name for call in step.calls if call.status == "succeeded"}
    return tuple(name for name in step.step.required_tools if name not in proven)


def find_needed_tools(execution: ExecutionState) -> Iterator[str]:
    """Yield the names of the tools that remaining steps use, as often as they use them."""
    for state in execution.steps.values():
        if state.status not in STEP_TERMINAL:
            yield from list_step_tools(state.step)


def runs_in_rehearsal(definition: ToolDefinition) -> bool:
    """Return True for a tool that only reads, by its effect and by its risk, and asks nobody."""
    return definition.effect == "read" and definition.risk == "read" and not definition.is_blocking


def is_unknown_in_rehearsal(execution: ExecutionState, state: StepState) -> bool:
    """Return whether the step, or the step that caused its skip, was only rehearsed, so that its end is unknown."""
    if not execution.options.rehearse:
        return False
    while state.status == "skipped" and (cause := execution.steps.get(state.skipped_by or "")) is not None:
        state = cause
    return state.status == "rehearsed"


def find_missing_result(execution: ExecutionState, state: StepState) -> str | None:
    """Return the id of the first step whose result this step takes but only a real run can produce, or None."""
    unknown = (name for name in state.needs if is_unknown_in_rehearsal(execution, execution.steps[name]))
    return next((name for name in unknown if needs_result(state.step, name)), None)


def needs_result(step: PlanStep, step_id: str) -> bool:
    """Return whether the step takes the result of `step_id`: by a binding, or because a model writes its calls."""
    return needs_model(step) or any(binding.reference.step_id == step_id for binding in step.list_bindings())


def needs_model(step: PlanStep) -> bool:
    """Return True when the plan does not list all calls of the step."""
    return not step.tool_calls or bool(set(step.required_tools) - {call.tool_name for call in step.tool_calls})
