"""Commands that tend bearer tokens: `token add`, `token list`, `token revoke`."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.auth.secrets import make_token
from planwarden.server.settings.configuration import Settings
from planwarden.storage.ports.tokens import Role, TokenRow
from planwarden.storage.sqlite.store import SqliteStore

Result = TypeVar("Result")


def add(settings: Settings, name: str, *, role: Role, days: int | None) -> tuple[str, TokenRow]:
    """The new token, which is stored nowhere, and its row. Raises `InvalidArguments`."""
    return _with_store(settings, lambda store: make_token(store.tokens, store.clock, name, role=role, days=days))


def listed(settings: Settings) -> tuple[tuple[TokenRow, ...], float]:
    """Every token there ever was, oldest first, and the time."""

    async def read(store: SqliteStore) -> tuple[tuple[TokenRow, ...], float]:
        return await store.tokens.all(), store.clock.now()

    # A command that only looks must not leave a database behind.
    return _with_store(settings, read) if settings.database.exists() else ((), 0.0)


def revoke(settings: Settings, name: str) -> tuple[tuple[TokenRow, ...], float]:
    """The tokens that were revoked by this, and the time.

    Raises:
        InvalidArguments: there was none to revoke.
    """

    async def work(store: SqliteStore) -> tuple[tuple[TokenRow, ...], float]:
        now = store.clock.now()
        return await store.tokens.revoke(name, now), now

    rows, now = _with_store(settings, work) if settings.database.exists() else ((), 0.0)
    if not rows:
        raise InvalidArguments(f"there is no token of, or called, {name[:64]!r} to revoke; see `planwarden token list`")
    return rows, now


def row_json(row: TokenRow, now: float) -> dict[str, JsonValue]:
    return {
        "tokenId": row.token_id,
        "principal": row.principal,
        "role": row.role,
        "state": state(row, now),
        "createdAt": _instant(row.created_at),
        "expiresAt": _instant(row.expires_at),
        "revokedAt": _instant(row.revoked_at),
    }


def row_line(row: TokenRow, now: float) -> str:
    until = f", until {_instant(row.expires_at)}" if row.expires_at is not None else ""
    return f"{row.token_id}  {row.principal}  {row.role}  {state(row, now)}{until}  made {_instant(row.created_at)}"


def state(row: TokenRow, now: float) -> str:
    """`valid`, `expired` or `revoked`."""
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if row.is_valid(now) else "expired"


def _instant(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _with_store(settings: Settings, work: Callable[[SqliteStore], Awaitable[Result]]) -> Result:
    async def opened() -> Result:
        store = await anyio.to_thread.run_sync(SqliteStore.open, settings.database)
        try:
            return await work(store)
        finally:
            await store.close()

    return anyio.run(opened)
