"""Commands and ids as people type them: in place of the MCP tools and the whole ids that a message names."""

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
SHORT_CHARS = 8
"""Of an id; commands take the beginning of one."""
# A name in quotes is what somebody wrote, such as the id of a step.
_TOOL = re.compile(rf"(?<![\w'\"`])({'|'.join(COMMANDS)})(?![\w'\"`])")
_ID = re.compile("[0-9a-f]{32}")
_QUOTED_ID = re.compile(f"(?<=')({_ID.pattern})(?=')")


def name_commands(text: str, program: str = "planwarden") -> str:
    """Return the text with commands in place of MCP tools, and short ids; `program` begins each command."""
    named = _TOOL.sub(lambda found: f"`{program} {COMMANDS[found[1]]}`", text)
    return _QUOTED_ID.sub(lambda found: shorten(found[1]), named)


def shorten(text: str) -> str:
    """Return the beginning of an id that planwarden made; every other text as it is."""
    return text[:SHORT_CHARS] if _ID.fullmatch(text) else text
