"""The audit of a log: every question to a person, every decision, every call that a grant, a rule or a confirmation let
through, every call that a rule denied, every call with a business key, every run of a saved plan.

The rows hold ids, digests, names of tools, and who decided through which channel. They hold no results, and no
arguments except the values that a rule of the operator looked at. So an operator can keep the rows and pass them on
after the executions are deleted. Each row's hash covers the row before it, and each row about an event has a digest of
the whole event.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from planwarden.agent.common.canonical import canonical_json, digest
from planwarden.agent.common.errors import DuplicateEffect
from planwarden.agent.common.struct import JsonValue, plain_value
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState

LogKind = Literal[
    "asked",
    "revised",
    "endorsed",
    "decided",
    "timed_out",
    "withdrawn",
    "reminded",
    "escalated",
    "granted",
    "covered",
    "allowed",
    "denied",
    "once_taken",
    "once_refused",
    "plan_run",
]
"""Kinds of rows that are made from the events of a log."""
Kind = Literal[
    LogKind,
    "pruned",
    "refused",
    "form_closed",
    "link_answered",
    "task_ended",
    "policy",
    "grant_made",
    "grant_revoked",
    "once_forgotten",
    "code_made",
    "code_refused",
    "session_opened",
    "session_ended",
    "key_added",
    "key_removed",
    "signature",
    "token_added",
    "token_revoked",
    "notice_failed",
    "guarded",
    "schedule_added",
    "schedule_paused",
    "schedule_resumed",
    "schedule_removed",
    "schedule_run",
]
TASK_KINDS: frozenset[Kind] = frozenset({"form_closed", "link_answered", "task_ended"})
"""Kinds of rows about an execution as an MCP task; see `planwarden.server.mcp.task_state`."""
POLICY_CHARS = 8
"""Length of the policy's digest in each row; the row of kind `policy` has the whole digest."""
DIGEST_CHARS = 32
"""Length of the other digests: 128 bits suffice to identify a question or a text, and make a row half as long."""
GENESIS = b"planwarden audit/v1"


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row before it has a place in the chain."""

    kind: Kind
    facts: dict[str, JsonValue]
    execution_id: str | None = None
    suspension_id: str | None = None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row as stored."""

    sequence: int
    """1 for the first row of the database, without gaps."""
    at: float
    """Unix seconds."""
    entry: AuditEntry
    hash: bytes
    """SHA-256 of this row and of the hash of the row before it."""


def build_audit_entries(recorded: Sequence[ev.Recorded], execution: ExecutionState, policy: str) -> list[AuditEntry]:
    """Return the rows that one transaction's events add, in order. `execution` is the state after the events."""
    entries: list[AuditEntry] = []
    for item in recorded:
        row = _describe(item.event, execution)
        if row is not None:
            kind, suspension_id, facts = row
            event_digest = digest(msgspec.to_builtins(item.event, enc_hook=plain_value))[:DIGEST_CHARS]
            entry = AuditEntry(
                kind=kind,
                execution_id=execution.execution_id,
                suspension_id=suspension_id,
                facts={**facts, "event": event_digest, "policy": policy[:POLICY_CHARS]},
            )
            entries.append(entry)
    return entries


_Row = tuple[Kind, str | None, dict[str, JsonValue]]
"""The kind of a row, the id of its suspension if it has one, and its facts."""


def _describe(event: ev.Event, execution: ExecutionState) -> _Row | None:
    match event:
        case ev.PlanAccepted() if (saved := execution.saved_plan) is not None:
            starter = execution.starter
            by = {} if starter is None else {"principal": starter.principal, "channel": starter.channel}
            return "plan_run", None, {"plan": saved.name, "version": saved.digest, **by}
        case ev.ToolCallIntended():
            return _describe_call(event, execution)
        case ev.ToolFailed():
            return _describe_refused(event, execution)
        case ev.Suspended(question=question) if question.addressee == "human":
            return "asked", question.suspension_id, _describe_question(question)
        case ev.SuspensionRevised(question=question):
            facts = {**_describe_question(question), "reason": event.reason[:200], **_describe_editor(question)}
            return "revised", question.suspension_id, facts
        case _:
            return _describe_answer(event, execution)


