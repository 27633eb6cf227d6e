"""Bearer tokens: principal, expiry, and the hash that recognises a secret. A port that every store implements.

The secret itself is never stored. It has 256 random bits, so nobody can search a plain SHA-256 for it, and the time of
an index look-up reveals nothing about it.
"""

from typing import Literal, Protocol, runtime_checkable

import msgspec

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.audit import AuditEntry

Role = Literal["caller", "approver"]


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
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


class TokenStore(Protocol):
    """Laws: a call that returned is durable; a hash finds the row it was added with; a revoked row stays revoked.

    Each change writes what `build_token_entry` says of it into the audit, in the same transaction.
    """

    async def add(self, row: TokenRow, secret_hash: str) -> None:
        """Raises `StoreError` when the id or the hash is taken."""
        ...

    async def find(self, secret_hash: str) -> TokenRow | None: ...

    async def all(self) -> tuple[TokenRow, ...]:
        """All tokens ever added, oldest first."""
        ...

    async def revoke(self, name: str, at: float) -> tuple[TokenRow, ...]:
        """Revoke the token with the id `name`, or all of principal `name`; returns those that were not revoked
        before."""
        ...


@runtime_checkable
class HasTokens(Protocol):
    """A store that also stores tokens."""

    @property
    def tokens(self) -> TokenStore: ...


def build_token_entry(kind: Literal["token_added", "token_revoked"], row: TokenRow) -> AuditEntry:
    """What the audit says of a change: whose token, for what, until when, and nothing of its secret."""
    facts: dict[str, JsonValue] = {"tokenId": row.token_id, "principal": row.principal, "role": row.role}
    if row.expires_at is not None:
        facts["expiresAt"] = row.expires_at
    return AuditEntry(kind=kind, facts=facts)


def token_taken(row: TokenRow) -> StoreError:
    """The error for an id or a hash that another token has."""
    return StoreError(f"there is a token {row.token_id!r} already; nothing was stored, add it again")
