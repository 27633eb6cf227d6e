"""Commands and ids as people type them: in place of the MCP tools and the whole ids that a message names."""

import re
from collections.abc import Mapping

from planwarden.server.views.escaping import ID, shorten_id

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
_QUOTED_ID = re.compile(f"(?<=')({ID.pattern})(?=')")


def name_commands(text: str, program: str = "planwarden") -> str:
    """Return the text with commands in place of MCP tools, and short ids; `program` begins each command."""
    result = _TOOL.sub(lambda match: f"`{program} {COMMANDS[match[1]]}`", text)
    return _QUOTED_ID.sub(lambda match: shorten_id(match[1]), result)
