"""Identifies the caller of each request: the principal that owns what the request creates or reads.

Where requests need no token (stdio, and HTTP on a loopback address unless a setting or an existing token demands one),
every caller is the operator, `local`. Elsewhere the principal is the name for which planwarden made the token, or the
`ISSUER#SUBJECT` of an OAuth access token; a name has no `#`, so the two cannot collide. The token is the one that the
SDK's bearer middleware verified for this request with `TokenCheck`; the client's sessions and claims do not count.
"""

import logging
import secrets
from collections.abc import Callable

import msgspec
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.ports.environment import Clock
from planwarden.storage.tokens import PREFIX, TokenStore

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""How long a server without authentication may take to notice a new token, perhaps made on another machine."""


class Caller(msgspec.Struct, frozen=True):
    """The principal on whose behalf a request is served."""

    principal: str
    client_id: str | None = None
    """The OAuth client that presented the token; None for other tokens, or if the issuer does not name it."""


class VerifiedToken(AccessToken):
    """The result of verifying a token; it does not hold the secret."""

    principal: str
    oauth_client: str | None = None

    @classmethod
    def create(
        cls,
        principal: str,
        *,
        scopes: tuple[str, ...],
        expires_at: float | None,
        issuer: str | None = None,
        subject: str | None = None,
        client_id: str | None = None,
    ) -> "VerifiedToken":
        """Return a token with the client, issuer and subject to which the SDK binds sessions and open questions."""
        return cls(
            token="",
            client_id=client_id or principal,
            scopes=list(scopes),
            expires_at=None if expires_at is None else int(expires_at),
            subject=subject or principal,
            claims={"iss": issuer} if issuer else None,
            principal=principal,
            oauth_client=client_id,
        )


Identify = Callable[[], Caller]
"""Returns the caller of the current request."""


def identify_operator() -> Caller:
    """Return the operator: without authentication, every caller is the operator."""
    return Caller(LOCAL)


def identify_bearer() -> Caller:
    """Return the owner of the request's token.

    Raises:
        StoreError: the request has no verified token, although the middleware should have refused it.
    """
    token = get_access_token()
    if not isinstance(token, VerifiedToken):
        raise StoreError("the request carries no verified token; nothing was done")
    return Caller(token.principal, token.oauth_client)


class TokenCheck(TokenVerifier):
    """Verifies planwarden's own tokens; passes all others to `others`."""

    def __init__(
        self,
        tokens: TokenStore,
        clock: Clock,
        *,
        is_open: bool = False,
        scopes: tuple[str, ...] = (),
        others: TokenVerifier | None = None,
    ) -> None:
        """With `is_open`, requests need no token until somebody makes one. OAuth tokens need these `scopes`;
        planwarden's own tokens have all of them."""
        self._tokens = tokens
        self._clock = clock
        self._is_open = is_open
        self._looked_at = clock.steady()
        self._scopes = scopes
        self._others = others
        self.pass_key = secrets.token_urlsafe(32)
        """The token that the middleware gives to requests while they need none; it never leaves this process."""

    async def is_open(self) -> bool:
        """Return whether requests need no token. If they once need a token, they do until the process ends."""
        now = self._clock.steady()
        if self._is_open and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._is_open = not await self._tokens.all()
            if not self._is_open:
                logger.warning("a token was made; from now on every request needs one")
        return self._is_open

    async def verify_token(self, token: str) -> AccessToken | None:
        if token == self.pass_key:
            return VerifiedToken.create(LOCAL, scopes=self._scopes, expires_at=None) if await self.is_open() else None
        if not token.startswith(PREFIX):
            return await self._others.verify_token(token) if self._others is not None else None
        row = await self._tokens.find_valid(token, role="caller")
        if row is None:
            return None
        return VerifiedToken.create(row.principal, scopes=self._scopes, expires_at=row.expires_at)

    async def has_ended(self, token: str) -> bool:
        """Return whether a token that was valid has expired or was revoked. An issuer's token is not checked again."""
        if token != self.pass_key and not token.startswith(PREFIX):
            return False
        try:
            return await self.verify_token(token) is None
        except StoreError:
            return False
