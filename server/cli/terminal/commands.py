"""The commands that people type in place of the MCP tools that a message names: errors are worded for MCP first."""

import re
from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "get_tool_schemas": "tools NAME",
    "search_tools": "tools",
    "get_execution": "show THREAD",
    "list_suspensions": "list",
    "retry_execution": "retry THREAD",
    "cancel_execution": "cancel THREAD",
    "run_plan": "run NAME",
}
# A name in quotes is what somebody wrote, such as the id of a step.
_TOOL = re.compile(rf"(?<![\w'\"`])({'|'.join(COMMANDS)})(?![\w'\"`])")


def name_commands(text: str, program: str = "planwarden") -> str:
    """Return the text with commands of the terminal in place of MCP tools; `program` begins each command."""
    return _TOOL.sub(lambda found: f"`{program} {COMMANDS[found[1]]}`", text)
