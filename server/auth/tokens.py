"""Verifies bearer tokens for the SDK's middleware."""

from mcp.server.auth.provider import AccessToken, TokenVerifier

from planwarden.agent.ports.environment import Clock
from planwarden.server.auth.caller import VerifiedToken
from planwarden.server.auth.secrets import PREFIX, find_valid_token
from planwarden.storage.ports.tokens import TokenStore


class TokenCheck(TokenVerifier):
    """Verifies planwarden's own tokens; passes all others to `others`."""

    def __init__(
        self, tokens: TokenStore, clock: Clock, *, scopes: tuple[str, ...] = (), others: TokenVerifier | None = None
    ) -> None:
        """`scopes` are those that OAuth tokens need; planwarden's own tokens have all of them."""
        self._tokens = tokens
        self._clock = clock
        self._scopes = scopes
        self._others = others

    async def verify_token(self, token: str) -> AccessToken | None:
        if not token.startswith(PREFIX):
            return await self._others.verify_token(token) if self._others is not None else None
        row = await find_valid_token(self._tokens, self._clock, token, role="caller")
        if row is None:
            return None
        return VerifiedToken.create(row.principal, scopes=self._scopes, expires_at=row.expires_at)
