"""The stored login of a person to a downstream server: one secret of the home for each server.

It holds tokens, so it is read only for a connection to its server's address, and no message, log or record shows it.
Every process of the home reads it again when it changes, so a refreshed token replaces the old one for all of them. A
process locks the login before it replaces the tokens, because a refresh token that is used twice may end the login
(https://www.rfc-editor.org/rfc/rfc9700#section-4.14.2).
"""

import re
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from mcp.client.auth import OAuthClientProvider, OAuthTokenError
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import AnyUrl, BaseModel, ConfigDict, ValidationError

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.config import LoginLocation
from planwarden.tools.downstream.listing import one_line

HOST, PATH = "127.0.0.1", "/callback"
"""Where the browser returns to, https://www.rfc-editor.org/rfc/rfc8252#section-7.3."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
"""A token that a header can carry; https://www.rfc-editor.org/rfc/rfc6750#section-2.1 allows fewer characters."""


class StoredLogin(BaseModel):
    """One login."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)
    form: Literal[1] = 1
    server_url: str
    """The server's address. If the configuration has another address now, the login is not used."""
    client: OAuthClientInformationFull | None = None
    """The client that we use at the authorization server, unless the operator registered one."""
    tokens: OAuthToken | None = None
    expires_at: float | None = None
    """Seconds since 1970; None when the server did not say when the token expires."""
    authorization_server: str | None = None
    metadata: OAuthMetadata | None = None
    """The authorization server's metadata; with it, a later process can refresh the token without a look-up."""
    resource: ProtectedResourceMetadata | None = None
    challenge: str | None = None
    """`WWW-Authenticate` of an answer that asked for further rights; the next login requests them."""

    @classmethod
    async def load(cls, location: LoginLocation) -> "StoredLogin":
        """Return the stored login, or an empty one when there is none for this address."""
        data = await location.find_secrets().read(location.name)
        with suppress(ValidationError):
            login = cls.model_validate_json(data or b"")
            if login.server_url == location.url:
                return login
        return cls(server_url=location.url)

    async def save(self, location: LoginLocation) -> None:
        """Replace the stored login as a whole."""
        await location.find_secrets().replace(location.name, self.model_dump_json(exclude_none=True).encode())