def _describe_answer(event: ev.Event, execution: ExecutionState) -> _Row | None:
    facts: dict[str, JsonValue]
    match event:
        case ev.SuspensionEndorsed():
            return "endorsed", event.suspension_id, _describe_decider(event)
        case ev.SuspensionReminded():
            facts = {"number": event.number, **({"to": list[JsonValue](event.to)} if event.to else {})}
            return "reminded" if event.kind == "remind" else "escalated", event.suspension_id, facts
        case ev.SuspensionDecided() if _is_for_person(execution, event.suspension_id):
            facts = {"approved": event.decision.approved, **_describe_decider(event)}
            if event.decision.reason is not None:
                facts["claim" if event.assurance == "claimed" else "reason"] = event.decision.reason[:200]
            return "decided", event.suspension_id, facts
        case ev.SuspensionTimedOut() if _is_for_person(execution, event.suspension_id):
            return "timed_out", event.suspension_id, {"outcome": event.outcome}
        case ev.SuspensionWithdrawn() if _is_for_person(execution, event.suspension_id):
            return "withdrawn", event.suspension_id, {"reason": event.reason[:200]}
        case _:
            return None


def _describe_call(event: ev.ToolCallIntended, execution: ExecutionState) -> _Row | None:
    """Return the row of a call that a grant, a rule or a decision about another call let through, or that has a
    business key; None for every other call."""
    suspension = execution.suspensions.get(event.suspension_id or "")
    is_covered = suspension is not None and suspension.question.call_id != event.call_id
    if event.grant_id is None and event.rule is None and event.once is None and not is_covered:
        return None
    call: dict[str, JsonValue] = {
        "call": event.call_id,
        "tool": execution.call(event.call_id).tool_name,
        "arguments": digest(event.arguments)[:DIGEST_CHARS],
    }
    if event.once is not None:
        call["once"] = event.once.key
    if event.grant_id is not None:
        return "granted", None, {"grant": event.grant_id, **call}
    if event.rule is not None:
        return "allowed", None, {**call, **_describe_rule(event.rule)}
    return "covered" if is_covered else "once_taken", event.suspension_id, call


def _describe_refused(event: ev.ToolFailed, execution: ExecutionState) -> _Row | None:
    """Return the row of a call that a rule denied, or that was refused because another call has its key; None for
    others."""
    facts: dict[str, JsonValue] = {"call": event.call_id, "tool": execution.call(event.call_id).tool_name}
    if event.rule is not None:
        return "denied", None, facts | _describe_rule(event.rule)
    return ("once_refused", None, facts) if event.code == DuplicateEffect.code else None


def _is_for_person(execution: ExecutionState, suspension_id: str) -> bool:
    suspension = execution.suspensions.get(suspension_id)
    return suspension is not None and suspension.question.addressee == "human"


def _describe_question(question: ev.Question) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {"tool": question.tool_name, "digest": question.digest[:DIGEST_CHARS]}
    if question.kind in ("reconcile", "review"):
        facts["kind"] = question.kind
    if question.needs is not None:
        facts["needs"] = question.needs
    if question.quorum > 1:
        facts["quorum"] = question.quorum
    if question.revision > 1:
        facts["revision"] = question.revision
    return facts if question.rule is None else facts | _describe_rule(question.rule)


def _describe_rule(rule: ev.MatchedRule) -> dict[str, JsonValue]:
    return {"rule": rule.number, "says": rule.words, "matched": list[JsonValue](rule.matched)}


def _describe_editor(question: ev.Question) -> dict[str, JsonValue]:
    """Return who edited the arguments; empty when something else made this revision."""
    edit = question.edits[-1] if question.edits else None
    if edit is None or edit.revision != question.revision:
        return {}
    return {"assurance": edit.assurance, "channel": edit.channel, "principal": edit.principal}


def _describe_decider(event: ev.SuspensionDecided | ev.SuspensionEndorsed) -> dict[str, JsonValue]:
    facts: dict[str, JsonValue] = {
        "assurance": event.assurance,
        "channel": event.channel,
        "principal": event.principal,
        "digest": event.digest[:DIGEST_CHARS],
    }
    if event.rendered:
        facts["rendered"] = event.rendered[:DIGEST_CHARS]
    return facts


def hash_row(before: bytes, sequence: int, at: float, entry: AuditEntry, facts: str | None = None) -> bytes:
    """Return the SHA-256 over the hash of the previous row (`GENESIS` for the first row) and everything in this row.

    `facts` is the canonical JSON of the entry's facts, if the caller has it.
    """
    head = canonical_json([sequence, repr(float(at)), entry.kind, entry.execution_id, entry.suspension_id])
    body = f"{head[:-1]},{canonical_json(entry.facts) if facts is None else facts}]"
    return hashlib.sha256(before + b"\0" + body.encode()).digest()
