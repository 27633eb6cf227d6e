"""TAEF: which required tools the log proves for a step; `control/decide.py` completes the step if none is missing.

Only recorded, successful results count, over the whole history of the step. What a model wrote about a tool does not.
Names and rules are those of the Tool-Aware Execution Framework, described in docs/concepts.md.
"""

from collections.abc import Iterator

from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState, StepState

UNFINISHED_STEPS = ("pending", "in_progress", "suspended")


def find_missing_tools(step: StepState) -> tuple[str, ...]:
    """Return the required tools, in the plan's order, that have no recorded, successful result in this step."""
    proven = {call.tool_name for call in step.calls if call.status == "succeeded"}
    return tuple(name for name in step.step.required_tools if name not in proven)


def find_needed_tools(execution: ExecutionState) -> set[str]:
    """Return the names of the tools that the remaining steps name."""
    return {
        name
        for state in execution.steps.values()
        if state.status in UNFINISHED_STEPS
        for name in (*state.step.required_tools, *(call.tool_name for call in state.step.tool_calls))
    }


def find_empty_lists(arguments: JsonValue, results: tuple[JsonValue, ...]) -> Iterator[str]:
    """Yield one sentence for each empty list at the top level if an earlier step returned a list with entries."""
    if not isinstance(arguments, dict) or not any(_has_entries(result) for result in results):
        return
    for key, value in arguments.items():
        if value == []:
            yield f"/{key} is empty although earlier steps returned data for it"


def _has_entries(result: JsonValue) -> bool:
    if isinstance(result, dict):
        return any(isinstance(value, list) and value for value in result.values())
    return isinstance(result, list) and bool(result)
