"""Bearer tokens in a dictionary, by the same laws as in a file."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.tokens import TokenRow, build_token_entry, token_taken


class MemoryTokens:
    """Tokens in a dictionary, by hash."""

    def __init__(self, audit: Callable[[Sequence[AuditEntry]], Awaitable[None]]) -> None:
        self._audit = audit
        self._rows: dict[str, TokenRow] = {}

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        if secret_hash in self._rows or any(found.token_id == row.token_id for found in self._rows.values()):
            raise token_taken(row)
        self._rows[secret_hash] = row
        await self._audit((build_token_entry("token_added", row),))

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
        await self._audit([build_token_entry("token_revoked", row) for row in revoked])
        return tuple(revoked)
