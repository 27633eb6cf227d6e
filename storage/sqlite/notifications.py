"""Notices in the store's file: claimed by conditional updates, so that several processes do not deliver one twice."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.core.notifications import Notice
from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.notifications import MAX_WAITING, NO_CHANNEL, TOO_MANY, failure
from planwarden.storage.sqlite import audit as sqlite_audit
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.worker import Worker

_FACTS = TypeAdapter[dict[str, Any]](dict[str, Any])
_NOTICE = TypeAdapter(Notice)
_COLUMNS = ("notice_id", "channel", "kind", "execution_id", "suspension_id", "facts", "created_at", "attempts")


def add_notices(connection: sqlite3.Connection, notices: Iterable[Notice], now: float) -> None:
    """Store new ones inside the caller's transaction; the oldest give way."""
    for notice in notices:
        values = (notice.notice_id, notice.channel, notice.kind, notice.execution_id, notice.suspension_id)
        connection.execute(SQL["add_notice"], (*values, canonical_json(notice.facts), notice.created_at))
    if int(connection.execute(SQL["notices_span"]).fetchone()[0]) > MAX_WAITING:
        dropped = connection.execute(SQL["drop_oldest_notices"], (MAX_WAITING,)).fetchall()
        _fail(connection, [_bare(row) for row in dropped], TOO_MANY, now)


class SqliteNotices:
    """Through the store's own two connections."""

    def __init__(self, writer: Worker, reader: Worker, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def is_due(self, channel: str) -> bool:
        wanted = (channel, self._clock.now())
        return await self._reader.run(lambda c: c.execute(SQL["is_notice_due"], wanted).fetchone() is not None)

    async def claim(self, channel: str, *, limit: int, lease_s: float) -> tuple[Notice, ...]:
        def take(connection: sqlite3.Connection) -> tuple[Notice, ...]:
            now = self._clock.now()
            found = connection.execute(SQL["claim_notices"], (now + lease_s, channel, now, limit)).fetchall()
            notices: list[Notice] = []
            for row in found:
                try:
                    notices.append(_notice(row))
                except ValidationError:
                    # Nobody could ever send it, and it must not stand in the way of the others.
                    connection.execute(SQL["delete_notice"], (row[0],))
                    _fail(connection, [_bare(row)], "its row is damaged", now)
            return tuple(sorted(notices, key=lambda notice: notice.created_at))

        return await self._writer.run(take)

    async def delivered(self, notice_id: str) -> None:
        await self._writer.run(lambda c: c.execute(SQL["delete_notice"], (notice_id,)).rowcount)

    async def postpone(self, notice: Notice, until: float) -> bool:
        values = (until, notice.notice_id, notice.attempts)
        return await self._writer.run(lambda c: c.execute(SQL["postpone_notice"], values).rowcount == 1)

    async def give_up(self, notice: Notice, reason: str) -> bool:
        def end(connection: sqlite3.Connection) -> bool:
            is_ours = connection.execute(SQL["give_up_notice"], (notice.notice_id, notice.attempts)).rowcount == 1
            _fail(connection, [notice] if is_ours else [], reason, self._clock.now())
            return is_ours

        return await self._writer.run(end)

    async def sweep(self, channels: Collection[str], before: float) -> int:
        def end(connection: sqlite3.Connection) -> int:
            now = self._clock.now()
            found = connection.execute(SQL["old_notices"], (before, json.dumps(sorted(channels)), now)).fetchall()
            _fail(connection, [_bare(row) for row in found], NO_CHANNEL, now)
            return len(found)

        return await self._writer.run(end)

    async def waiting(self) -> Mapping[str, int]:
        return dict(await self._reader.run(lambda c: c.execute(SQL["waiting_notices"]).fetchall()))


def _fail(connection: sqlite3.Connection, notices: Sequence[Notice], reason: str, now: float) -> None:
    if notices:
        sqlite_audit.add_entries(connection, [failure(notice, reason) for notice in notices], now)


def _notice(row: tuple[Any, ...]) -> Notice:
    found = dict(zip(_COLUMNS, row, strict=True))
    found["facts"] = _FACTS.validate_json(found["facts"])
    return _NOTICE.validate_python(found)


def _bare(row: tuple[Any, ...]) -> Notice:
    """The row without its facts, which are of no use any more."""
    notice_id, channel, kind, execution_id, suspension_id, _, created_at, attempts = row
    return Notice(
        notice_id=notice_id,
        channel=channel,
        kind=kind,
        execution_id=execution_id,
        suspension_id=suspension_id,
        facts={},
        created_at=created_at,
        attempts=attempts,
    )
