"""Logs a person in to a downstream server: the SDK runs OAuth's authorization code flow with PKCE in a browser.

The protocol is https://modelcontextprotocol.io/specification/2026-07-28/basic/authorization. The server names its
authorization server. There we are the client that the operator registered, or the client that the operator's document
describes; otherwise we register one. The person agrees in the browser, which then returns to an address of this
machine. `tokens.py` stores the tokens, and `transport.py` uses them.
"""

import logging
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from mcp.shared.exceptions import MCPError
from mcp.types import Implementation
from pydantic import AnyUrl, ValidationError

from planwarden.agent.common.errors import PlanwardenError, ToolError
from planwarden.tools.downstream.bounded_streams import ENCODINGS, bound_answer, connect_streams
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.listing import one_line
from planwarden.tools.downstream.login.issuer import IssuerRequests, check_address, describe_refusal
from planwarden.tools.downstream.login.tokens import HOST, PATH, LoginTokenStorage, StoredLogin

UNUSED_REDIRECT_URI = f"http://{HOST}{PATH}"
"""The redirect address of a provider that only refreshes tokens and opens no browser."""
MAX_VISITS = 2
"""How often one login may send the browser to an address; without this limit, a server could ask forever."""
READ_TIMEOUT_S = 30.0
MAX_ADDRESS_CHARS = 8_192
"""The longest address that the browser visits."""
MAX_LISTING_BYTES = 8 * 1024 * 1024

_HTTP_ERRORS = (httpx2.HTTPError, httpx2.StreamError)

# The SDK writes answers of token endpoints to this log, and they can contain secrets.
logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)


class LoginBrowser(Protocol):
    """The browser of the person who logs in."""

    @property
    def redirect_uri(self) -> str:
        """The address to which the browser returns."""
        ...

    async def visit(self, url: str) -> None:
        """Open the address in the browser."""
        ...

    async def wait_for_callback(self) -> AuthorizationCodeResult:
        """Wait for the browser's code and return it. Raises `ToolError` if the person or server refused the login."""
        ...


def build_provider(
    login: LoginLocation, storage: LoginTokenStorage, browser: LoginBrowser | None = None
) -> OAuthClientProvider:
    """Return the SDK's provider for the server. Without a browser, the provider can only refresh a token."""
    redirect_uri = AnyUrl(UNUSED_REDIRECT_URI if browser is None else browser.redirect_uri)
    provider = OAuthClientProvider(
        login.url,
        OAuthClientMetadata(client_name="planwarden", redirect_uris=[redirect_uri]),
        storage,
        redirect_handler=None if browser is None else browser.visit,
        callback_handler=None if browser is None else browser.wait_for_callback,
        client_metadata_url=login.config.settings.login.client_metadata_url,
    )
    storage.configure(provider)
    return provider


@dataclass
class _LimitedBrowser:
    """Checks each address before the browser visits it, and limits the number of visits."""

    browser: LoginBrowser
    server_url: str
    storage: LoginTokenStorage
    visits: int = 0

    def __post_init__(self) -> None:
        self.redirect_uri = self.browser.redirect_uri
        self.wait_for_callback = self.browser.wait_for_callback

    async def visit(self, url: str) -> None:
        before, _, after = url.rpartition("?")
        if "?" in before:
            # A query in the address must be kept (https://www.rfc-editor.org/rfc/rfc6749#section-3.1), but the SDK adds
            # its parameters after a second question mark. This can go once the SDK is fixed.
            url = f"{before}&{after}"
        check_address(url, self.server_url)
        self.storage.check_issuer()
        self.storage.check_pkce()
        names = Counter(name for name, _ in parse_qsl(urlsplit(url).query))
        if len(url) > MAX_ADDRESS_CHARS or any(names[name] != 1 for name in ("state", "redirect_uri", "client_id")):
            raise ToolError("the address at which it wants a person to log in is not valid OAuth")
        self.visits += 1
        if self.visits > MAX_VISITS:
            raise ToolError("it asks for one login after another")
        await self.browser.visit(url)


