"""Requests to a server that wants a login: each gets the stored token, which is refreshed in time.

Whoever runs plans never starts a login: no address is opened, no client is registered, nothing is looked up when a server
refuses a token; the request fails and says which command a person has to run. The steps of OAuth themselves are the SDK's
(https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization). Its provider holds a lock for as long as a
request is answered; here it is asked for the token only, so that calls go on beside each other.
"""

import logging
import time
from contextlib import aclosing, suppress
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from pydantic import ValidationError

from planwarden.tools.downstream.config import ServerConfig, Stamp
from planwarden.tools.downstream.login.authorization import provider_of
from planwarden.tools.downstream.login.issuer import AccessError, IssuerRequests, refusal
from planwarden.tools.downstream.login.tokens import LoginFile, LoginTokenStorage

logger = logging.getLogger(__name__)

MAX_CHALLENGE_CHARS = 2_000
REFRESH_S = 30.0


class LoginTransport(httpx2.AsyncBaseTransport):
    """Sends requests with the stored token, if there is one."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, config: ServerConfig, file: LoginFile) -> None:
        self._inner = inner
        self._own = IssuerRequests(inner, config.url or "").client()
        self._config = config
        self._file = file
        self._stamp: Stamp | None = None
        self._load()
        self._turn = anyio.Lock()
        self._is_known = False
        """The server has answered something other than that it wants a login."""
        self._refusal: str | None = None
        """Why it is not asked anything on this connection."""

    def _load(self) -> None:
        self._stamp = self._file.stamp()
        self._keeper = LoginTokenStorage(self._file, self._config)
        self._provider = provider_of(self._config, self._keeper)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises `AccessError` when the server wants a login that there is not."""
        if self._refusal is not None:
            raise AccessError(self._refusal)
        if _origin(str(request.url)) != _origin(self._config.url or ""):
            # A redirect, which is nobody that a person has logged in to.
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
        await self._own.aclose()

    async def _authorize(self, request: httpx2.Request, refused: str | None = None) -> str | None:
        """Put the token on the request; a `refused` one is refreshed first, unless somebody else did already."""
        async with self._turn:
            self._look()
            if self._has_to_refresh(refused):
                try:
                    async with self._file.lock():
                        self._look()
                        if self._has_to_refresh(refused):
                            await self._refresh(request)
                except OSError:
                    raise AccessError(
                        "its login cannot be written, or another process holds it; nothing was sent"
                    ) from None
            stored = self._keeper.login.tokens
            if stored is None:
                return None
            if stored.access_token == refused:
                raise AccessError(self._advice("it refuses the stored login"))
            request.headers["authorization"] = f"Bearer {stored.access_token}"
            return stored.access_token

    def _look(self) -> None:
        if self._file.stamp() != self._stamp:
            self._load()

    def _has_to_refresh(self, refused: str | None) -> bool:
        """It can, and the token was refused or has ended by this machine's clock."""
        login = self._keeper.login
        if login.tokens is None or login.tokens.refresh_token is None:
            return False
        has_ended = login.expires_at is not None and time.time() > login.expires_at
        return has_ended or login.tokens.access_token == refused

    async def _refresh(self, request: httpx2.Request) -> None:
        """New tokens, stored. Raises `AccessError` when there are none; the old ones stay then."""
        self._provider.context.token_expiry_time = 1.0
        why: str | None = None
        try:
            # A new token that is not heard of is lost, and the old one with it.
            with anyio.fail_after(REFRESH_S, shield=True):
                await self._ask(request)
        except AccessError as error:
            why = str(error)
        except TimeoutError:
            why = "its authorization server takes too long"
        except OSError as error:
            # The new token is in memory, and good for as long as this process lives.
            logger.warning("the login to server %r cannot be kept: %s", self._config.name, error.strerror)
        except (OAuthFlowError, httpx2.HTTPError, ValidationError, ArithmeticError) as error:
            why = type(error).__name__
        self._stamp = self._file.stamp()
        if why is not None:
            self._load()
            raise AccessError(f"its token could not be refreshed ({why}); nothing was sent, try again later")
        if self._provider.context.current_tokens is None:
            self._load()
            raise AccessError(self._advice("its login has ended"))

    async def _ask(self, request: httpx2.Request) -> None:
        """The provider's steps up to the point at which the request itself would be sent."""
        async with aclosing(self._provider.async_auth_flow(request)) as flow:
            outgoing = await anext(flow)
            while outgoing is not request:
                response = await self._own.send(outgoing)
                if response.status_code == 429 or response.status_code >= 500:
                    # The SDK would take it for the end of the login.
                    raise AccessError(f"its authorization server answered with {refusal(response)}")
                outgoing = await flow.asend(response)

    async def _check(self, response: httpx2.Response, *, has_token: bool) -> None:
        challenge = response.headers.get("www-authenticate", "")[:MAX_CHALLENGE_CHARS]
        if response.status_code == 401:
            await response.aclose()
            why = "it refuses the stored login" if has_token else "it wants a login"
            text = self._advice(why) + ("" if has_token else ", or give it an Authorization header under headers")
            if not self._is_known:
                # What is tried next, in another version of the protocol, would fail for other reasons.
                self._refusal = text
            raise AccessError(text)
        self._is_known = True
        if response.status_code == 403 and has_token and "insufficient_scope" in challenge:
            await response.aclose()
            with suppress(OSError):
                await self._keeper.wants(challenge)
            self._stamp = self._file.stamp()
            raise AccessError(self._advice("it wants further rights"))

    def _advice(self, why: str) -> str:
        return f"{why}: run `{self._file.command}`"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """https://www.rfc-editor.org/rfc/rfc6454#section-4"""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
