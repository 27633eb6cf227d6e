"""One append as the parameter of the function `append_all`, and what the function returns as the port's errors."""

import base64
from random import getrandbits
from typing import Any

import msgspec

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import (
    BudgetSpent,
    GrantUsedUp,
    GuardFailed,
    KeyUsed,
    LeaseLost,
    PlanUnfinished,
    PlanwardenError,
    StoreError,
    ThreadBusy,
    ThreadMovedOn,
    VersionConflict,
)
from planwarden.agent.core.audit import build_audit_entries
from planwarden.agent.ports.budgets_and_keys import MAX_SHARES, ROUNDING
from planwarden.agent.ports.store import Append, Lease
from planwarden.storage.budgets_and_keys import Holdings, project_holdings
from planwarden.storage.codec import encode_events
from planwarden.storage.projection import (
    RISKS,
    ExecutionEnded,
    GrantUsed,
    PendingWithdrawn,
    RowChange,
    SuspensionClosed,
    SuspensionOpened,
    SuspensionRowReminded,
    SuspensionRowRevised,
    SynopsisWritten,
    count_grant_uses,
    project,
)
from planwarden.storage.sql.rows import checksum_of, read_key
from planwarden.storage.sql.synopses import join_tools


def encode_append(append: Append) -> str:
    """The append as JSON. Its token names it, also when it is sent a second time.

    Raises:
        StoreError: an id has a NUL, which PostgreSQL has no text for.
    """
    execution, lease, start = append.execution, append.lease, append.start
    body = encode_events(recorded.event for recorded in append.recorded)
    first, at = append.expected_version + 1, append.recorded[0].at
    projected = project(append)
    holdings = project_holdings(append)
    described: dict[str, Any] = {
        "token": f"{getrandbits(64):016x}",
        "execution_id": execution.execution_id,
        "thread_id": execution.thread_id,
        "principal": execution.principal,
        "status": execution.status,
        "version": execution.version,
        "expected": append.expected_version,
        "owner": append.owner,
        "lease_owner": lease and lease.owner,
        "lease_fence": lease and lease.fence,
        "acquire": append.acquire,
        "release": append.release,
        "at": at,
        "body": body,
        "checksum": checksum_of(execution.execution_id, first, float(at), body),
    }
    # What is missing costs the database nothing, and most appends have little of it.
    rare = {
        "guards": append.guards,
        "start": start,
        "progress": projected.progress,
        "rows": [_describe(change) for change in projected.changes],
        "uses": list(count_grant_uses(projected.changes).items()),
        "audit": [
            (entry.kind, entry.execution_id, entry.suspension_id, canonical_json(entry.facts), append.policy)
            for entry in build_audit_entries(append.recorded, execution, append.policy)
        ],
        "artifacts": [
            (found.artifact_id, found.media_type, base64.b64encode(found.data).decode()) for found in append.artifacts
        ],
        "notifications": [
            (n.notification_id, n.channel, n.kind, n.execution_id, n.suspension_id, facts, n.created_at)
            for n, facts in ((found, canonical_json(found.facts)) for found in append.notifications)
        ],
        "holdings": holdings and _describe_holdings(holdings),
    }
    described.update((name, value) for name, value in rare.items() if value)
    return msgspec.json.encode(described).decode()


def _describe_holdings(holdings: Holdings) -> dict[str, Any]:
    return {
        "locks": holdings.locks,
        "freed": holdings.freed,
        "shares": [(share.budget, share.holder, share.amount, share.ends_at) for share in holdings.shares],
        "wanted": [
            {
                "budget": wanted.budget,
                "amount": wanted.amount,
                "count": wanted.count,
                "limit": wanted.limit,
                "most": wanted.limit * ROUNDING,
                "most_count": MAX_SHARES,
                "free": wanted.free,
            }
            for wanted in holdings.wanted
        ],
        "keys": [
            {
                "key": key.held.key,
                "tool_name": key.held.tool_name,
                "fields": canonical_json(key.held.values),
                "holder": key.held.holder,
                "principal": key.held.principal,
                "taken_at": key.held.taken_at,
                "ends_at": key.held.ends_at,
                "free": key.free,
            }
            for key in holdings.keys
        ],
    }


