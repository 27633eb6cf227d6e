"""Requests to a server that wants a login: each gets the stored token, which is refreshed in time.

Whoever runs plans never starts a login: no address is opened, no client is registered, nothing is looked up when a server
refuses a token; the request fails and says which command a person has to run. The steps of OAuth themselves are the SDK's
(https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization). Its provider holds a lock for as long as a
request is answered; here it is asked for the token only, so that calls go on beside each other.
"""

import shlex
from contextlib import aclosing, suppress

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from pydantic import ValidationError

from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.issuer import AccessError, OwnRequests
from planwarden.tools.downstream.login import provider_of
from planwarden.tools.downstream.tokens import Keeper, LoginFile, Stamp

MAX_CHALLENGE_CHARS = 2_000
REFRESH_S = 30.0


class LoginTransport(httpx2.AsyncBaseTransport):
    """Sends requests with the stored token, if there is one."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, config: ServerConfig, file: LoginFile) -> None:
        self._inner = inner
        self._own = OwnRequests(inner, config.url or "").client()
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
        self._keeper = Keeper(self._file, self._config)
        self._provider = provider_of(self._config, self._keeper)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises `AccessError` when the server wants a login that there is not."""
        if self._refusal is not None:
            raise AccessError(self._refusal)
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
            if self._file.stamp() != self._stamp:
                self._load()
            stored = self._keeper.login.tokens
            if stored is None:
                return None
            if stored.access_token == refused:
                self._provider.context.token_expiry_time = 1.0
            try:
                # A new token that is not heard of is lost, and the old one with it.
                with anyio.fail_after(REFRESH_S, shield=True):
                    await self._ask(request)
            except AccessError:
                raise
            except (OAuthFlowError, httpx2.HTTPError, ValidationError, OSError) as error:
                text = f"its token could not be refreshed ({type(error).__name__}); nothing was sent"
                raise AccessError(text) from None
            self._stamp = self._file.stamp()
            if self._token is None:
                # The refresh was refused; another process may have been faster.
                self._load()
                tokens = self._file.load().tokens
                if tokens is None or tokens.access_token == refused:
                    raise AccessError(self._advice("its login has ended"))
                request.headers["authorization"] = f"Bearer {tokens.access_token}"
                return tokens.access_token
            if self._token == refused:
                raise AccessError(self._advice("it refuses the stored login"))
            return self._token

    @property
    def _token(self) -> str | None:
        tokens = self._provider.context.current_tokens
        return None if tokens is None else tokens.access_token

    async def _ask(self, request: httpx2.Request) -> None:
        """The provider's steps up to the point at which the request itself would be sent."""
        async with aclosing(self._provider.async_auth_flow(request)) as flow:
            outgoing = await anext(flow)
            while outgoing is not request:
                outgoing = await flow.asend(await self._own.send(outgoing))

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
                self._keeper.wants(challenge)
            self._stamp = self._file.stamp()
            raise AccessError(self._advice("it wants further rights"))

    def _advice(self, why: str) -> str:
        return f"{why}: run `{shlex.join(['planwarden', 'login', self._config.name])}`"