@dataclass(eq=False, repr=False)
class LoginTokenStorage:
    """Token storage for the SDK, backed by one stored login, so that a provider can continue after a restart."""

    location: LoginLocation
    login: StoredLogin
    """The stored login; between `set_client_info` and `set_tokens`, with a client that is not stored yet."""
    ignore_tokens: bool = False
    """Whether to leave the stored tokens unused; they stay stored until new ones replace them."""
    redirect_uri: str | None = None
    """The redirect address of a new login; a client that was registered with another address is not reused."""
    provider: OAuthClientProvider = field(init=False)
    """Set by `configure`."""

    def configure(self, provider: OAuthClientProvider) -> None:
        """Keep the provider, and tell it what the SDK does not store: when and where to refresh the token."""
        self.provider = provider
        if self.ignore_tokens:
            return
        context, login = provider.context, self.login
        context.token_expiry_time = login.expires_at
        context.auth_server_url = login.authorization_server
        context.oauth_metadata = login.metadata
        context.protected_resource_metadata = login.resource

    def check_issuer(self) -> None:
        """Raise `ToolError` when the operator's client would be sent to an authorization server other than its own.

        A compromised server could otherwise send a person and the client's secret anywhere.
        """
        settings = self.location.config.settings.login
        expected = settings.issuer or self._stored_issuer
        if settings.client_id is None or expected is None:
            return
        context = self.provider.context
        issuer = str(context.oauth_metadata.issuer) if context.oauth_metadata is not None else context.auth_server_url
        issuer = issuer or context.get_authorization_base_url(context.server_url)
        if not issuers_match(expected, issuer):
            raise ToolError(
                f"its authorization server is {one_line(issuer, 200)}, but the client under [servers.NAME.login] "
                f"belongs to {one_line(expected, 200)}; if that has changed, set issuer there, "
                f"or run `{self.location.command} --forget`"
            )

    def check_pkce(self) -> None:
        """Raise `ToolError` unless the authorization server says that it supports PKCE with S256.

        Without PKCE, clients must stop (https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization).
        A server of revision 2025-03-26 may publish no metadata at all; it passes, as that revision requires PKCE.
        """
        context = self.provider.context
        metadata = context.oauth_metadata
        if metadata is None and context.protected_resource_metadata is None:
            return
        if metadata is None or "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise ToolError(
                "its authorization server does not say that it supports PKCE with S256, so a stolen code would count; "
                "its operator has to turn it on and list it in code_challenge_methods_supported"
            )

    async def get_tokens(self) -> OAuthToken | None:
        return None if self.ignore_tokens else self.login.tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        settings = self.location.config.settings.login
        if settings.client_id is None:
            return self._find_registered_client()
        stored = self._stored_issuer
        is_issued_by_other = stored is None or not issuers_match(settings.issuer or stored, stored)
        if settings.issuer is not None and self.redirect_uri is None and is_issued_by_other:
            return None
        secret = self.location.config.client_secret
        return OAuthClientInformationFull(
            client_id=settings.client_id,
            client_secret=secret,
            redirect_uris=None if self.redirect_uri is None else [AnyUrl(self.redirect_uri)],
            token_endpoint_auth_method="none" if secret is None else settings.client_auth,
        )

    @property
    def _stored_issuer(self) -> str | None:
        login = self.login
        return str(login.metadata.issuer) if login.metadata is not None else login.authorization_server

    def _find_registered_client(self) -> OAuthClientInformationFull | None:
        """Return the stored client; for a new login, None if the client has expired or has another redirect address."""
        client = self.login.client
        if client is None or self.redirect_uri is None:
            return client
        # https://www.rfc-editor.org/rfc/rfc7591#section-3.2.1: 0 means never.
        has_expired = 0 < (client.client_secret_expires_at or 0) < time.time()
        is_ours = self.redirect_uri in map(str, client.redirect_uris or ())
        return client if is_ours and not has_expired else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store the tokens. A login takes the lock; a refresh already holds it."""
        if not _TOKEN.fullmatch(tokens.access_token):
            raise OAuthTokenError("the access token cannot be sent in a header")
        self.ignore_tokens = False
        # A lifetime of zero counts as unknown: with it, the token would be refreshed before every request.
        lifetime_s = tokens.expires_in or 0
        expires_at = time.time() + lifetime_s if lifetime_s > 0 else None
        context = self.provider.context
        context.token_expiry_time = expires_at
        update = {
            "tokens": tokens,
            "challenge": None,
            "expires_at": expires_at,
            "authorization_server": context.auth_server_url,
            "metadata": context.oauth_metadata,
            "resource": context.protected_resource_metadata,
        }
        self.login = self.login.model_copy(update=update)
        async with self.location.lock() if self.redirect_uri is not None else nullcontext():
            await self.login.save(self.location)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        # The client is stored together with its tokens; until then the old login stays valid.
        self.login = self.login.model_copy(update={"client": client_info})

    async def save_challenge(self, challenge: str) -> None:
        """Store which further rights the server asks for, if the login still exists. Raises `PlanwardenError`."""
        async with self.location.lock():
            # Another process may have refreshed or deleted the login since this one loaded it.
            self.login = await StoredLogin.load(self.location)
            if self.login.tokens is not None:
                self.login = self.login.model_copy(update={"challenge": challenge})
                await self.login.save(self.location)


def redirect_port(login: StoredLogin) -> int | None:
    """Return the port of the registered client's redirect address, or None. Servers may insist on the same port.

    Only addresses of this machine count, because planwarden listens nowhere else.
    """
    uris = [] if login.client is None else [urlsplit(str(uri)) for uri in login.client.redirect_uris or []]
    return next((uri.port for uri in uris if (uri.scheme, uri.hostname, uri.path) == ("http", HOST, PATH)), None)
