"""Bearer tokens in a SQL database, beside the executions."""

from typing import Any

from planwarden.storage.ports.tokens import TokenRow, build_token_entry, token_taken
from planwarden.storage.sql.database import Database, SqlTransaction


class SqlTokens:
    """Implements `TokenStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        values = (row.token_id, secret_hash, row.principal, row.role, row.created_at, row.expires_at)

        def insert(transaction: SqlTransaction) -> None:
            if transaction.execute("add_token", values).rowcount == 0:
                raise token_taken(row)
            transaction.add_audit((build_token_entry("token_added", row),), row.created_at)

        await self._database.write(insert)

    async def find(self, secret_hash: str) -> TokenRow | None:
        found = await self._database.fetch("find_token", (secret_hash,))
        return _row(found[0]) if found else None

    async def all(self) -> tuple[TokenRow, ...]:
        return tuple(map(_row, await self._database.fetch("tokens")))

    async def revoke(self, name: str, at: float) -> tuple[TokenRow, ...]:
        def end(transaction: SqlTransaction) -> tuple[TokenRow, ...]:
            rows = tuple(map(_row, transaction.execute("revoke_tokens", (at, name)).fetchall()))
            transaction.add_audit([build_token_entry("token_revoked", row) for row in rows], at)
            return rows

        return await self._database.write(end)


def _row(found: tuple[Any, ...]) -> TokenRow:
    token_id, principal, role, created_at, expires_at, revoked_at = found
    return TokenRow(
        token_id=token_id,
        principal=principal,
        role=role,
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )
