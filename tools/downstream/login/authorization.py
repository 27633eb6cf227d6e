"""A person's login to a downstream server: OAuth's authorization code with PKCE, as the SDK does it, in the person's browser.

https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization: the server says where its authorization server
is; we become a client there (one that the operator registered, a document of the operator's, or registered on the
spot), the person agrees in the browser, which comes back to an address of this machine. What follows is kept by
`downstream_tokens` and used by `downstream_access`.
"""

import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from mcp.shared.exceptions import MCPError
from mcp.types import Implementation
from pydantic import AnyUrl, ValidationError

from planwarden.agent.common.errors import ToolError
from planwarden.tools.downstream.bounded_body import ENCODINGS, bound
from planwarden.tools.downstream.completed_results import completing
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.login.issuer import IssuerRequests, check_address, refusal
from planwarden.tools.downstream.login.tokens import HOST, PATH, LoginFile, LoginTokenStorage
from planwarden.tools.downstream.tools import one_line

NOWHERE = f"http://{HOST}{PATH}"
"""Where nobody is sent: of a provider that only refreshes."""
MAX_VISITS = 2
"""Of the browser, in one login; a server that asks more often never has enough."""
CONNECT_TIMEOUT_S = 30.0
MAX_ADDRESS_CHARS = 8_192
"""Of the address that the browser visits."""
MAX_LISTING_BYTES = 8 * 1024 * 1024

# What the SDK logs there quotes answers of token endpoints.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)


class LoginBrowser(Protocol):
    """Who logs in, with a browser."""

    @property
    def redirect_uri(self) -> str:
        """Where the browser comes back to."""
        ...

    async def visit(self, url: str) -> None:
        """Send the browser to the address."""
        ...

    async def came_back(self) -> AuthorizationCodeResult:
        """What it brought when it came back. Raises `ToolError` when the person or the server said no."""
        ...


def provider_of(
    config: ServerConfig, keeper: LoginTokenStorage, person: LoginBrowser | None = None
) -> OAuthClientProvider:
    """The SDK's provider for the server; without a person it can refresh a token and no more."""
    assert config.url is not None
    settings = config.settings.login
    provider = OAuthClientProvider(
        config.url,
        OAuthClientMetadata(
            client_name="planwarden", redirect_uris=[AnyUrl(NOWHERE if person is None else person.redirect_uri)]
        ),
        keeper,
        redirect_handler=None if person is None else person.visit,
        callback_handler=None if person is None else person.came_back,
        client_metadata_url=settings.client_metadata_url,
    )
    keeper.serve(provider)
    return provider


@dataclass
class _Visits:
    """The person, who is not sent away more than a few times."""

    person: LoginBrowser
    server_url: str
    keeper: LoginTokenStorage
    number: int = 0

    @property
    def redirect_uri(self) -> str:
        return self.person.redirect_uri

    async def visit(self, url: str) -> None:
        before, _, after = url.rpartition("?")
        if "?" in before:
            # Expected, as https://www.rfc-editor.org/rfc/rfc6749#section-3.1 says: what the endpoint's address asks for is
            # kept. Actual: the SDK writes a second question mark behind it. Until the SDK knows better.
            url = f"{before}&{after}"
        check_address(url, self.server_url)
        self.keeper.check_issuer()
        asked = Counter(name for name, _ in parse_qsl(urlsplit(url).query))
        if len(url) > MAX_ADDRESS_CHARS or any(asked[name] != 1 for name in ("state", "redirect_uri", "client_id")):
            raise ToolError("the address at which it wants a person to log in is not one that OAuth knows")
        self.number += 1
        if self.number > MAX_VISITS:
            raise ToolError("it asks for one login after the other")
        await self.person.visit(url)

    async def came_back(self) -> AuthorizationCodeResult:
        return await self.person.came_back()


