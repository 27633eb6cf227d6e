"""Who calls: the principal that everything is keyed by, for each request anew.

Without authentication (stdio, and HTTP on a loopback address unless tokens exist) everybody is the operator, `local`.
With it, the principal is the token's: the name a token of planwarden's own was made for, or `ISSUER#SUBJECT` of an OAuth
access token. A name cannot contain `#`, so the two never meet. The source is what the SDK's bearer middleware verified
for this very request, never a session or anything the client says besides.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken

from planwarden.agent.common.errors import StoreError
from planwarden.server.auth.settings import LOCAL


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a request is served."""

    principal: str
    client_id: str | None = None
    """The OAuth client that presented the token; None for other tokens, or when the issuer does not say."""


class VerifiedToken(AccessToken):
    """What a verifier found out about a token; the secret itself is not kept."""

    principal: str
    oauth_client: str | None = None

    @classmethod
    def granted(
        cls,
        principal: str,
        *,
        scopes: tuple[str, ...],
        expires_at: float | None,
        issuer: str | None = None,
        subject: str | None = None,
        client_id: str | None = None,
    ) -> "VerifiedToken":
        """Sessions and questions in flight are bound by the SDK to client, issuer and subject, so all three are set."""
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
"""The caller of the request that is being served."""


def operator() -> Caller:
    """Everybody who reaches a server without authentication."""
    return Caller(LOCAL)


def bearer() -> Caller:
    """The owner of the token that came with the request.

    Raises:
        StoreError: there is none, which the middleware before should have refused; nothing is served then.
    """
    token = get_access_token()
    if not isinstance(token, VerifiedToken):
        raise StoreError("the request carries no verified token; nothing was done")
    return Caller(token.principal, token.oauth_client)
