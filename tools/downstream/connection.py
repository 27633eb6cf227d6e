"""One downstream server: started when it is needed, listed, kept, and started again when it is lost.

A task of its own owns the SDK's client, because a task group has to be left where it was entered; calls come from other
tasks. After a loss the first new start comes at once, further ones after twice the time of the last, up to a minute. While
it starts, whoever needs it waits; when a start has failed, they are told why and do not wait.

A server may ask questions (elicitation) in the middle of a call; sampling and roots are not offered to it.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from pydantic import JsonValue, ValidationError

from planwarden.agent.common.canonical import is_larger
from planwarden.agent.common.errors import PlanwardenError, ToolError
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.in_flight import InFlightCall, InFlightCalls
from planwarden.tools.downstream.tools import one_line
from planwarden.tools.downstream.transports.log import ServerLog

if TYPE_CHECKING:
    # Importing the SDK takes up to a second, which a process that calls no downstream tool need not spend.
    from mcp.client import Client, ClientSession, Transport
    from mcp.client.session import ClientRequestContext
    from mcp.types import ElicitRequestParams, ElicitResult, ErrorData

logger = logging.getLogger(__name__)

MAX_TOOLS = 1_000
MAX_PAGES = 100
MAX_LISTING_BYTES = 6 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTiming:
    """How fast a link goes on after news, in seconds."""

    debounce_s: float = 0.2
    relist_s: float = 2.0
    """Between listings, however often the server says that its tools changed."""
    stable_s: float = 30.0
    """A connection that held this long was a good one."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 60.0
    listen_again_s: float = 5.0
    look_s: float = 1.0
    """Between looks for a new login, while the server is down."""

    def pause_s(self, failures: int) -> float:
        """How long to wait before the next start, after so many failures in a row."""
        return min(self.first_pause_s * 2 ** min(failures - 1, 20), self.longest_pause_s)


State = Literal["idle", "starting", "ready", "down", "closed"]


class Listener(Protocol):
    """Who is told about one link."""

    def listed(self, link: "ServerConnection", tools: list[JsonValue], note: str | None) -> None:
        """The server's tools as it lists them now; `note` says what was left out."""
        ...

    def changed(self, link: "ServerConnection") -> None:
        """Its state is another one."""
        ...


