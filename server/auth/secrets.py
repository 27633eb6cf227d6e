"""planwarden's own bearer tokens: made at the terminal, shown once, stored as a hash."""

import hashlib
import re
import secrets

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.ports.environment import Clock
from planwarden.storage.ports.tokens import Role, TokenRow, TokenStore

PREFIX = "pwt_"
"""Lets people and secret scanners recognise a token."""
SECRET_BYTES = 32
MAX_TOKEN_CHARS = 8_192
MAX_DAYS = 3_650
DAY_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


async def make_token(
    tokens: TokenStore, clock: Clock, principal: str, *, role: Role = "caller", days: int | None = None
) -> tuple[str, TokenRow]:
    """Makes a token; returns it with its row. The store keeps only a hash of the token.

    Raises:
        InvalidArguments: the name or the number of days is not usable.
    """
    if not _NAME.fullmatch(principal):
        raise InvalidArguments(
            f"{principal[:64]!r} is not a name for a token's owner; use letters, digits, . _ @ -, at most 64"
        )
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidArguments(f"--days is {days}; it must be between 1 and {MAX_DAYS}")
    now = clock.now()
    token = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    row = TokenRow(
        token_id=secrets.token_hex(4),
        principal=principal,
        role=role,
        created_at=now,
        expires_at=None if days is None else now + days * DAY_S,
    )
    await tokens.add(row, hash_token(token))
    return token, row


async def find_valid_token(tokens: TokenStore, clock: Clock, token: str, *, role: Role) -> TokenRow | None:
    """Returns the row of a token that is valid now and has that role; None for any other text."""
    if not token.startswith(PREFIX) or len(token) > MAX_TOKEN_CHARS:
        return None
    row = await tokens.find(hash_token(token))
    return row if row is not None and row.role == role and row.is_valid(clock.now()) else None


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