def _describe(change: RowChange) -> dict[str, Any]:
    match change:
        case SuspensionOpened(question=question):
            return {
                "change": "opened",
                "suspension_id": question.suspension_id,
                "addressee": question.addressee,
                "risk_rank": RISKS.index(question.risk),
                "digest": question.digest,
                "expires_at": question.expires_at,
                "alarm_at": change.alarm_at,
            }
        case SuspensionRowRevised(question=question, alarm_at=alarm_at):
            return {
                "change": "revised",
                "suspension_id": question.suspension_id,
                "risk_rank": RISKS.index(question.risk),
                "digest": question.digest,
                "expires_at": question.expires_at,
                "alarm_at": alarm_at,
            }
        case SuspensionRowReminded(suspension_id=suspension_id, alarm_at=alarm_at):
            return {"change": "reminded", "suspension_id": suspension_id, "alarm_at": alarm_at}
        case SuspensionClosed(suspension_id=suspension_id, status=status, at=at):
            return {"change": "closed", "suspension_id": suspension_id, "status": status, "at": at}
        case GrantUsed(grant_id=grant_id):
            return {"change": "used", "grant_id": grant_id}
        case PendingWithdrawn(at=at):
            return {"change": "withdrawn", "at": at}
        case SynopsisWritten(synopsis=synopsis):
            return {
                "change": "synopsis",
                "title": synopsis.title,
                "is_goal": synopsis.is_goal,
                "host": synopsis.host,
                "saved_plan": synopsis.saved_plan,
                "tools": join_tools(synopsis.tools),
                "search": synopsis.search,
            }
        case ExecutionEnded(fault=fault):
            return {"change": "fault", "fault": fault}


def read_outcome(append: Append, outcome: str, fence: int | None, detail: Any) -> Lease | None:
    """The lease that the writer holds after the append; raises what the port says of a refusal."""
    if outcome != "stored":
        raise _explain(append, outcome, detail)
    if append.release or (append.lease is None and not append.acquire):
        return None
    if append.lease is not None:
        return append.lease
    if fence is None:
        raise StoreError("PostgreSQL gave no fence for an execution that it stored")
    return Lease(append.execution.execution_id, append.owner, fence)


def _explain(append: Append, outcome: str, detail: Any) -> PlanwardenError:
    match outcome:
        case "not pending":
            return GuardFailed(f"suspension {detail['suspension_id']!r} is no longer pending in that revision")
        case "expired" | "not expired":
            return GuardFailed(f"suspension {detail['suspension_id']!r} has {outcome}")
        case "key used":
            return KeyUsed()
        case "thread moved on":
            return ThreadMovedOn()
        case "plan unfinished":
            found_id, found_thread, key = detail
            return PlanUnfinished(found_id, found_thread, key, (append.start and append.start.plan) or "")
        case "grant used up":
            return GrantUsedUp(detail[0])
        case "budget spent":
            return BudgetSpent(detail["budget"], detail["left"], detail["room_at"])
        case "duplicate effect":
            return read_key(tuple(detail["row"])).as_refusal()
        case _:
            return _explain_conflict(append, outcome, detail)


def _explain_conflict(append: Append, outcome: str, detail: Any) -> PlanwardenError:
    execution_id, thread_id = append.execution.execution_id, append.execution.thread_id
    match outcome:
        case "exists":
            return VersionConflict(f"execution {execution_id!r} exists already")
        case "thread busy":
            return ThreadBusy(f"thread {thread_id!r} has an unfinished execution")
        case "unknown":
            return VersionConflict(f"execution {execution_id!r} does not exist")
        case "version":
            return VersionConflict(f"execution {execution_id!r} has grown to version {detail[0]}")
        case "lease lost":
            return LeaseLost(f"execution {execution_id!r} is owned by another process")
        case _:
            return StoreError(f"PostgreSQL answered {outcome!r} to an append; update planwarden")
