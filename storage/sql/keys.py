"""Keys and nonces in a SQL database, beside the executions."""

from typing import Any

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.keys import OPEN_NONCES, KeyUse, SigningKey, SigningNonce
from planwarden.storage.sql.database import Database, SqlTransaction


class SqlKeys:
    """Implements `KeyStore`; every condition is checked in the transaction that relies on it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_nonce(self, nonce: SigningNonce, now: float) -> None:
        def add(transaction: SqlTransaction) -> None:
            transaction.execute("forget_nonces", (now,))
            row = (nonce.nonce, nonce.purpose, nonce.session, nonce.suspension_id, nonce.digest, nonce.content)
            transaction.execute("add_nonce", (*row, nonce.expires_at))
            transaction.execute("limit_nonces", (nonce.session, OPEN_NONCES))

        await self._database.write(add)

    async def take_nonce(self, nonce: str, now: float) -> SigningNonce | None:
        row = await self._database.write(lambda transaction: transaction.execute("take_nonce", (nonce,)).fetchone())
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
        def add(transaction: SqlTransaction) -> bool:
            transaction.lock(f"keys of {key.principal}")
            # Reads only, so that what is refused leaves nothing behind.
            if transaction.execute("key", (key.key_id,)).fetchone() is not None:
                return False
            if by is None and _open_keys(transaction, key.principal) > 0:
                return False
            if by is not None and (by.principal != key.principal or not _count(transaction, by)):
                return False
            transaction.execute(
                "add_key",
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
            transaction.add_audit((entry,), key.created_at)
            return True

        return await self._database.write(add)

    async def use_key(self, use: KeyUse, entry: AuditEntry) -> bool:
        def count(transaction: SqlTransaction) -> bool:
            if not _count(transaction, use):
                return False
            transaction.add_audit((entry,), use.at)
            return True

        return await self._database.write(count)

    async def revoke_key(self, key_id: str, at: float, entry: AuditEntry, *, spares_last: bool = False) -> bool:
        def revoke(transaction: SqlTransaction) -> bool:
            found = transaction.execute("key", (key_id,)).fetchone()
            if found is not None:
                transaction.lock(f"keys of {_key(found).principal}")
            if found is None or (spares_last and _open_keys(transaction, _key(found).principal) < 2):
                return False
            if transaction.execute("revoke_key", (at, key_id)).rowcount == 0:
                return False
            transaction.add_audit((entry,), at)
            return True

        return await self._database.write(revoke)

    async def keys(self, principal: str | None = None) -> tuple[SigningKey, ...]:
        return tuple(map(_key, await self._database.fetch("keys", (principal, principal))))


def _open_keys(transaction: SqlTransaction, principal: str) -> int:
    return int(transaction.execute("count_keys", (principal,)).fetchall()[0][0])


def _count(transaction: SqlTransaction, use: KeyUse) -> bool:
    given = use.sign_count
    values = (given, use.at, use.key_id, use.principal, given, given)
    return transaction.execute("use_key", values).rowcount == 1


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
