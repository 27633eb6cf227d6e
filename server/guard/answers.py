"""The guard's answer in the words of each host.

As a command, a refusal is exit code 2 with the reason on standard error and nothing on standard output: whatever a host
makes of odd output, that blocks. A call may run only after exit code 0 with exactly `{}`, which the shell around the
command checks, or with the host's own JSON.
"""

import json

import msgspec
from pydantic import JsonValue

from planwarden.server.guard.verdict import Verdict

BLOCKED = 2
MAX_REASON_CHARS = 4_000


class CommandAnswer(msgspec.Struct, frozen=True):
    """What the command prints, and how it ends."""

    out: str
    error: str
    code: int


def build_command_answer(host: str, verdict: Verdict) -> CommandAnswer:
    """Returns the answer of `planwarden guard hook HOST`, also for a host that is not known."""
    reason = f"planwarden: {verdict.reason[:MAX_REASON_CHARS]}"
    if verdict.then == "deny":
        document: JsonValue = {"permission": "deny", "user_message": reason, "agent_message": reason}
        return CommandAnswer(json.dumps(document) if host == "cursor" else "", reason, BLOCKED)
    if host == "cursor":
        # Cursor's own rules go on; its hooks can only be trusted to deny.
        return CommandAnswer("{}", "", 0)
    if host == "claude-code":
        return CommandAnswer(json.dumps(build_claude_document(verdict)), "", 0)
    if host == "opencode":
        return CommandAnswer(json.dumps({"planwarden": verdict.then}), "", 0)
    return CommandAnswer("{}", "", 0)


def build_claude_document(verdict: Verdict) -> JsonValue:
    """Returns the JSON that a `PreToolUse` hook of Claude Code answers with."""
    if verdict.then == "no opinion":
        return {}
    decision = "allow" if verdict.then == "allow" else "deny"
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": decision,
            "permissionDecisionReason": f"planwarden: {verdict.reason[:MAX_REASON_CHARS]}",
        }
    }