@dataclass(eq=False)
class _LoginFlowTransport(httpx2.AsyncBaseTransport):
    """Sends requests, and runs the login when the server wants one."""

    inner: httpx2.AsyncBaseTransport
    issuer_client: httpx2.AsyncClient
    provider: OAuthClientProvider
    storage: LoginTokenStorage
    challenge: str | None
    error: Exception | None = None
    refusal: str | None = None
    """A description of the authorization server's last answer, if that answer was a refusal."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return await self._run_flow(request)
        except (OAuthFlowError, PlanwardenError, *_HTTP_ERRORS, ValueError, ArithmeticError, OSError) as error:
            # Keep this error here: the SDK's connection would log it with what was sent, and report a different one.
            self.error = self.error or error
            raise httpx2.ConnectError("the login failed") from None

    async def _run_flow(self, request: httpx2.Request) -> httpx2.Response:
        if self.error is not None:
            raise self.error
        async with aclosing(self.provider.async_auth_flow(request)) as flow:
            outgoing = await anext(flow)
            while True:
                response = await self._send(outgoing, to_issuer=outgoing is not request)
                try:
                    outgoing = await flow.asend(response)
                except StopAsyncIteration:
                    return response
                await response.aclose()

    async def _send(self, request: httpx2.Request, *, to_issuer: bool) -> httpx2.Response:
        if to_issuer:
            if request.headers.get("content-type") == "application/json":
                # Of all requests to the authorization server, only a registration is JSON.
                self.storage.check_pkce()
            answer = await self.issuer_client.send(request)
            self.refusal = describe_refusal(answer) if answer.status_code >= 400 else None
            return answer
        if request.method == "GET":
            # A GET would open a stream of messages, whose answer might not begin until the first message arrives.
            return httpx2.Response(405, request=request)
        if self.challenge is not None:
            # Repeat the stored refusal of an earlier request, so that the server does not have to send it again.
            challenge, self.challenge = self.challenge, None
            return httpx2.Response(403, headers={"www-authenticate": challenge}, request=request)
        request.headers["accept-encoding"] = ENCODINGS
        response = await self.inner.handle_async_request(request)
        bound_answer(response, MAX_LISTING_BYTES)
        response.request = request
        return response


async def log_in(login: LoginLocation, browser: LoginBrowser) -> bool:
    """List the server's tools, and let the person log in if the server wants that. Return whether it wanted a login.

    Raises `ToolError`: the login failed, or the server cannot be reached. Only new tokens change the stored login.
    """
    stored, redirect_uri = await StoredLogin.load(login), browser.redirect_uri
    storage = LoginTokenStorage(login, stored, ignore_tokens=stored.challenge is None, redirect_uri=redirect_uri)
    limited = _LimitedBrowser(browser, login.url, storage)
    inner = httpx2.AsyncHTTPTransport()
    async with inner, IssuerRequests(inner, login.url).client() as issuer_client:
        provider = build_provider(login, storage, limited)
        flow = _LoginFlowTransport(inner, issuer_client, provider, storage, stored.challenge)
        try:
            await _list_tools(login.config, flow)
        # The SDK and other servers can cause any error, even exception groups. The login's own first error counts.
        except Exception as error:  # noqa: BLE001
            why = _describe(flow.error or error, flow.refusal or "its answer is not valid OAuth")
            # The SDK's message may quote secrets.
            raise ToolError(f"the login to server {login.config.name!r} failed: {why}") from None
    return limited.visits > 0


async def _list_tools(config: ServerConfig, transport: httpx2.AsyncBaseTransport) -> None:
    """Connect and list the tools: a server that wants a login asks for it in its answer to one of these requests."""
    streams = connect_streams(config, transport, MAX_LISTING_BYTES, read_s=READ_TIMEOUT_S)
    client_info = Implementation(name="planwarden", version="1")
    async with Client(streams, cache=None, client_info=client_info) as client:
        await client.session.list_tools()


def _describe(error: BaseException, refusal: str) -> str:
    """Return what failed. `refusal` describes the last answer of the authorization server."""
    match error:
        case BaseExceptionGroup():
            return _describe(error.exceptions[0], refusal)
        case OAuthRegistrationError():
            advice = "if it wants clients that were registered by hand, set client_id under [servers.NAME.login]"
            return f"its authorization server does not register planwarden: {refusal}; {advice}"
        case OAuthTokenError():
            return f"its authorization server returned no usable token: {refusal}; try again"
        case PlanwardenError():
            return error.message
        case ValidationError():
            return "what it sent is not valid OAuth"
        case OAuthFlowError() | MCPError() | httpx2.HTTPError() | httpx2.StreamError():
            return one_line(str(error), 300) or type(error).__name__
        case _:
            return type(error).__name__
