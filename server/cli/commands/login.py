"""The command `login`: a person at this terminal logs in to a downstream server, in the browser.

The authorization server redirects the browser to an address of this machine. The command listens there while it runs.
For each visit of the browser, it accepts only one redirect, with the `state` sent on that visit. A login needs a
terminal, so that only a person can start it, never a plan.
"""

import hmac
import socket
from argparse import Namespace
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

from planwarden.agent.common.errors import InvalidArguments, ToolError
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal
from planwarden.server.inbox.launcher import has_display, open_page
from planwarden.server.inbox.web_server import until_cancelled
from planwarden.server.settings.secrets import open_secrets
from planwarden.server.views.escaping import escape_text
from planwarden.tools.downstream.config import LoginLocation
from planwarden.tools.downstream.login.authorization import log_in
from planwarden.tools.downstream.login.issuer import is_confidential
from planwarden.tools.downstream.login.tokens import HOST, PATH, StoredLogin, redirect_port
from planwarden.tools.downstream.servers import DownstreamServers

WAIT_S = 600.0
"""How many seconds a login may take, including the time that the person needs in the browser."""
MAX_CHARS = 4_096
"""The most characters in the value of a redirect's query parameter; parameters with longer values are ignored."""

OpenUrl = Callable[[str], Awaitable[None]]


def add_login(parser: CommandParser) -> None:
    parser.handle(handle_login, has_json=False, uses_servers=True)
    parser.declare("server SERVER", "name of the server in planwarden.json")
    parser.declare("--no-open", "only print the address")
    parser.declare("--forget", "instead delete the stored login")


def handle_login(arguments: Namespace) -> int:
    home, terminal, name = open_home(arguments), build_terminal(arguments), arguments.server
    if arguments.forget:
        is_deleted = forget(home, name)
        terminal.say("The stored login was deleted." if is_deleted else "There was no login.")
    elif login(home, terminal, name, opens_browser=not arguments.no_open):
        terminal.say(f"Logged in; plans can use server {escape_text(name)} now.")
    else:
        terminal.say(f"Server {escape_text(name)} answers without a login; nothing was stored.")
    return DONE


def login(home: Home, terminal: Terminal, name: str, *, opens_browser: bool) -> bool:
    """Log in to the server. Return False if the server asks for no login. A stored login changes only when new tokens
    arrive. Raises `UsageError` without a terminal, `InvalidArguments` as `find_login` does, `ToolError` on failure."""
    find_login(home.downstream, name)
    terminal.check_can_ask(f"only a person can log in: run `{home.command('login', name)}` in a terminal")
    opens_browser = opens_browser and has_display(home.settings.environment)

    async def show(url: str) -> None:
        terminal.say("Log in here:")
        terminal.say_unbroken(f"\n{escape_text(url)}\n")
        if opens_browser and await anyio.to_thread.run_sync(open_page, url):
            terminal.say("Your browser opens it; this command waits for you to come back.")

    async def work() -> bool:
        async with open_secrets(home.settings) as secrets:
            # Check first that the login can be stored, before the person logs in.
            await secrets.check()
            home.downstream.secrets = secrets
            return await log_in_with_browser(find_login(home.downstream, name), show)

    return anyio.run(work)


def forget(home: Home, name: str) -> bool:
    """Delete the stored login. Return False when there was none."""
    login = find_login(home.downstream, name)

    async def work() -> bool:
        async with open_secrets(home.settings) as home.downstream.secrets:
            return await login.forget()

    return anyio.run(work)


def find_login(downstream: DownstreamServers, name: str) -> LoginLocation:
    """Return where the login to the named server is stored.

    Raises:
        InvalidArguments: there is no such server, or the server cannot be used or takes no logins.
    """
    config = downstream.find_config(name)
    location = downstream.login_location(config)
    if config.problem is not None:
        raise InvalidArguments(f"server {name!r} cannot be used: {config.problem}")
    if location is None or config.url is None:
        raise InvalidArguments(f"server {name!r} is a program of this machine; only servers with a url take logins")
    if not is_confidential(config.url):
        raise InvalidArguments(f"server {name!r} is not at an https address; a token would go there in the clear")
    if any(header.lower() == "authorization" for header in config.headers):
        raise InvalidArguments(
            f"server {name!r} has an Authorization header under headers, and uses that instead of a login"
        )
    return location


