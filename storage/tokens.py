"""Bearer tokens in the database: who they belong to, until when, and the hash by which a secret is recognised.

The secret itself is never stored. It has 256 random bits, so a plain SHA-256 cannot be searched, and looking the hash up
in an index tells nothing about the secret by how long it takes.
"""

import sqlite3
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from planwarden.agent.errors import StoreError
from planwarden.storage.statements import SQL
from planwarden.storage.worker import Worker

Role = Literal["caller", "approver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token without its secret. Times are Unix seconds."""

    token_id: str
    """Names the token in lists and logs; gives no access."""
    principal: str
    role: Role
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Tokens(Protocol):
    """Laws: what returned is durable; a hash finds the row it was added with; a revoked row stays and stays revoked."""

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        """Raises `StoreError` when id or hash are taken."""
        ...

    async def find(self, secret_hash: str) -> TokenRow | None: ...

    async def all(self) -> tuple[TokenRow, ...]:
        """Every token there ever was, oldest first."""
        ...

    async def revoke(self, name: str, at: float) -> tuple[TokenRow, ...]:
        """Revoke the token with the id `name`, or all of the principal `name`; gives those that were not revoked before."""
        ...


@runtime_checkable
class HasTokens(Protocol):
    """A store that keeps tokens beside its executions."""

    @property
    def tokens(self) -> Tokens: ...


class MemoryTokens:
    """Tokens in a dictionary, by hash."""

    def __init__(self) -> None:
        self._rows: dict[str, TokenRow] = {}

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        if secret_hash in self._rows or any(found.token_id == row.token_id for found in self._rows.values()):
            raise _taken(row)
        self._rows[secret_hash] = row

    async def find(self, secret_hash: str) -> TokenRow | None:
        return self._rows.get(secret_hash)

    async def all(self) -> tuple[TokenRow, ...]:
        return tuple(self._rows.values())

    async def revoke(self, name: str, at: float) -> tuple[TokenRow, ...]:
        revoked: list[TokenRow] = []
        for secret_hash, row in self._rows.items():
            if name in (row.token_id, row.principal) and row.revoked_at is None:
                self._rows[secret_hash] = replace(row, revoked_at=at)
                revoked.append(self._rows[secret_hash])
        return tuple(revoked)


class SqliteTokens:
    """Tokens in the store's file, through the store's own two connections."""

    def __init__(self, writer: Worker, reader: Worker) -> None:
        self._writer = writer
        self._reader = reader

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        values = (row.token_id, secret_hash, row.principal, row.role, row.created_at, row.expires_at)

        def insert(connection: sqlite3.Connection) -> None:
            try:
                connection.execute(SQL["add_token"], values)
            except sqlite3.IntegrityError as error:
                raise _taken(row) from error

        await self._writer.run(insert)

    async def find(self, secret_hash: str) -> TokenRow | None:
        found = await self._reader.run(lambda c: c.execute(SQL["find_token"], (secret_hash,)).fetchone())
        return None if found is None else _row(found)

    async def all(self) -> tuple[TokenRow, ...]:
        return tuple(map(_row, await self._reader.run(lambda c: c.execute(SQL["tokens"]).fetchall())))

    async def revoke(self, name: str, at: float) -> tuple[TokenRow, ...]:
        found = await self._writer.run(lambda c: c.execute(SQL["revoke_tokens"], (at, name)).fetchall())
        return tuple(map(_row, found))


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


def _taken(row: TokenRow) -> StoreError:
    return StoreError(f"there is a token {row.token_id!r} already; nothing was stored, add it again")