class ServerConnection:
    """One server. `run` has to run while it is used."""

    def __init__(
        self,
        config: ServerConfig,
        listener: Listener,
        log: ServerLog,
        pace: ConnectionTiming,
        login: LoginLocation | None = None,
    ) -> None:
        """`login` is where a person's login to the server is kept."""
        self.config = config
        self._login = login
        self.state: State = "idle"
        self.reason: str | None = config.problem
        """Why it is down, or what happened last."""
        self.log = log
        self.starts = 0
        self._listener = listener
        self._pace = pace
        self._wanted = anyio.Event()
        self._moved = anyio.Event()
        """Set and replaced whenever the state changes."""
        self._news = anyio.Event()
        """Something for the task that owns the connection."""
        self._gone = anyio.Event()
        """The connection is lost."""
        self._lost: str | None = None
        """Why."""
        self._client: Client | None = None
        self.talks = InFlightCalls(config.name)
        """Calls that are under way."""
        self._calls: TaskGroup | None = None

    def reset(self) -> None:
        """Before `run`, after an earlier one was left: nothing is wanted and nothing is known to be wrong."""
        self._wanted = anyio.Event()
        self.reason = self.config.problem
        self._move("idle")

    def want(self) -> None:
        """Start it if it is not running; returns at once."""
        self._wanted.set()

    async def session(self, within_s: float) -> "ClientSession":
        """The session of the running, listed server; starts it and waits for it.

        Raises:
            ToolError: it is down or did not come up in time; nothing was sent.
        """
        self.want()
        # What has happened to the connection is noticed before it is used.
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(within_s):
            while not self._is_usable and self.state in ("idle", "starting", "ready"):
                await self._moved.wait()
        if self._client is None or not self._is_usable:
            why = self.reason if self.state in ("down", "closed") else f"it did not start within {within_s:g} s"
            raise ToolError(f"server {self.config.name!r} is not available: {why}; nothing was sent")
        return self._client.session

    @property
    def _is_usable(self) -> bool:
        return self._client is not None and self._lost is None

    def lose(self, reason: str) -> None:
        """The connection cannot go on; the first reason counts."""
        if self._lost is None:
            self._lost = reason
            self._gone.set()
            self._news.set()

    @property
    def loss(self) -> str | None:
        """Why the newest connection was lost, if it was."""
        return self._lost

    def listed_again(self) -> None:
        """The server says that its tools changed."""
        self._news.set()

    def begin(self, talk: InFlightCall, send: Callable[[], Awaitable[Any]]) -> None:
        """Send a call; `talk` hears how it goes. Raises `ToolError` when the link has ended."""
        if self._calls is None:
            raise ToolError(f"server {self.config.name!r} is not available: it was ended; nothing was sent")
        self.talks.begin(self._calls, talk, send)

    async def run(self) -> None:
        """Keep the connection as long as it is wanted, until cancelled."""
        async with anyio.create_task_group() as self._calls:
            try:
                await self._keep()
            finally:
                self._calls = None

    async def _keep(self) -> None:
        failures = 0
        try:
            while True:
                await self._wanted.wait()
                began = time.monotonic()
                self._move("starting")
                try:
                    await self._serve()
                # What an SDK and a stranger's process can raise between them has no end; the reason is kept.
                except Exception as error:
                    self._lost = self._lost or _reason(error)
                    logger.debug("server %r", self.config.name, exc_info=True)
                was_ready = self._client is not None
                self._client = None
                is_stable = was_ready and time.monotonic() - began > self._pace.stable_s
                failures = 1 if is_stable else failures + 1
                self.reason = self._lost or "it ended"
                logger.warning("server %r is lost: %s", self.config.name, self.reason)
                # One loss of a good connection is no reason to turn calls away.
                is_first = was_ready and failures == 1
                self._move("starting" if is_first else "down")
                await self._rest(0 if is_first else self._pace.pause_s(failures))
        finally:
            self._client = None
            self._move("closed")

    async def _rest(self, seconds: float) -> None:
        """Wait before the next start, no longer than until a person has logged in."""
        login = self._login.stamp() if self._login is not None else None
        while seconds > 0 and (self._login is None or self._login.stamp() == login):
            await anyio.sleep(min(seconds, self._pace.look_s))
            seconds -= self._pace.look_s

    async def _serve(self) -> None:
        """One connection, from start to loss. Raises when it cannot be made."""
        from mcp.client import Client
        from mcp.types import Implementation

        from planwarden.tools.downstream.completed_results import completing

        self._lost, self._gone, self._news = None, anyio.Event(), anyio.Event()
        self.starts += 1
        limit_s = self.config.settings.start_timeout_s
        with anyio.CancelScope(deadline=anyio.current_time() + limit_s) as starting:
            async with Client(
                completing(self._transport()),
                cache=None,
                client_info=Implementation(name="planwarden", version="1"),
                message_handler=self._heard,
                elicitation_callback=self._asked,
            ) as client:
                tools, note = await self._first_listing(client)
                starting.deadline = math.inf
                self._client = client
                self._listener.listed(self, tools, note)
                self.reason = None
                self._move("ready")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen, client)
                    await self._tend(client)
                    tasks.cancel_scope.cancel()
        if starting.cancelled_caught:
            raise ToolError(self._lost or f"it did not answer within {limit_s:g} s")

    def _transport(self) -> "Transport":
        if self.config.is_local:
            from planwarden.tools.downstream.transports.stdio import stdio_transport

            return stdio_transport(self.config, self.log, self.lose, self.listed_again)
        from planwarden.tools.downstream.transports.http import http_transport

        return http_transport(self.config, self._login)

    async def _heard(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.listed_again()

    async def _asked(
        self, context: "ClientRequestContext", params: "ElicitRequestParams"
    ) -> "ElicitResult | ErrorData":
        return await self.talks.elicited(params)

    async def _listen(self, client: "Client") -> None:
        """On 2026-07-28 a server tells of changes only to who asked: subscriptions/listen."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        offered = client.server_capabilities.tools
        if offered is None or not offered.list_changed:
            return
        pause_s = self._pace.listen_again_s
        while True:
            try:
                async with client.listen(tools_list_changed=True) as subscription:
                    # What changed before anybody listened was told to nobody.
                    self.listed_again()
                    async for _ in subscription:
                        self.listed_again()
            except ListenNotSupportedError:
                return
            except (MCPError, SubscriptionLost, TimeoutError) as error:
                logger.debug("server %r: %s", self.config.name, error)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._pace.longest_pause_s)

    async def _tend(self, client: "Client") -> None:
        """List again when the tools changed, until the connection is lost."""
        from mcp.shared.exceptions import MCPError

        while True:
            await self._news.wait()
            # A storm of changes is one change; what comes while it is listed is seen by the next turn.
            if await self._is_gone_within(self._pace.debounce_s):
                return
            self._news = anyio.Event()
            try:
                with anyio.fail_after(self.config.settings.start_timeout_s):
                    tools, note = await self._listing(client)
            # The tools that are known stay; the server itself refuses a call of one that is gone.
            except (MCPError, ValidationError, ToolError, TimeoutError) as error:
                logger.warning("server %r could not be listed again: %s", self.config.name, _reason(error))
            else:
                self._listener.listed(self, tools, note)
            if await self._is_gone_within(self._pace.relist_s):
                return

    async def _is_gone_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._gone.wait()
        return self._gone.is_set()

    async def _first_listing(self, client: "Client") -> tuple[list[JsonValue], str | None]:
        try:
            return await self._listing(client)
        except Exception as error:
            # Told before the connection is closed, which has reasons of its own.
            self.lose(_reason(error))
            raise

    async def _listing(self, client: "Client") -> tuple[list[JsonValue], str | None]:
        from mcp.types import PaginatedRequestParams

        if client.server_capabilities.tools is None:
            return [], "it offers no tools"
        found: list[JsonValue] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            for tool in page.tools[: MAX_TOOLS - len(found)]:
                found.append(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
            if len(page.tools) > MAX_TOOLS or (len(found) >= MAX_TOOLS and page.next_cursor is not None):
                return self._bounded(found), f"it lists more than {MAX_TOOLS} tools; the others are left out"
            cursor = page.next_cursor
            if cursor is None:
                return self._bounded(found), None
            if cursor in seen:
                return self._bounded(found), "its listing comes back to a page that it gave before"
            seen.add(cursor)
        return self._bounded(found), f"its listing has more than {MAX_PAGES} pages; the others are left out"

    def _bounded(self, found: list[JsonValue]) -> list[JsonValue]:
        if is_larger(found, MAX_LISTING_BYTES):
            raise ToolError(f"its listing is larger than {MAX_LISTING_BYTES} bytes")
        return found

    def _move(self, state: State) -> None:
        moved, self._moved = self._moved, anyio.Event()
        self.state = state
        moved.set()
        self._listener.changed(self)


def _reason(error: BaseException) -> str:
    """The one sentence in an error, or in a group of them."""
    from mcp.shared.exceptions import MCPError

    if isinstance(error, BaseExceptionGroup):
        return _reason(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    if isinstance(error, PlanwardenError):
        return error.message
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return one_line(f"what it sent is not what MCP says: {where}: {first['msg']}", 300)
    if isinstance(error, MCPError):
        return one_line(error.message, 300)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {one_line(lines[0], 200)}" if lines else type(error).__name__
