"""planwarden's own bearer tokens: made at the terminal, shown once, stored as a hash.

The secret itself is never stored. It has 256 random bits, so a plain SHA-256 suffices: nobody can guess the secret from
the hash, or from the time that a look-up of the hash takes.
"""

import hashlib
import re
import secrets
from typing import Literal

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, StoreError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.sql.records import Columns, Record, RecordStore, RecordTransaction

PREFIX = "pwt_"
"""The prefix by which people and secret scanners recognise a token."""
SECRET_BYTES = 32
MAX_TOKEN_CHARS = 8_192
MAX_DAYS = 3_650
DAY_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LOCK = "tokens"

Role = Literal["caller", "approver"]


class TokenRow(Record, frozen=True, kw_only=True):
    """One token without its secret. Times are Unix seconds."""

    columns = Columns("token", "secret_hash", "principal")

    token_id: str
    """The token's name in lists and logs; the name alone gives no access."""
    secret_hash: str
    principal: str
    role: Role
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class TokenStore(RecordStore[TokenRow]):
    """Every token ever made, by its hash. Guarantees: a revoked row stays revoked, and no row is deleted. Each change
    has its row in the audit, written in the same transaction."""

    def __init__(self, store: object) -> None:
        super().__init__(store, TokenRow)

    async def make(self, principal: str, *, role: Role = "caller", days: int | None = None) -> tuple[str, TokenRow]:
        """Make a token and return it with its row. The store keeps only a hash of the token.

        Raises:
            InvalidArguments: the owner's name or the number of days is not usable.
        """
        if not _NAME.fullmatch(principal):
            raise InvalidArguments(
                f"{principal[:64]!r} is not a name for a token's owner; use letters, digits, . _ @ -, at most 64"
            )
        if days is not None and not 1 <= days <= MAX_DAYS:
            raise InvalidArguments(f"--days is {days}; it must be between 1 and {MAX_DAYS}")
        now = self.clock.now()
        token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        row = TokenRow(
            token_id=secrets.token_hex(4),
            secret_hash=hash_token(token),
            principal=principal,
            role=role,
            created_at=now,
            expires_at=None if days is None else now + days * DAY_S,
        )
        await self.add(row)
        return token, row

    async def add(self, row: TokenRow) -> None:
        """Store a new token. Raises `StoreError` when its id or its hash is taken."""

        def insert(transaction: RecordTransaction) -> bool:
            is_taken = any(other.token_id == row.token_id for other in transaction.all(TokenRow))
            if is_taken or not transaction.insert(row):
                raise StoreError(f"there is a token {row.token_id!r} already; nothing was stored, add it again")
            return True

        await self.write(insert, _build_entry("token_added", row), lock=_LOCK)

    async def find_valid(self, token: str, *, role: Role) -> TokenRow | None:
        """Return the row of a token that is valid now and has that role; None for any other text."""
        if not token.startswith(PREFIX) or len(token) > MAX_TOKEN_CHARS:
            return None
        row = await self.find(hash_token(token))
        return row if row is not None and row.role == role and row.is_valid(self.clock.now()) else None

    async def revoke(self, name: str) -> tuple[TokenRow, ...]:
        """Revoke the token with the id `name`, or all tokens of principal `name`; return the rows that this changed."""
        now = self.clock.now()

        def end(transaction: RecordTransaction) -> tuple[TokenRow, ...]:
            rows = [row for row in transaction.all(TokenRow) if name in (row.token_id, row.principal)]
            ended = tuple(replace(row, revoked_at=now) for row in rows if row.revoked_at is None)
            for row in ended:
                transaction.change(row)
            transaction.add_audit([_build_entry("token_revoked", row) for row in ended], now)
            return ended

        return await self.write(end, lock=_LOCK)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _build_entry(kind: Literal["token_added", "token_revoked"], row: TokenRow) -> AuditEntry:
    """Return an audit entry with the token's id, owner, role and expiry, and nothing of its secret."""
    facts: dict[str, JsonValue] = {"tokenId": row.token_id, "principal": row.principal, "role": row.role}
    if row.expires_at is not None:
        facts["expiresAt"] = row.expires_at
    return AuditEntry(kind=kind, facts=facts)