async def log_in_with_browser(login: LoginLocation, open_url: OpenUrl) -> bool:
    """Log in through a browser; `open_url` opens or prints an address. Return False if the server asks for no login.

    Raises:
        ToolError: the configured port cannot be used, or the login failed or was not finished within `WAIT_S`.
    """
    config = login.config
    with _create_listener(
        config.settings.login.redirect_port, redirect_port(await StoredLogin.load(login))
    ) as listener:
        failure = ToolError(
            f"nobody came back from the login to server {config.name!r} within {WAIT_S:g} s; if the page said it does "
            f"not know planwarden, run `{login.command} --forget` and log in again"
        )
        async with _listen_for_redirect(listener, open_url) as browser:
            # The error is raised outside of the block, whose task group would wrap it in an exception group.
            try:
                with anyio.move_on_after(WAIT_S):
                    return await log_in(login, browser)
            except ToolError as error:
                failure = error
        raise failure


class BrowserLogin:
    """Sends the browser to the authorization server and receives the redirect back."""

    def __init__(self, redirect_uri: str, open_url: OpenUrl) -> None:
        self.redirect_uri = redirect_uri
        self._open_url = open_url
        self._state: str | None = None
        self._parameters: dict[str, str] = {}
        self._is_back = anyio.Event()

    async def visit(self, url: str) -> None:
        [self._state] = parse_qs(urlsplit(url).query).get("state", [""])
        self._is_back = anyio.Event()
        await self._open_url(url)

    async def wait_for_callback(self) -> AuthorizationCodeResult:
        """Wait for the redirect and return its code. Raises `ToolError` if the redirect has none."""
        await self._is_back.wait()
        values = self._parameters
        if "code" not in values:
            reason = values.get("error_description") or values.get("error") or "it gave no code"
            raise ToolError(f"its authorization server said no: {escape_text(reason[:300])}")
        return AuthorizationCodeResult(code=values["code"], state=values.get("state"), iss=values.get("iss"))

    async def receive(self, request: Request) -> PlainTextResponse:
        """Handle a redirect. Any program can call this address, so only the current visit's `state` counts, once."""
        values = {key: value for key, value in request.query_params.items() if len(value) <= MAX_CHARS}
        state = self._state
        if not state or not hmac.compare_digest(values.get("state", "").encode(), state.encode()):
            return PlainTextResponse("planwarden is not waiting for this login.", 400)
        self._state, self._parameters = None, values
        self._is_back.set()
        return PlainTextResponse("planwarden has your answer. You can close this page and go back to the terminal.")


@asynccontextmanager
async def _listen_for_redirect(listener: socket.socket, open_url: OpenUrl) -> AsyncGenerator[BrowserLogin]:
    browser = BrowserLogin(f"http://{HOST}:{listener.getsockname()[1]}{PATH}", open_url)
    app = Starlette(routes=[Route(PATH, browser.receive, methods=["GET"])])
    settings = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_cancelled, uvicorn.Server(settings), [listener])
        try:
            yield browser
        finally:
            tasks.cancel_scope.cancel()


def _create_listener(configured: int | None, registered: int | None) -> socket.socket:
    """Return a socket that listens at the configured port. Without one, use the port that the client registered, or any
    free port if it is taken. Raise `ToolError` if a configured port cannot be used: the browser returns only there."""
    try:
        return socket.create_server((HOST, configured or registered or 0))
    except OSError as error:
        if configured is not None:
            reason = error.strerror or "it is taken"
            raise ToolError(
                f"cannot listen on port {configured} (redirect_port): {reason}; end what uses it, such as another "
                "`planwarden login`, or set another port and register it"
            ) from error
        return socket.create_server((HOST, 0))
