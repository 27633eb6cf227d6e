"""Codes and sessions in the SQLite file, beside the executions and through its writer and reader."""

import sqlite3
from collections.abc import Sequence

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.locks import LivenessFile
from planwarden.storage.ports.sessions import KEPT_S, InboxSession, PairingCode
from planwarden.storage.sqlite.audit import add_entries
from planwarden.storage.sqlite.reader import Reader
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.writer import Writer


class SqliteSessions:
    """Implements `SessionStore`; every condition is checked in the transaction that relies on it."""

    def __init__(self, writer: Writer, reader: Reader, life: LivenessFile) -> None:
        self._writer = writer
        self._reader = reader
        self._life = life

    async def add_codes(self, codes: Sequence[PairingCode], entry: AuditEntry) -> None:
        def add(connection: sqlite3.Connection) -> None:
            for code in codes:
                row = (code.hash, code.pairing, code.principal, code.is_typed, code.created_at, code.expires_at)
                connection.execute(SQL["add_code"], row)
                for name in ("forget_codes", "forget_sessions"):
                    connection.execute(SQL[name], (code.created_at - KEPT_S,))
            add_entries(connection, (entry,), codes[0].created_at)

        await self._writer.run(add)

    async def code(self, code_hash: str, now: float) -> PairingCode | None:
        rows = await self._reader.fetch("code", (code_hash, now))
        if not rows:
            return None
        found_hash, pairing, principal, is_typed, created_at, expires_at, attempts = rows[0]
        return PairingCode(
            hash=found_hash,
            pairing=pairing,
            principal=principal,
            is_typed=bool(is_typed),
            created_at=created_at,
            expires_at=expires_at,
            attempts=attempts,
        )

    async def redeem(self, code_hash: str, session: InboxSession, entry: AuditEntry) -> bool:
        def use(connection: sqlite3.Connection) -> bool:
            used = connection.execute(SQL["use_code"], (session.created_at, code_hash, session.created_at)).fetchone()
            if used is None:
                return False
            connection.execute(SQL["void_pairing"], (session.created_at, used[0]))
            row = (session.hash, session.principal, session.created_at, session.expires_at)
            connection.execute(SQL["add_session"], row)
            add_entries(connection, (entry,), session.created_at)
            return True

        return await self._writer.run(use)

    async def record_failed_attempt(self, code_hash: str, limit: int, now: float, entry: AuditEntry) -> None:
        def count(connection: sqlite3.Connection) -> None:
            counted = connection.execute(SQL["count_attempt"], (code_hash, now)).fetchone()
            if counted is None:
                return
            if counted[1] >= limit:
                connection.execute(SQL["void_pairing"], (now, counted[0]))
            add_entries(connection, (entry,), now)

        await self._writer.run(count)

    async def refuse(self, at: float, since: float, entry: AuditEntry) -> None:
        def note(connection: sqlite3.Connection) -> None:
            connection.execute(SQL["forget_refusals"], (since,))
            connection.execute(SQL["add_refusal"], (at,))
            add_entries(connection, (entry,), at)

        await self._writer.run(note)

    async def refusals(self, since: float) -> int:
        return int((await self._reader.fetch("count_refusals", (since,)))[0][0])

    async def session(self, session_hash: str, now: float) -> InboxSession | None:
        rows = await self._reader.fetch("session", (session_hash, now))
        if not rows:
            return None
        found_hash, principal, created_at, expires_at = rows[0]
        return InboxSession(hash=found_hash, principal=principal, created_at=created_at, expires_at=expires_at)

    async def end(self, session_hash: str, now: float, entry: AuditEntry) -> bool:
        def end(connection: sqlite3.Connection) -> bool:
            if connection.execute(SQL["end_session"], (now, session_hash, now)).rowcount == 0:
                return False
            add_entries(connection, (entry,), now)
            return True

        return await self._writer.run(end)

    async def end_all(self, now: float, entry: AuditEntry) -> int:
        def end(connection: sqlite3.Connection) -> int:
            ended = connection.execute(SQL["end_sessions"], (now, now)).rowcount
            connection.execute(SQL["void_codes"], (now,))
            add_entries(connection, (entry,), now)
            return ended

        return await self._writer.run(end)

    async def open_inbox(self, owner: str, url: str, at: float) -> None:
        self._life.announce(owner)
        await self._writer.run(lambda connection: connection.execute(SQL["open_inbox"], (owner, url, at)).rowcount)

    async def close_inbox(self, owner: str) -> None:
        await self._writer.run(lambda connection: connection.execute(SQL["close_inbox"], (owner,)).rowcount)

    async def inboxes(self) -> tuple[str, ...]:
        rows = await self._reader.fetch("inboxes")
        dead = [owner for owner, _ in rows if self._life.is_dead(owner)]
        for owner in dead:
            await self.close_inbox(owner)
        return tuple(str(url) for owner, url in rows if owner not in dead)
