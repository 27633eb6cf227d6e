"""Lookups of executions and their questions, the same in both databases; they change nothing."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from planwarden.agent.common.artifact import Artifact, check_artifact
from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import Addressee
from planwarden.agent.core.execution.state import TRANSITIONS
from planwarden.agent.core.execution.synopsis import MAX_WORDS, clean_text, fold_words
from planwarden.agent.ports.budgets_and_keys import HeldKey
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.listing import (
    MAX_HOST_SCAN,
    ExecutionFilter,
    ListedExecution,
    ListedPage,
    ListPosition,
    read_cursor,
)
from planwarden.agent.ports.store import FoundId, Header, Log, StartedExecution, SuspensionRow, SuspensionRowPage
from planwarden.storage.sql.database import Reads, Rows
from planwarden.storage.sql.projection import join_tools
from planwarden.storage.sql.rows import name_values, read_header, read_key, read_log, read_suspension

_ADDRESSEES = ("human", "caller", "clock", None)


class SqlLookups:
    """Implements `Lookups`."""

    def __init__(self, reads: Reads, clock: Clock) -> None:
        self._reads = reads
        self.clock = clock

    async def header(self, execution_id: str) -> Header | None:
        rows = await self._reads.fetch("header", (execution_id,))
        return read_header(rows[0]) if rows else None

    async def headers(self, execution_ids: Collection[str]) -> tuple[Header, ...]:
        # Ids have only these characters, and PostgreSQL refuses some others in JSON.
        ids = [name for name in execution_ids if name.isascii() and name.isprintable()]
        return tuple(map(read_header, await self._reads.fetch("headers", (json.dumps(ids),))))

    async def log(self, execution_id: str) -> Log | None:
        rows = await self._reads.fetch("log", (execution_id,))
        if not rows:
            return None
        header = read_header(rows[0][:-4])
        return Log(header, read_log(execution_id, 0, [(header.version, *row[-4:]) for row in rows]))

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        return read_log(execution_id, after, await self._reads.fetch("read_events", (execution_id, after + 1)))

    async def artifact(self, thread_id: str, artifact_id: str) -> Artifact | None:
        rows = await self._reads.fetch_long("find_artifact", (thread_id, artifact_id))
        return check_artifact(artifact_id, rows[0][0], bytes(rows[0][1])) if rows else None

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        return tuple(map(read_header, await self._reads.fetch("thread", (thread_id,))))

    async def executions(self, principal: str | None, limit: int) -> tuple[Header, ...]:
        if principal is None:
            rows = await self._reads.fetch_long("executions", (limit,))
        else:
            rows = await self._reads.fetch_long("executions_of", (principal, limit))
        return tuple(map(read_header, rows))

    async def list_executions(self, only: ExecutionFilter, *, limit: int = 25, cursor: str | None = None) -> ListedPage:
        return read_page(await self._reads.fetch_long("list_executions", list_parameters(only, limit, cursor)), limit)

    async def list_hosts(self) -> tuple[str, ...]:
        return tuple(str(row[0]) for row in await self._reads.fetch_long("list_hosts", (MAX_HOST_SCAN,)))

    async def walk(self, after: str, limit: int) -> tuple[Header, ...]:
        return tuple(map(read_header, await self._reads.fetch_long("walk", (after, limit))))

    async def find_start(self, principal: str, key: str) -> StartedExecution | None:
        rows = await self._reads.fetch("find_start", (principal, key))
        return StartedExecution(**name_values(StartedExecution, rows[0])) if rows else None

    async def find_once(self, keys: Collection[str]) -> tuple[HeldKey, ...]:
        parameters = (json.dumps([*keys]), self.clock.now())
        return tuple(map(read_key, await self._reads.fetch("find_once_keys", parameters)))

    async def list_once(self, tool_name: str | None, limit: int) -> tuple[HeldKey, ...]:
        parameters = (self.clock.now(), tool_name, limit)
        return tuple(map(read_key, await self._reads.fetch("once_keys", parameters)))

    async def find_suspension(self, suspension_id: str) -> SuspensionRow | None:
        rows = await self._reads.fetch("find_suspension", (suspension_id,))
        return read_suspension(rows[0]) if rows else None

    async def find_ids(self, beginning: str, limit: int) -> tuple[FoundId, ...]:
        return tuple(FoundId(*row) for row in await self._reads.fetch_long("find_ids", (beginning, limit)))

    async def suspensions(
        self,
        *,
        principal: str | None = None,
        thread_id: str | None = None,
        addressee: Addressee | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> SuspensionRowPage:
        start, *_ = (0,) if cursor is None else await self._find_place(cursor, principal)
        scope = (principal, thread_id, addressee)
        is_everybody = principal is None and thread_id is None
        counted = ("count_open", (addressee,)) if is_everybody else ("count_suspensions", scope)
        rows, totals = await self._reads.fetch_all_long(("pending_suspensions", (start, *scope, limit + 1)), counted)
        return _build_page(rows, limit, totals)

    async def waiting(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        number, rank, _ = (0, -1, None) if cursor is None else await self._find_place(cursor)
        read = ("waiting_suspensions", (rank, number, limit + 1))
        rows, totals = await self._reads.fetch_all_long(read, ("count_open", ("human",)))
        return _build_page(rows, limit, totals)

    async def decided(self, *, limit: int = 20, cursor: str | None = None) -> SuspensionRowPage:
        number, _, closed_at = (None, None, None) if cursor is None else await self._find_place(cursor)
        if cursor is not None and closed_at is None:
            raise _describe_foreign(cursor)
        rows = await self._reads.fetch_long("decided_suspensions", (closed_at, number, limit + 1))
        return _build_page(rows, limit, [(min(len(rows), limit),)])

    async def _find_place(self, cursor: str, principal: str | None = None) -> tuple[Any, ...]:
        """Return the number, rank and closing time of suspension `cursor`. Raises `InvalidArguments` without one."""
        rows = await self._reads.fetch("place_of_suspension", (cursor, principal))
        if not rows:
            raise _describe_foreign(cursor)
        return rows[0]

    async def close(self) -> None:
        await self._reads.close()


def _describe_foreign(cursor: str) -> InvalidArguments:
    return InvalidArguments(f"cursor {cursor!r} is not one that this server gave out")


def _build_page(rows: Rows, limit: int, totals: Rows) -> SuspensionRowPage:
    """Return the page; a row beyond `limit` means a further page. `totals` is empty if no row can match a parameter."""
    suspensions = tuple(map(read_suspension, rows[:limit]))
    total = int(totals[0][0]) if totals else 0
    return SuspensionRowPage(suspensions, total, suspensions[-1].suspension_id if len(rows) > limit else None)


def list_parameters(filters: ExecutionFilter, limit: int, cursor: str | None) -> tuple[object, ...]:
    """Return the parameters of `list_executions`, to read one row more than `limit`. Raises `InvalidArguments` for a
    foreign cursor."""
    position = read_cursor(cursor)
    words = fold_words(filters.search)
    return (
        position.active_at,
        position.number,
        filters.status,
        filters.host and clean_text(filters.host),
        filters.saved_plan and clean_text(filters.saved_plan),
        None if filters.tool is None else join_tools([clean_text(filters.tool).replace("\n", "\ufffd")]),
        filters.principal,
        *words,
        *("" for _ in range(MAX_WORDS - len(words))),
        filters.is_gated,
        filters.tool_prefix and f"\n{clean_text(filters.tool_prefix)}",
        limit + 1,
    )


def read_page(rows: Sequence[tuple[Any, ...]], limit: int) -> ListedPage:
    """Return the page. Raises `StoreError` when a row is damaged."""
    listed = tuple(_read_row(row) for row in rows[:limit])
    if len(rows) <= limit or not listed:
        return ListedPage(listed, None)
    return ListedPage(listed, ListPosition(listed[-1].active_at, int(rows[limit - 1][-1])).to_cursor())


def _read_row(row: tuple[Any, ...]) -> ListedExecution:
    fields = name_values(ListedExecution, row[:-1])
    question, waits_for = fields["question"], fields["waits_for"]
    if fields["status"] not in TRANSITIONS or fields["status"] == "new" or waits_for not in _ADDRESSEES:
        raise StoreError(f"the row of execution {fields['execution_id']!r} is damaged; restore a backup")
    # If the execution waits for several addressees, name a person first, then the one whose name sorts first.
    fields |= {"is_goal": bool(fields["is_goal"]), "waits_for": waits_for if question is None else "human"}
    return ListedExecution(**fields)
