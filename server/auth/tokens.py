"""Verifies bearer tokens for the SDK's middleware: planwarden's own here, those of other shapes elsewhere."""

from mcp.server.auth.provider import AccessToken, TokenVerifier

from planwarden.agent.ports.environment import Clock
from planwarden.server.auth.caller import VerifiedToken
from planwarden.server.auth.secrets import PREFIX, token_row
from planwarden.storage.ports.tokens import TokenStore


class TokenCheck(TokenVerifier):
    """Verifies tokens of planwarden's own, and hands those of other shapes to `others`."""

    def __init__(
        self, tokens: TokenStore, clock: Clock, *, scopes: tuple[str, ...] = (), others: TokenVerifier | None = None
    ) -> None:
        """`scopes` are what OAuth tokens must carry; the operator's own tokens are not asked for any."""
        self._tokens = tokens
        self._clock = clock
        self._scopes = scopes
        self._others = others

    async def verify_token(self, token: str) -> AccessToken | None:
        if not token.startswith(PREFIX):
            return await self._others.verify_token(token) if self._others is not None else None
        row = await token_row(self._tokens, self._clock, token, role="caller")
        if row is None:
            return None
        return VerifiedToken.granted(row.principal, scopes=self._scopes, expires_at=row.expires_at)
