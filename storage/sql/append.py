"""Appends to a SQL database: the conditions they depend on, their events, and the rows derived from them.

Both databases run this code; its SQL is in `statements.sql`. Appends of a group share a transaction, and a refused
append has written nothing. With PostgreSQL, only reading an answer waits for the server. So first all appends send the
queries that their conditions depend on; then each append's answers are read and checked, and its rows are written.
Appends that concern the same subject are handled one after the other.

On PostgreSQL other transactions write at the same time. What the conditions read stays true until the commit: the
transaction has locked the executions, the grants and the names in `PreparedAppend.locks`. Where it has no lock and a
rival writes the same row first, a unique index refuses the row, and the whole group is tried again.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from random import getrandbits
from typing import NamedTuple

import msgspec

from planwarden.agent.common.errors import (
    GrantUsedUp,
    GuardFailed,
    KeyUsed,
    LeaseLost,
    PlanUnfinished,
    PlanwardenError,
    ThreadBusy,
    ThreadMovedOn,
    VersionConflict,
)
from planwarden.agent.core.execution.audit import AuditEntry, build_audit_entries
from planwarden.agent.ports.budgets_and_keys import count_uses_left, is_open
from planwarden.agent.ports.store import Append, Guard, Lease, StartRequest
from planwarden.storage.sql.budgets_and_keys import Holdings, ask_holdings, project_holdings, write_holdings
from planwarden.storage.sql.database import Condition, Rows, SqlTransaction
from planwarden.storage.sql.notifications import add_notifications
from planwarden.storage.sql.projection import Projection, project, write_rows
from planwarden.storage.sql.rows import checksum_of, encode_events, read_grant

Outcome = Lease | None | PlanwardenError
"""The lease that the writer holds after the append, or why it was refused."""
Times = tuple[float | None, float | None]
"""The time now and the steady clock, in seconds; None where the database's own clock is used."""


class PreparedAppend(msgspec.Struct, frozen=True, gc=False):
    """An append with everything that is derived from it before its transaction begins."""

    append: Append
    body: str
    projected: Projection
    entries: Sequence[AuditEntry]
    holdings: Holdings | None
    token: int
    """The number that identifies the append; it stays the same when the append is sent a second time."""
    is_repeated: bool = False
    """Whether the append may be stored already, because the answer to its commit was lost."""

    @property
    def locks(self) -> list[str]:
        """The names to lock for rows that may not exist yet, so that other appends that want the same thing wait."""
        names = [f"holdings {number}" for number in self.holdings.locks] if self.holdings is not None else []
        principal, start = self.append.execution.principal, self.append.start
        if start is not None and start.key is not None:
            names.append(f"key {principal}\n{start.key}")
        if start is not None and start.plan is not None and start.is_only:
            names.append(f"plan {principal}\n{start.plan}")
        return names

    @property
    def subjects(self) -> set[str]:
        """The names of everything that the append's conditions read and other appends may write."""
        append = self.append
        return {
            f"execution {append.execution.execution_id}",
            f"thread {append.execution.thread_id}",
            *(f"suspension {guard.suspension_id}" for guard in append.guards),
            *(f"grant {grant_id}" for grant_id in self.projected.grant_uses),
            *self.locks,
        }

    @property
    def execution_ids(self) -> list[str]:
        """The executions to lock, so that nobody else changes them before the commit."""
        start, execution_id = self.append.start, self.append.execution.execution_id
        return [execution_id] if start is None or start.after is None else [execution_id, start.after]


def prepare(append: Append) -> PreparedAppend:
    """Return the append as `write_appends` takes it. Raises `NotStorable` for a value that cannot be read back."""
    return PreparedAppend(
        append,
        encode_events([recorded.event for recorded in append.recorded]),
        project(append),
        build_audit_entries(append.recorded, append.execution, append.policy),
        project_holdings(append),
        getrandbits(63),
    )


