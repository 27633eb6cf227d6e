"""Codes and sessions in a SQL database, beside the executions."""

from collections.abc import Sequence

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.sessions import KEPT_S, InboxSession, PairingCode
from planwarden.storage.sql.database import Database, Liveness, SqlTransaction


class SqlSessions:
    """Implements `SessionStore`; every condition is checked in the transaction that relies on it."""

    def __init__(self, database: Database, liveness: Liveness) -> None:
        self._database = database
        self._liveness = liveness

    async def add_codes(self, codes: Sequence[PairingCode], entry: AuditEntry) -> None:
        def add(transaction: SqlTransaction) -> None:
            for code in codes:
                row = (code.hash, code.pairing, code.principal, code.is_typed, code.created_at, code.expires_at)
                transaction.execute("add_code", row)
                for name in ("forget_codes", "forget_sessions"):
                    transaction.execute(name, (code.created_at - KEPT_S,))
            transaction.add_audit((entry,), codes[0].created_at)

        await self._database.write(add)

    async def code(self, code_hash: str, now: float) -> PairingCode | None:
        rows = await self._database.fetch("code", (code_hash, now))
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
        def use(transaction: SqlTransaction) -> bool:
            used = transaction.execute("use_code", (session.created_at, code_hash, session.created_at)).fetchone()
            if used is None:
                return False
            transaction.execute("void_pairing", (session.created_at, used[0]))
            row = (session.hash, session.principal, session.created_at, session.expires_at)
            transaction.execute("add_session", row)
            transaction.add_audit((entry,), session.created_at)
            return True

        return await self._database.write(use)

    async def record_failed_attempt(self, code_hash: str, limit: int, now: float, entry: AuditEntry) -> None:
        def count(transaction: SqlTransaction) -> None:
            counted = transaction.execute("count_attempt", (code_hash, now)).fetchone()
            if counted is None:
                return
            if counted[1] >= limit:
                transaction.execute("void_pairing", (now, counted[0]))
            transaction.add_audit((entry,), now)

        await self._database.write(count)

    async def refuse(self, at: float, since: float, entry: AuditEntry) -> None:
        def note(transaction: SqlTransaction) -> None:
            transaction.execute("forget_refusals", (since,))
            transaction.execute("add_refusal", (at,))
            transaction.add_audit((entry,), at)

        await self._database.write(note)

    async def refusals(self, since: float) -> int:
        return int((await self._database.fetch("count_refusals", (since,)))[0][0])

    async def session(self, session_hash: str, now: float) -> InboxSession | None:
        rows = await self._database.fetch("session", (session_hash, now))
        if not rows:
            return None
        found_hash, principal, created_at, expires_at = rows[0]
        return InboxSession(hash=found_hash, principal=principal, created_at=created_at, expires_at=expires_at)

    async def end(self, session_hash: str, now: float, entry: AuditEntry) -> bool:
        def end(transaction: SqlTransaction) -> bool:
            if transaction.execute("end_session", (now, session_hash, now)).rowcount == 0:
                return False
            transaction.add_audit((entry,), now)
            return True

        return await self._database.write(end)

    async def end_all(self, now: float, entry: AuditEntry) -> int:
        def end(transaction: SqlTransaction) -> int:
            ended = transaction.execute("end_sessions", (now, now)).rowcount
            transaction.execute("void_codes", (now,))
            transaction.add_audit((entry,), now)
            return ended

        return await self._database.write(end)

    async def open_inbox(self, owner: str, url: str, at: float) -> None:
        await self._liveness.announce(owner)
        await self._database.write(lambda transaction: transaction.execute("open_inbox", (owner, url, at)).rowcount)

    async def close_inbox(self, owner: str) -> None:
        await self._database.write(lambda transaction: transaction.execute("close_inbox", (owner,)).rowcount)

    async def inboxes(self) -> tuple[str, ...]:
        rows = await self._database.fetch("inboxes")
        dead = [owner for owner, _ in rows if await self._liveness.is_dead(owner)]
        for owner in dead:
            await self.close_inbox(owner)
        return tuple(str(url) for owner, url in rows if owner not in dead)
