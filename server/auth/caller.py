"""Identifies the caller of each request: the principal that owns what the request creates or reads.

Without authentication (stdio, and HTTP on a loopback address unless tokens exist) everybody is the operator, `local`.
Otherwise the token decides: the principal is the name for which planwarden made the token, or `ISSUER#SUBJECT` of an
OAuth access token. A name cannot contain `#`, so the two cannot collide. The token is the one that the SDK's bearer
middleware verified for this request; sessions and other claims of the client do not count.
"""

from collections.abc import Callable

import msgspec
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.requester import LOCAL


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
        """Set client, issuer and subject, to which the SDK binds sessions and open questions."""
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
    """Return the operator, who is every caller of a server without authentication."""
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