def write_appends(
    transaction: SqlTransaction, appends: Sequence[PreparedAppend], times: Times, lease_s: float
) -> list[Outcome]:
    """Write the appends inside the open transaction. Return what became of each.

    Refusals are `VersionConflict`, `LeaseLost`, `GuardFailed`, `GrantUsedUp`, `BudgetExceeded`, `KeyHeld`,
    `StartRefused` and `ThreadBusy`.
    """
    # All processes lock names and executions in the same order, so that no two of them wait for each other.
    for name in sorted({name for prepared in appends for name in prepared.locks}):
        transaction.lock(name)
    outcomes: dict[int, Outcome] = {}
    rest = [*appends]
    while rest:
        clock = transaction.execute("times", times) if None in times else None
        execution_ids = {execution_id for prepared in rest for execution_id in prepared.execution_ids}
        rows = transaction.execute("lock_executions", (json.dumps([*execution_ids]),))
        wave, rest = _split(rest)
        inquiries = [_Inquiry(transaction, prepared, times[0]) for prepared in wave]
        moments: Rows = [times] if clock is None else clock.fetchall()
        now, steady = moments[0]
        by_id = {row.execution_id: row for row in (_Row(*values) for values in rows.fetchall())}
        for inquiry in inquiries:
            outcomes[inquiry.prepared.token] = inquiry.conclude(transaction, by_id, now, steady + lease_s)
    return [outcomes[prepared.token] for prepared in appends]


def _split(appends: Sequence[PreparedAppend]) -> tuple[list[PreparedAppend], list[PreparedAppend]]:
    """Return the appends that share no subject with an earlier one, and then the others."""
    if len(appends) == 1:
        return [*appends], []
    wave: list[PreparedAppend] = []
    rest: list[PreparedAppend] = []
    subjects = set[str]()
    for prepared in appends:
        (wave if subjects.isdisjoint(prepared.subjects) else rest).append(prepared)
        subjects |= prepared.subjects
    return wave, rest


class _Row(NamedTuple):
    """The columns of an execution that an append compares or keeps."""

    execution_id: str
    number: int
    status: str = "new"
    version: int = 0
    owner: str | None = None
    fence: int = 0
    leased_until: float = 0.0


class _Inquiry:
    """What an append asked the database; the answers are read when all appends have asked."""

    def __init__(self, transaction: SqlTransaction, prepared: PreparedAppend, now: float | None) -> None:
        append, execute = prepared.append, transaction.execute
        first = append.expected_version + 1
        self.prepared = prepared
        self._stored = (
            execute("find_append", (append.execution.execution_id, first, prepared.token))
            if prepared.is_repeated
            else None
        )
        self._conditions = _ask(transaction, prepared, now)
        starts_in_thread = prepared.projected.is_resumed or not append.expected_version
        self._next = execute("next_in_thread", (append.execution.thread_id,)) if starts_in_thread else None

    def conclude(
        self, transaction: SqlTransaction, executions: Mapping[str, _Row], now: float, leased_until: float
    ) -> Outcome:
        """Return the outcome. Write only if no check fails; if the append is already stored, do not check or write."""
        append = self.prepared.append
        row = executions.get(append.execution.execution_id)
        if row is not None and self._stored is not None and self._stored.fetchone() is not None:
            lease = Lease(row.execution_id, append.owner, row.fence) if append.acquire else None
            return None if append.release else append.lease or lease
        # Read all rows: a SQLite cursor that has rows left would keep the transaction's view of the file.
        answers = [cursor.fetchall() for cursor, _ in self._conditions]
        number, unfinished = (None, None) if self._next is None else self._next.fetchall()[0]
        try:
            for rows, (_, check) in zip(answers, self._conditions, strict=True):
                check(rows, now)
            if unfinished not in (None, append.execution.execution_id):
                raise ThreadBusy(f"thread {append.execution.thread_id!r} has an unfinished execution")
            check_version(append, row)
        except PlanwardenError as refusal:
            return refusal
        if row is None:
            assert number is not None
            row = _Row(append.execution.execution_id, number)
        return _write(transaction, self.prepared, row, now, leased_until)


def _ask(transaction: SqlTransaction, prepared: PreparedAppend, now: float | None) -> list[Condition]:
    """Send the lookups; return all conditions except those of the execution's own row, in the order of their checks."""
    append, execute = prepared.append, transaction.execute
    execution, start = append.execution, append.start
    conditions: list[Condition] = [
        (execute("read_guarded", (guard.suspension_id,)), partial(_check_guard, guard)) for guard in append.guards
    ]
    if start is not None and start.key is not None:
        conditions.append((execute("find_start", (execution.principal, start.key)), _check_key))
    if start is not None and start.after is not None:
        conditions.append((execute("thread_end", (execution.thread_id,)), partial(_check_thread_end, start)))
    if start is not None and start.plan is not None and start.is_only:
        cursor = execute("unfinished_plan", (start.plan, execution.principal))
        conditions.append((cursor, partial(_check_plan, start.plan)))
    for grant_id, count in sorted(prepared.projected.grant_uses.items()):
        conditions.append((execute("find_grant", (grant_id,)), partial(_check_grant, grant_id, count)))
    if prepared.holdings is not None:
        conditions += ask_holdings(transaction, prepared.holdings, now)
    return conditions


