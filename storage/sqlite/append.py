"""One append to the SQLite file: the conditions it depends on, its events, and the rows derived from them."""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from planwarden.agent.common.errors import (
    GuardFailed,
    KeyUsed,
    LeaseLost,
    PlanUnfinished,
    StoreError,
    ThreadBusy,
    ThreadMovedOn,
    VersionConflict,
)
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Append, Guard, Lease
from planwarden.storage.budgets_and_keys import Holdings
from planwarden.storage.projection import (
    RISKS,
    ExecutionEnded,
    GrantUsed,
    Projection,
    RowChange,
    SuspensionClosed,
    SuspensionOpened,
    SuspensionRowReminded,
    SuspensionRowRevised,
    SynopsisWritten,
    count_grant_uses,
)
from planwarden.storage.sql import budgets_and_keys as sql_holdings
from planwarden.storage.sql import grants as sql_grants
from planwarden.storage.sql.notifications import add_notifications
from planwarden.storage.sql.rows import checksum_of, read_header
from planwarden.storage.sql.synopses import list_values
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.transaction import SqliteTransaction, add_entries


def check_start(connection: sqlite3.Connection, append: Append) -> None:
    """Raises `KeyUsed`, `ThreadMovedOn` or `PlanUnfinished` when it must not start, before anything is written."""
    start, principal = append.start, append.execution.principal
    if start is None:
        return
    if start.key is not None and connection.execute(SQL["find_start"], (principal, start.key)).fetchone() is not None:
        raise KeyUsed
    if start.after is not None:
        newest = connection.execute(SQL["thread_end"], (append.execution.thread_id,)).fetchone()
        if newest is None or tuple(newest) != (start.after, start.after_version):
            raise ThreadMovedOn
    if start.plan is not None and start.is_only:
        found = connection.execute(SQL["unfinished_plan"], (start.plan, principal)).fetchone()
        if found is not None:
            execution_id, thread_id, key = found
            raise PlanUnfinished(execution_id, thread_id, key, start.plan)


def keep_start(connection: sqlite3.Connection, append: Append, number: int) -> None:
    """Store the key of a request; `number` is the execution's row."""
    start = append.start
    if start is not None and start.key is not None:
        connection.execute(SQL["add_start"], (append.execution.principal, start.key, number, start.request))


_Progress = tuple[int | None, int | None]
"""How many steps there are and are done; None for what is as before."""


class PreparedAppend(msgspec.Struct, frozen=True, gc=False):
    """An append with everything that is derived from it before its transaction begins."""

    append: Append
    body: str
    projected: Projection
    entries: Sequence[AuditEntry]
    holdings: Holdings | None
    clock: Clock
    lease_s: float

    def write(self, connection: sqlite3.Connection) -> Lease | None:
        """Write it inside the open transaction; returns the lease that the writer holds afterwards.

        Raises:
            VersionConflict, LeaseLost, GuardFailed, GrantUsedUp, BudgetSpent, DuplicateEffect, StartRefused,
            ThreadBusy: a condition does not hold; the caller rolls back.
        """
        return _write(connection, self, now=self.clock.now(), leased_until=self.clock.steady() + self.lease_s)


def _write(
    connection: sqlite3.Connection, prepared: PreparedAppend, *, now: float, leased_until: float
) -> Lease | None:
    """`now` is in Unix seconds, `leased_until` in steady seconds."""
    append, projected, entries, holdings = prepared.append, prepared.projected, prepared.entries, prepared.holdings
    _check(connection, append, projected.changes, holdings, now)
    progress = projected.progress and (projected.progress.step_count, projected.progress.steps_done)
    try:
        number, lease = _advance(connection, append, progress or (None, None), now, leased_until)
    except sqlite3.IntegrityError as error:
        raise _explain_duplicate(append, error) from error
    first, at = append.expected_version + 1, append.recorded[0].at
    checksum = checksum_of(append.execution.execution_id, first, float(at), prepared.body)
    connection.execute(SQL["add_events"], (number, first, at, prepared.body, checksum))
    keep_start(connection, append, number)
    for change in projected.changes:
        _write_row(connection, number, append, change, now)
    if holdings is not None:
        sql_holdings.write_holdings(SqliteTransaction(connection), holdings, now)
    if entries:
        add_entries(connection, entries, append.recorded[0].at, append.policy)
    for found in append.artifacts:
        connection.execute(SQL["add_artifact"], (number, found.artifact_id, found.media_type, found.data))
    if append.notifications:
        add_notifications(SqliteTransaction(connection), append.notifications, now)
    return lease


def _check(
    connection: sqlite3.Connection,
    append: Append,
    changes: tuple[RowChange, ...],
    holdings: Holdings | None,
    now: float,
) -> None:
    """All conditions but those of the first write."""
    for guard in append.guards:
        _check_guard(connection, guard, now)
    check_start(connection, append)
    if changes and (uses := count_grant_uses(changes)):
        sql_grants.check_uses(SqliteTransaction(connection), uses, now)
    if holdings is not None:
        sql_holdings.check_holdings(SqliteTransaction(connection), holdings, now)
    if changes and isinstance(ended := changes[-1], ExecutionEnded) and ended.goes_on:
        _check_thread(connection, append)


def _advance(
    connection: sqlite3.Connection, append: Append, progress: _Progress, now: float, leased_until: float
) -> tuple[int, Lease | None]:
    """The execution's row number and the lease the writer holds now; the only conditional write of an append."""
    execution, lease = append.execution, append.lease
    if append.expected_version == 0:
        return _create(connection, append, progress, now, leased_until)
    if lease is not None and lease.row is not None:
        number, owner, fence, until = lease.row, lease.owner, lease.fence, leased_until
    else:
        found = connection.execute(SQL["find_row"], (execution.execution_id,)).fetchone()
        if found is None:
            raise _explain_conflict(connection, append)
        number, owner, fence, until = found
        if lease is not None:
            owner, fence, lease = lease.owner, lease.fence, replace(lease, row=number)
    which = number, execution.execution_id, append.expected_version, owner, fence
    values = execution.version, now, *progress
    if lease is not None and execution.status == "running" and not append.release:
        if connection.execute(SQL["extend_running"], (*values, leased_until, *which)).rowcount:
            return number, lease
    elif lease is None and append.acquire:
        which = number, execution.execution_id, append.expected_version, None, fence
        lease = Lease(execution.execution_id, append.owner, fence + 1, row=number)
    if lease is not None:
        owner, fence, until = (None, lease.fence, 0.0) if append.release else (lease.owner, lease.fence, leased_until)
    if not connection.execute(
        SQL["extend_execution"], (*values, until, execution.status, owner, fence, *which)
    ).rowcount:
        raise _explain_conflict(connection, append)
    return number, None if append.release else lease


def _create(
    connection: sqlite3.Connection, append: Append, progress: _Progress, now: float, leased_until: float
) -> tuple[int, Lease | None]:
    execution = append.execution
    holds = append.acquire and not append.release
    number = connection.execute(
        SQL["create_execution"],
        (
            execution.execution_id,
            execution.thread_id,
            execution.principal,
            execution.status,
            execution.version,
            now,
            now,
            append.owner if holds else None,
            leased_until if holds else 0.0,
            append.start and append.start.plan,
            *progress,
        ),
    ).lastrowid
    if number is None:
        raise StoreError("SQLite gave no row number for a new execution")
    return number, Lease(execution.execution_id, append.owner, 1, row=number) if holds else None


def _check_thread(connection: sqlite3.Connection, append: Append) -> None:
    """What was finished goes on only where its thread has nothing else unfinished."""
    found = connection.execute(SQL["unfinished_of_thread"], (append.execution.thread_id,)).fetchone()
    if found is not None and found[0] != append.execution.execution_id:
        raise _thread_busy(append)


def _check_guard(connection: sqlite3.Connection, guard: Guard, now: float) -> None:
    found = connection.execute(SQL["read_guarded"], (guard.suspension_id,)).fetchone()
    if found is None or found[0] != "pending" or found[1] != guard.digest:
        raise GuardFailed(f"suspension {guard.suspension_id!r} is no longer pending in that revision")
    passed = found[2] is not None and found[2] <= now
    if guard.deadline != "any" and passed != (guard.deadline == "passed"):
        raise GuardFailed(f"suspension {guard.suspension_id!r} has {'' if passed else 'not '}expired")


def _write_row(connection: sqlite3.Connection, number: int, append: Append, change: RowChange, now: float) -> None:
    if isinstance(change, SuspensionOpened):
        question = change.question
        connection.execute(
            SQL["open_suspension"],
            (
                question.suspension_id,
                number,
                question.addressee,
                RISKS.index(question.risk),
                question.digest,
                append.recorded[0].at,
                question.expires_at,
                change.alarm_at,
            ),
        )
    elif isinstance(change, SuspensionRowRevised):
        question = change.question
        rank = RISKS.index(question.risk)
        values = (question.digest, rank, question.expires_at, change.alarm_at, question.suspension_id)
        connection.execute(SQL["revise_suspension"], values)
    elif isinstance(change, SuspensionRowReminded):
        connection.execute(SQL["remind_suspension"], (change.alarm_at, change.suspension_id))
    elif isinstance(change, SuspensionClosed):
        connection.execute(SQL["answer_suspension"], (change.status, change.at, change.suspension_id))
    elif isinstance(change, GrantUsed):
        sql_grants.use_grant(SqliteTransaction(connection), change.grant_id, now)
    elif isinstance(change, SynopsisWritten):
        connection.execute(SQL["write_synopsis"], (number, *list_values(change.synopsis)))
    elif isinstance(change, ExecutionEnded):
        connection.execute(SQL["end_execution"], (None if change.goes_on else now, number))
        if change.goes_on or change.fault:
            connection.execute(SQL["write_fault"], (change.fault, number))
    else:
        connection.execute(SQL["withdraw_suspensions"], (change.at, number))


def _explain_conflict(connection: sqlite3.Connection, append: Append) -> VersionConflict | LeaseLost:
    """Why a conditional update touched no row."""
    execution_id = append.execution.execution_id
    found = connection.execute(SQL["header"], (execution_id,)).fetchone()
    if found is None:
        return VersionConflict(f"execution {execution_id!r} does not exist")
    header, lease = read_header(found), append.lease
    if lease is not None and (header.owner != lease.owner or header.fence != lease.fence):
        return LeaseLost(f"execution {execution_id!r} is owned by another process")
    if header.version != append.expected_version:
        return VersionConflict(f"execution {execution_id!r} has grown to version {header.version}")
    return LeaseLost(f"execution {execution_id!r} is owned by another process")


def _explain_duplicate(append: Append, error: sqlite3.IntegrityError) -> ThreadBusy | VersionConflict:
    """Which of the two rules about executions that a unique index enforces was broken."""
    if "executions_of_thread" in str(error):
        return _thread_busy(append)
    return VersionConflict(f"execution {append.execution.execution_id!r} exists already")


def _thread_busy(append: Append) -> ThreadBusy:
    return ThreadBusy(f"thread {append.execution.thread_id!r} has an unfinished execution")
