"""Bearer tokens in the SQLite file, beside the executions."""

import sqlite3
from typing import Any

from planwarden.storage.ports.tokens import TokenRow, build_token_entry, token_taken
from planwarden.storage.sqlite.audit import add_entries
from planwarden.storage.sqlite.reader import Reader
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.writer import Writer


class SqliteTokens:
    """Tokens in the store's file, through the store's writer and reader."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        values = (row.token_id, secret_hash, row.principal, row.role, row.created_at, row.expires_at)

        def insert(connection: sqlite3.Connection) -> None:
            try:
                connection.execute(SQL["add_token"], values)
            except sqlite3.IntegrityError as error:
                raise token_taken(row) from error
            add_entries(connection, (build_token_entry("token_added", row),), row.created_at)

        await self._writer.run(insert)

    async def find(self, secret_hash: str) -> TokenRow | None:
        found = await self._reader.fetch("find_token", (secret_hash,))
        return _row(found[0]) if found else None

    async def all(self) -> tuple[TokenRow, ...]:
        return tuple(map(_row, await self._reader.fetch("tokens")))

    async def revoke(self, name: str, at: float) -> tuple[TokenRow, ...]:
        def end(connection: sqlite3.Connection) -> tuple[TokenRow, ...]:
            rows = tuple(map(_row, connection.execute(SQL["revoke_tokens"], (at, name)).fetchall()))
            add_entries(connection, [build_token_entry("token_revoked", row) for row in rows], at)
            return rows

        return await self._writer.run(end)


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