def _check_guard(guard: Guard, rows: Rows, now: float) -> None:
    if not rows or rows[0][0] != "pending" or rows[0][1] != guard.digest:
        raise GuardFailed(f"suspension {guard.suspension_id!r} is no longer pending in that revision")
    expires_at = rows[0][2]
    passed = expires_at is not None and expires_at <= now
    if guard.deadline != "any" and passed != (guard.deadline == "passed"):
        raise GuardFailed(f"suspension {guard.suspension_id!r} has {'' if passed else 'not '}expired")


def _check_key(rows: Rows, now: float) -> None:
    if rows:
        raise KeyUsed


def _check_thread_end(start: StartRequest, rows: Rows, now: float) -> None:
    if not rows or tuple(rows[0]) != (start.after, start.after_version):
        raise ThreadMovedOn


def _check_plan(plan: str, rows: Rows, now: float) -> None:
    for execution_id, thread_id, key in rows:
        raise PlanUnfinished(execution_id, thread_id, key, plan)


def _check_grant(grant_id: str, count: int, rows: Rows, now: float) -> None:
    grant = read_grant(rows[0]) if rows else None
    if grant is None or not is_open(grant, now) or count_uses_left(grant, now) < count:
        raise GrantUsedUp(grant_id)


def check_version(append: Append, row: _Row | None) -> None:
    """Raise if the writer does not know the newest event, has lost its lease, or wants a lease that is taken."""
    execution_id, lease = append.execution.execution_id, append.lease
    if row is None:
        if append.expected_version:
            raise VersionConflict(f"execution {execution_id!r} does not exist")
        return
    if not append.expected_version:
        raise VersionConflict(f"execution {execution_id!r} exists already")
    if lease is not None and not has_lease(row, lease):
        raise LeaseLost(f"execution {execution_id!r} is owned by another process")
    if row.version != append.expected_version:
        raise VersionConflict(f"execution {execution_id!r} has grown to version {row.version}")
    if lease is None and append.acquire and row.owner is not None:
        raise LeaseLost(f"execution {execution_id!r} is owned by another process")


def has_lease(row: _Row, lease: Lease) -> bool:
    """Return whether the lease still holds: nobody took the execution over, and the lease was not given up."""
    return row.owner == lease.owner and row.fence == lease.fence


def _write(
    transaction: SqlTransaction, prepared: PreparedAppend, row: _Row, now: float, leased_until: float
) -> Lease | None:
    append, execute, number = prepared.append, transaction.execute, row.number
    first, at = append.expected_version + 1, append.recorded[0].at
    lease = _write_row(transaction, prepared, row, now, leased_until)
    checksum = checksum_of(row.execution_id, first, float(at), prepared.body)
    execute("add_events", (number, first, at, prepared.body, checksum, prepared.token))
    if append.start is not None and append.start.key is not None:
        execute("add_start", (append.execution.principal, append.start.key, number, append.start.request))
    write_rows(transaction, append, prepared.projected, number, now)
    if prepared.holdings is not None:
        write_holdings(transaction, prepared.holdings, now)
    if prepared.entries:
        transaction.add_audit(prepared.entries, at, append.policy)
    for artifact in append.artifacts:
        execute("add_artifact", (number, artifact.artifact_id, artifact.media_type, artifact.data))
    if append.notifications:
        add_notifications(transaction, append.notifications, now)
    return lease


def _write_row(
    transaction: SqlTransaction, prepared: PreparedAppend, row: _Row, now: float, leased_until: float
) -> Lease | None:
    """Create the execution or write its next version. Return the lease that the writer holds afterwards."""
    append, execution = prepared.append, prepared.append.execution
    lease = append.lease
    if lease is None and append.acquire:
        lease = Lease(row.execution_id, append.owner, row.fence + 1)
    if lease is None:
        ownership = row.owner, row.fence, row.leased_until
    else:
        ownership = (None, lease.fence, 0.0) if append.release else (lease.owner, lease.fence, leased_until)
    values = execution.version, now, *prepared.projected.counts, *ownership
    ended_at = now if execution.is_finished else None
    if not append.expected_version:
        plan = None if append.start is None or execution.is_finished else append.start.plan
        names = execution.execution_id, execution.thread_id, execution.principal, plan
        transaction.execute("create_execution", (row.number, *names, execution.status, ended_at, *values))
    elif execution.status != row.status or execution.is_finished:
        transaction.execute("change_execution", (row.number, *values, execution.status, ended_at))
    else:
        transaction.execute("extend_execution", (row.number, *values))
    return None if append.release else lease