class _Asking(httpx2.AsyncBaseTransport):
    """Sends requests, and does what the server asks for when it wants a login."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        own: httpx2.AsyncClient,
        provider: OAuthClientProvider,
        challenge: str | None,
    ) -> None:
        self._inner = inner
        self._own = own
        self._provider = provider
        self._challenge = challenge
        self.error: Exception | None = None
        self.refusal: str | None = None
        """What an authorization server said no with, last."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._asked(request)
        except (
            OAuthFlowError,
            ToolError,
            httpx2.HTTPError,
            httpx2.StreamError,
            ValueError,
            ArithmeticError,
            OSError,
        ) as error:
            # The SDK's connection would say something else about it, and log it with what was sent.
            self.error = self.error or error
            raise httpx2.ConnectError("the login failed") from None

    async def _asked(self, request: httpx2.Request) -> httpx2.Response:
        if self.error is not None:
            raise self.error
        async with aclosing(self._provider.async_auth_flow(request)) as flow:
            outgoing = await anext(flow)
            while True:
                response = await self._sent(outgoing, is_own=outgoing is not request)
                try:
                    outgoing = await flow.asend(response)
                except StopAsyncIteration:
                    return response
                await response.aclose()

    async def _sent(self, request: httpx2.Request, *, is_own: bool) -> httpx2.Response:
        if is_own:
            answer = await self._own.send(request)
            self.refusal = refusal(answer) if answer.status_code >= 400 else None
            return answer
        if request.method == "GET":
            # Of a stream for news, whose answer may not even begin before there is some.
            return httpx2.Response(405, request=request)
        if self._challenge is not None:
            # What an earlier request was told; the server is not asked to refuse it once more.
            challenge, self._challenge = self._challenge, None
            return httpx2.Response(403, headers={"www-authenticate": challenge}, request=request)
        request.headers["accept-encoding"] = ENCODINGS
        response = await self._inner.handle_async_request(request)
        bound(response, MAX_LISTING_BYTES)
        response.request = request
        return response


async def log_in(config: ServerConfig, file: LoginFile, person: LoginBrowser) -> bool:
    """Ask the server for its tools and let the person log in when it wants that; False when it did not.

    Raises:
        ToolError: the login failed, or the server cannot be reached; what was stored before is still there.
    """
    assert config.url is not None
    stored = file.load()
    keeper = LoginTokenStorage(file, config, anew=stored.challenge is None, redirect_uri=person.redirect_uri)
    visits = _Visits(person, config.url, keeper)
    inner = httpx2.AsyncHTTPTransport()
    async with inner, IssuerRequests(inner, config.url).client() as own:
        asking = _Asking(inner, own, provider_of(config, keeper, visits), stored.challenge)
        try:
            await _listed(config, asking)
        # The SDK and a stranger's servers raise what they like, in groups; the first fault of the login itself counts.
        except Exception as error:  # noqa: BLE001
            why = _reason(asking.error or error, asking.refusal or "what it answered is not what OAuth says")
            # What the SDK says may quote secrets.
            raise ToolError(f"the login to server {config.name!r} failed: {why}") from None
    return visits.number > 0


async def _listed(config: ServerConfig, transport: httpx2.AsyncBaseTransport) -> None:
    """Do what makes every server that wants a login ask for it."""
    streams = completing(_connected(config, transport))
    named = Implementation(name="planwarden", version="1")
    async with Client(streams, cache=None, client_info=named) as client:
        await client.session.list_tools()


@asynccontextmanager
async def _connected(config: ServerConfig, transport: httpx2.AsyncBaseTransport) -> AsyncGenerator[Any]:
    assert config.url is not None
    timeout = httpx2.Timeout(connect=10.0, read=CONNECT_TIMEOUT_S, write=30.0, pool=10.0)
    async with (
        httpx2.AsyncClient(headers=dict(config.headers), timeout=timeout, transport=transport) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=MAX_LISTING_BYTES) as streams,
    ):
        yield streams


def _reason(error: BaseException, answer: str) -> str:
    """What failed, in words; `answer` is what the authorization server said last."""
    match error:
        case BaseExceptionGroup():
            return _reason(error.exceptions[0], answer)
        case OAuthRegistrationError():
            advice = "if it wants clients that were registered by hand, set client_id under [servers.NAME.login]"
            return f"its authorization server does not register planwarden: {answer}; {advice}"
        case OAuthTokenError():
            return f"its authorization server gave no token that can be used: {answer}; try again"
        case ToolError():
            return error.message
        case ValidationError():
            return "what it sent is not what OAuth says"
        case OAuthFlowError() | MCPError() | httpx2.HTTPError() | httpx2.StreamError():
            return one_line(str(error), 300) or type(error).__name__
        case TimeoutError():
            return "another process holds the file of the login; end it, or try again"
        case OSError():
            return (
                f"it cannot be kept: {error.strerror or type(error).__name__}; make room or set the rights of the home"
            )
        case _:
            return type(error).__name__
