"""The handler of `guard_call`, which a host's own hook calls before each call of a tool.

Its answer decides only where the host takes it from its hook. A model that calls it gets a text, and no pass is taken
for one that shows that it is a model: what Claude Code calls for its model has an id in `_meta`.
"""

import json
from collections.abc import Mapping
from typing import Any

from mcp.types import CallToolResult, TextContent

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.guard.calls import build_call, build_claude_document, deny
from planwarden.server.guard.guard import HostGuard

MODELS_ID = "claudecode/toolUseId"
"""In `_meta` of what Claude Code calls for its model, and never of what a hook calls."""


async def run_guard(
    guard: HostGuard, arguments: Mapping[str, Any], principal: str, meta: Mapping[str, Any]
) -> CallToolResult:
    """Return one block of text with the JSON that the hook answers."""
    if MODELS_ID in meta:
        verdict = deny("Refused: only the host's hook calls guard_call. It lets nothing pass for a model.")
    else:
        values = (arguments.get(name) for name in ("host", "tool_name", "tool_input", "cwd", "session_id"))
        try:
            call = build_call(*values)
        except PlanwardenError as error:
            verdict = deny(f"Refused, because it could not be judged: {error.message}")
        else:
            verdict = await guard.decide(call, principal)
    return CallToolResult(content=[TextContent(type="text", text=json.dumps(build_claude_document(verdict)))])
