"""The tools that an execution still needs."""

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.toolbox import Toolbox

UNFINISHED_STEPS = ("pending", "in_progress", "suspended")


def find_needed_tools(execution: ExecutionState) -> set[str]:
    """The names of the tools that the remaining steps name."""
    return {
        name
        for state in execution.steps.values()
        if state.status in UNFINISHED_STEPS
        for name in (*state.step.required_tools, *(call.tool_name for call in state.step.tool_calls))
    }


def find_missing_tools(execution: ExecutionState, tools: Toolbox) -> list[str]:
    """The tools that the remaining steps name and that this process does not have, by name."""
    return sorted(
        name for name in find_needed_tools(execution) if tools.get(name) is None and not tools.is_awaited(name)
    )
