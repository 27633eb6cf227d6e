"""The command `login`: a person at this terminal logs in to a downstream server, in the browser.

The browser comes back to an address of this machine that listens for as long as the command runs and takes one answer:
the one that carries the login's own `state`. Only a person runs it: it wants a terminal, and no plan ever starts it.
"""

import hmac
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import uvicorn
from mcp.shared.auth import AuthorizationCodeResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from planwarden.agent.common.errors import InvalidArguments, ToolError, UsageError
from planwarden.server.cli.home import CliHome
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.inbox.browser import has_display, open_page
from planwarden.server.inbox.serving import until_cancelled
from planwarden.server.views.facts import escape_text
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.login.authorization import log_in
from planwarden.tools.downstream.login.issuer import is_private
from planwarden.tools.downstream.login.tokens import HOST, PATH, LoginFile, redirect_port
from planwarden.tools.downstream.servers import DownstreamServers

WAIT_S = 600.0
"""How long the person may take in the browser."""
MAX_CHARS = 4_096

Opens = Callable[[str], Awaitable[None]]


def login(home: CliHome, terminal: Terminal, name: str, *, opens: bool) -> bool:
    """Log in to the named server; False when it does not ask for that.

    Raises:
        UsageError: there is no such server, it has no address, or nobody types here.
        ToolError: the login failed; one that was stored before is still there.
    """
    config, file = found(home.downstream, name)
    if not terminal.can_ask:
        raise UsageError(f"a person logs in: run `{home.command('login', name)}` in a terminal")
    opens = opens and has_display(home.settings.environment)

    async def show(url: str) -> None:
        terminal.say("Log in here:")
        # A line would be broken at the width of the terminal, and the address could not be copied.
        terminal.screen.prompt(f"\n{escape_text(url)}\n\n")
        if opens and await anyio.to_thread.run_sync(open_page, url):
            terminal.say("Your browser opens it; this command waits for you to come back.")

    return anyio.run(logged_in, config, file, show)


def forget(home: CliHome, name: str) -> bool:
    """Delete what a login left behind; False when there was nothing.

    Raises:
        UsageError: there is no such server.
        ToolError: it cannot be deleted now.
    """
    file = found(home.downstream, name)[1]
    try:
        return anyio.run(file.forget)
    except OSError as error:
        why = error.strerror or "another process holds it"
        raise ToolError(f"the login to server {name!r} cannot be deleted: {why}; try again") from error


def found(downstream: DownstreamServers, name: str) -> tuple[ServerConfig, LoginFile]:
    """The named server and the file of its login.

    Raises:
        InvalidArguments: there is no such server, or it is not one to log in to.
    """
    config = next((config for config in downstream.configs if config.name == name), None)
    if config is None:
        names = ", ".join(repr(other.name) for other in downstream.configs) or "none"
        raise InvalidArguments(f"there is no server {name[:64]!r}; configured: {names}")
    place = downstream.login_location(config)
    if config.problem is not None:
        raise InvalidArguments(f"server {name!r} cannot be used: {config.problem}")
    if place is None or config.url is None:
        raise InvalidArguments(f"server {name!r} is a program of this machine; only servers with a url take logins")
    if not is_private(config.url):
        raise InvalidArguments(f"server {name!r} is not at an https address; a token would go there in the clear")
    if any(header.lower() == "authorization" for header in config.headers):
        raise InvalidArguments(f"server {name!r} has an Authorization header under headers, which is used instead")
    return config, LoginFile(place, config)


async def logged_in(config: ServerConfig, file: LoginFile, opens: Opens) -> bool:
    """Log in with the browser that `opens` an address. Raises `ToolError`."""
    with _listener(config.settings.login.redirect_port, redirect_port(file.load())) as listener:
        return await _with_browser(config, file, opens, listener)


async def _with_browser(config: ServerConfig, file: LoginFile, opens: Opens, listener: socket.socket) -> bool:
    failure = ToolError(
        f"nobody came back from the login to server {config.name!r} within {WAIT_S:g} s; if the page did not know "
        f"planwarden, run `{file.command} --forget` first"
    )
    async with _coming_back(listener, opens) as visitor:
        # Raised in here it would come out of the task group in a group of its own.
        try:
            with anyio.move_on_after(WAIT_S):
                return await log_in(config, file, visitor)
        except ToolError as error:
            failure = error
    raise failure


class BrowserLogin:
    """The browser between leaving for an authorization server and coming back."""

    def __init__(self, redirect_uri: str, opens: Opens) -> None:
        self.redirect_uri = redirect_uri
        self._opens = opens
        self._state: str | None = None
        self._brought: dict[str, str] = {}
        self._is_back = anyio.Event()

    async def visit(self, url: str) -> None:
        [self._state] = parse_qs(urlsplit(url).query).get("state", [""])
        self._is_back = anyio.Event()
        await self._opens(url)

    async def wait_for_callback(self) -> AuthorizationCodeResult:
        await self._is_back.wait()
        brought = self._brought
        if "code" not in brought:
            why = brought.get("error_description") or brought.get("error") or "it gave no code"
            raise ToolError(f"its authorization server said no: {escape_text(why[:300])}")
        return AuthorizationCodeResult(code=brought["code"], state=brought.get("state"), iss=brought.get("iss"))

    async def receive(self, request: Request) -> PlainTextResponse:
        """What the browser brings. Anything can reach this address; only the login's own `state` counts, once."""
        brought = {key: value for key, value in request.query_params.items() if len(value) <= MAX_CHARS}
        state = self._state
        if not state or not hmac.compare_digest(brought.get("state", "").encode(), state.encode()):
            return PlainTextResponse("This is not an answer to a login that planwarden waits for.", 400)
        self._state, self._brought = None, brought
        self._is_back.set()
        return PlainTextResponse("planwarden has your answer. You can close this page and go back to the terminal.")


@asynccontextmanager
async def _coming_back(listener: socket.socket, opens: Opens) -> AsyncGenerator[BrowserLogin]:
    visitor = BrowserLogin(f"http://{HOST}:{listener.getsockname()[1]}{PATH}", opens)
    app = Starlette(routes=[Route(PATH, visitor.receive, methods=["GET"])])
    settings = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_cancelled, uvicorn.Server(settings), [listener])
        try:
            yield visitor
        finally:
            tasks.cancel_scope.cancel()


def _listener(demanded: int | None, known: int | None) -> socket.socket:
    """At the port that the operator demands, else the one that the client is known with if it is free, else any.

    Raises:
        ToolError: the demanded port is taken; with another one the browser would not come back.
    """
    try:
        return socket.create_server((HOST, demanded or known or 0))
    except OSError as error:
        if demanded is not None:
            why = error.strerror or "it is taken"
            raise ToolError(
                f"port {demanded} (redirect_port) cannot be listened at: {why}; end what uses it, such as another "
                "`planwarden login`, or set another one and register it"
            ) from error
        return socket.create_server((HOST, 0))
