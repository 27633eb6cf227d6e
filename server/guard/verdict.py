"""What the guard says about one call, and how each host is told."""

import json
from typing import Literal

import msgspec
from pydantic import JsonValue


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the host."""

    then: Literal["allow", "no opinion", "deny"]
    """`allow` lets the call run; with `no opinion` the host's own rules decide, as without planwarden."""
    reason: str = ""
    """Why, for the model and the person who reads along."""
    suspension_id: str | None = None
    """The question that is open about the call."""
    facts: dict[str, JsonValue] | None = None
    """What the audit records of a decision by rule; None for what it need not record."""


def deny(reason: str, *, facts: dict[str, JsonValue] | None = None) -> Verdict:
    return Verdict(then="deny", reason=reason, facts=facts)


BLOCKED = 2
MAX_REASON_CHARS = 4_000


class CommandAnswer(msgspec.Struct, frozen=True):
    """What the command prints, and how it ends."""

    out: str
    error: str
    code: int


def build_command_answer(host: str, verdict: Verdict) -> CommandAnswer:
    """Return the answer of `planwarden guard hook HOST`, also for a host that is not known."""
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
    """Return the JSON that a `PreToolUse` hook of Claude Code answers with."""
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
