"""Adds the stored token to each request to a server that wants a login, and refreshes an expired or refused token.

A process that runs plans never starts a login. If the server accepts no token, the process opens no browser, registers
no client and looks up nothing. The request fails, and its error names the command that a person must run. The SDK
implements the steps of OAuth (https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization). Its
provider holds a lock until a request is answered, so we only let it refresh the token; our requests run concurrently.
"""

import logging
import time
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from pydantic import ValidationError

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import PlanwardenError
from planwarden.tools.downstream.config import LoginLocation
from planwarden.tools.downstream.login.authorization import build_provider
from planwarden.tools.downstream.login.issuer import AccessError, IssuerRequests, describe_refusal
from planwarden.tools.downstream.login.tokens import LoginTokenStorage, StoredLogin

logger = logging.getLogger(__name__)

MAX_CHALLENGE_CHARS = 2_000
REFRESH_S = 30.0


class LoginTransport(httpx2.AsyncBaseTransport):
    """Sends requests with the stored token, if there is one."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, login: LoginLocation) -> None:
        self._inner = inner
        self._issuer = IssuerRequests(inner, login.url).client()
        self._location = login
        self._version: str | None = None
        self._use(StoredLogin(server_url=login.url))
        self._lock = anyio.Lock()
        self._is_known = False
        """Whether the server has answered a request of this connection with anything but HTTP status 401."""
        self._refusal: str | None = None
        """Why this connection sends no more requests; None if it still does."""

    async def _load(self) -> None:
        # Read the version before the login, so that a change in between is noticed and loaded later.
        version = await self._location.version()
        self._use(await StoredLogin.load(self._location))
        self._version = version

    def _use(self, login: StoredLogin) -> None:
        self._storage = LoginTokenStorage(self._location, login)
        self._provider = build_provider(self._location, self._storage)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request with the stored token, if any. Raise `AccessError` if a login is missing or unusable."""
        if self._refusal is not None:
            raise AccessError(self._refusal)
        if _origin(str(request.url)) != _origin(self._location.url):
            # A redirect leads to another origin, and no person has logged in there.
            return await self._inner.handle_async_request(request)
        sent_with = await self._authorize(request)
        response = await self._inner.handle_async_request(request)
        if response.status_code == 401 and sent_with is not None:
            await response.aclose()
            await self._authorize(request, refused=sent_with)
            response = await self._inner.handle_async_request(request)
        await self._check(response, has_token=sent_with is not None)
        return response

    async def aclose(self) -> None:
        await self._issuer.aclose()

    async def _authorize(self, request: httpx2.Request, refused: str | None = None) -> str | None:
        """Add the token to the request and return it. Refresh it first if it expired or is still the `refused` one."""
        async with self._lock:
            try:
                await self._reload_if_changed()
                if self._needs_refresh(refused):
                    async with self._location.lock():
                        await self._reload_if_changed()
                        if self._needs_refresh(refused):
                            await self._refresh(request)
            except PlanwardenError as error:
                raise AccessError(f"its login cannot be used: {error.message}; nothing was sent") from None
            stored = self._storage.login.tokens
            if stored is None:
                return None
            if stored.access_token == refused:
                raise AccessError(self._advice("it refuses the stored login"))
            request.headers["authorization"] = f"Bearer {stored.access_token}"
            return stored.access_token

    async def _reload_if_changed(self) -> None:
        if await self._location.version() != self._version:
            await self._load()

    def _needs_refresh(self, refused: str | None) -> bool:
        """Return whether the token can be refreshed, and either was refused or has expired by this machine's clock."""
        login = self._storage.login
        if login.tokens is None or login.tokens.refresh_token is None:
            return False
        has_expired = login.expires_at is not None and time.time() > login.expires_at
        return has_expired or login.tokens.access_token == refused

    async def _refresh(self, request: httpx2.Request) -> None:
        """Get and store new tokens. Raises `AccessError` when getting them fails; the old tokens stay."""
        self._provider.context.token_expiry_time = 1.0
        why: str | None = None
        try:
            # Shielded: without the answer, the new token would be lost, and the old one might no longer be valid.
            with anyio.fail_after(REFRESH_S, shield=True):
                await self._request_token(request)
        except AccessError as error:
            why = str(error)
        except TimeoutError:
            why = "its authorization server did not answer in time"
        except PlanwardenError as error:
            # The new token is in memory, so this process can still use it.
            logger.warning("the login to server %r cannot be stored: %s", self._location.config.name, error.message)
        except (OAuthFlowError, httpx2.HTTPError, ValidationError, ArithmeticError) as error:
            why = type(error).__name__
        self._version = await self._location.version()
        if why is not None:
            await self._load()
            raise AccessError(f"its token could not be refreshed ({why}); nothing was sent, try again later")
        if self._provider.context.current_tokens is None:
            await self._load()
            raise AccessError(self._advice("its login has expired"))

    async def _request_token(self, request: httpx2.Request) -> None:
        """Run the provider's steps until it would send `request` itself."""
        async with aclosing(self._provider.async_auth_flow(request)) as flow:
            outgoing = await anext(flow)
            while outgoing is not request:
                response = await self._issuer.send(outgoing)
                status = response.status_code
                # Some authorization servers refuse with 403 or 404; so do proxies, but with a page.
                is_verdict = status in (400, 401) or (status in (200, 403, 404) and _is_object(response.content))
                if not is_verdict:
                    # The SDK would conclude from this answer, perhaps a proxy's, that the login has ended.
                    why = f"its authorization server answered with {describe_refusal(response)} and no token"
                    raise AccessError(why)
                outgoing = await flow.asend(response)

    async def _check(self, response: httpx2.Response, *, has_token: bool) -> None:
        challenge = response.headers.get("www-authenticate", "")[:MAX_CHALLENGE_CHARS]
        if response.status_code == 401:
            await response.aclose()
            why = "it refuses the stored login" if has_token else "it wants a login"
            text = self._advice(why) + ("" if has_token else ", or give it an Authorization header under headers")
            if not self._is_known:
                # Keep this reason, because the next attempts, in other protocol versions, would fail for other reasons.
                self._refusal = text
            raise AccessError(text)
        self._is_known = True
        if response.status_code == 403 and has_token and "insufficient_scope" in challenge:
            await response.aclose()
            with suppress(PlanwardenError):
                await self._storage.save_challenge(challenge)
                self._version = await self._location.version()
            raise AccessError(self._advice("it wants further rights"))

    def _advice(self, why: str) -> str:
        return f"{why}: run `{self._location.command}`"


def _is_object(body: bytes) -> bool:
    with suppress(PlanwardenError):
        return isinstance(read_json(body), dict)
    return False


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of the URL (https://www.rfc-editor.org/rfc/rfc6454#section-4)."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
