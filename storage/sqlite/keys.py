"""Keys and nonces in the SQLite file, beside the executions."""

import sqlite3
from typing import Any

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.keys import OPEN_NONCES, KeyUse, SigningKey, SigningNonce
from planwarden.storage.sqlite.audit import add_entries
from planwarden.storage.sqlite.reader import Reader
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.writer import Writer


class SqliteKeys:
    """Implements `KeyStore`; every condition is checked in the transaction that relies on it."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def add_nonce(self, nonce: SigningNonce, now: float) -> None:
        def add(connection: sqlite3.Connection) -> None:
            connection.execute(SQL["forget_nonces"], (now,))
            row = (nonce.nonce, nonce.purpose, nonce.session, nonce.suspension_id, nonce.digest, nonce.content)
            connection.execute(SQL["add_nonce"], (*row, nonce.expires_at))
            connection.execute(SQL["limit_nonces"], (nonce.session, OPEN_NONCES))

        await self._writer.run(add)

    async def take_nonce(self, nonce: str, now: float) -> SigningNonce | None:
        row = await self._writer.run(lambda connection: connection.execute(SQL["take_nonce"], (nonce,)).fetchone())
        if row is None or row[6] <= now:
            return None
        text, purpose, session, suspension_id, digest, content, expires_at = row
        return SigningNonce(
            nonce=text,
            purpose=purpose,
            session=session,
            suspension_id=suspension_id,
            digest=digest,
            content=content,
            expires_at=expires_at,
        )

    async def add_key(self, key: SigningKey, by: KeyUse | None, entry: AuditEntry) -> bool:
        def add(connection: sqlite3.Connection) -> bool:
            # Reads only, so that what is refused leaves nothing behind.
            if connection.execute(SQL["key"], (key.key_id,)).fetchone() is not None:
                return False
            if by is None and _open_keys(connection, key.principal) > 0:
                return False
            if by is not None and (by.principal != key.principal or not _count(connection, by)):
                return False
            connection.execute(
                SQL["add_key"],
                (
                    key.key_id,
                    key.credential_id,
                    key.public_key,
                    key.principal,
                    key.rp_id,
                    key.label,
                    key.sign_count,
                    key.created_at,
                ),
            )
            add_entries(connection, (entry,), key.created_at)
            return True

        return await self._writer.run(add)

    async def use_key(self, use: KeyUse, entry: AuditEntry) -> bool:
        def count(connection: sqlite3.Connection) -> bool:
            if not _count(connection, use):
                return False
            add_entries(connection, (entry,), use.at)
            return True

        return await self._writer.run(count)

    async def revoke_key(self, key_id: str, at: float, entry: AuditEntry, *, spares_last: bool = False) -> bool:
        def revoke(connection: sqlite3.Connection) -> bool:
            found = connection.execute(SQL["key"], (key_id,)).fetchone()
            if found is None or (spares_last and _open_keys(connection, _key(found).principal) < 2):
                return False
            if connection.execute(SQL["revoke_key"], (at, key_id)).rowcount == 0:
                return False
            add_entries(connection, (entry,), at)
            return True

        return await self._writer.run(revoke)

    async def keys(self, principal: str | None = None) -> tuple[SigningKey, ...]:
        return tuple(map(_key, await self._reader.fetch("keys", (principal, principal))))


def _open_keys(connection: sqlite3.Connection, principal: str) -> int:
    return int(connection.execute(SQL["count_keys"], (principal,)).fetchone()[0])


def _count(connection: sqlite3.Connection, use: KeyUse) -> bool:
    given = use.sign_count
    values = (given, use.at, use.key_id, use.principal, given, given)
    return connection.execute(SQL["use_key"], values).rowcount == 1


def _key(row: tuple[Any, ...]) -> SigningKey:
    key_id, credential_id, public_key, principal, rp_id, label, sign_count, created_at, used_at, revoked_at = row
    return SigningKey(
        key_id=key_id,
        credential_id=credential_id,
        public_key=public_key,
        principal=principal,
        rp_id=rp_id,
        label=label,
        sign_count=sign_count,
        created_at=created_at,
        used_at=used_at,
        revoked_at=revoked_at,
    )
