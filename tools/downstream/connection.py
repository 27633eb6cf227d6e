"""The connection to one downstream server: started when it is needed, listed, kept, and restarted when it is lost.

One task owns the SDK's client, because a task that enters a task group must also leave it; calls come from others.
After a loss the first restart follows at once, and each further one waits twice as long as the last, up to a minute.
During a start, callers wait. After a failed start, callers get the reason at once.

A server may ask questions (elicitation) in the middle of a call; it is offered neither sampling nor roots.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Literal, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from pydantic import JsonValue, TypeAdapter, ValidationError

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.agent.common.errors import PlanwardenError, ToolError
from planwarden.agent.core.tool import CallContext, Suspend
from planwarden.tools.downstream.child_process import ServerLog, shorten_sdk_log
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.elicitation import Answer
from planwarden.tools.downstream.in_flight_calls import InFlightCall, InFlightCalls, SendCheck, send_check
from planwarden.tools.downstream.listing import DownstreamTool, one_line, read_listing
from planwarden.tools.downstream.sdk import client, mcp, subscriptions

logger = logging.getLogger(__name__)

ConnectionState = Literal["idle", "starting", "ready", "down", "closed"]

DEBOUNCE_S = 0.2
"""The wait after a change of the tools before they are listed."""
RELIST_S = 0.6
"""The shortest wait between listings, however often the server says that its tools changed."""
STABLE_S = 30.0
"""After the loss of a connection that lasted longer than this, the count of failures starts again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""The wait before a start after one failure, and after many in a row."""
RESUBSCRIBE_S = 5.0
LOGIN_POLL_S = 1.0
"""The wait between checks for a new login, while the server is down."""
OnListing = Callable[["ServerConnection", list[JsonValue], str | None], Awaitable[None]]
"""Takes the tools as the server lists them now, and a note about what was left out."""
GatedCaller = Callable[
    [DownstreamTool, dict[str, JsonValue], CallContext], Awaitable[JsonValue | ResultWithArtifacts | Suspend]
]


@cache
def _call_result_adapter() -> TypeAdapter[Any]:
    """Return the validator of answers to calls; it is built once, because building it costs more than a call."""
    return TypeAdapter(mcp.types.CallToolResult | mcp.types.InputRequiredResult)


class ServerConnection:
    """One server. `run` must be running while the connection is used."""

    def __init__(
        self,
        config: ServerConfig,
        on_listing: OnListing,
        on_state_change: Callable[["ServerConnection"], None],
        log: ServerLog,
        login: LoginLocation | None,
    ) -> None:
        """`login` is where a person's login to the server is kept."""
        shorten_sdk_log()
        self.config = config
        self._login = login
        self.state: ConnectionState = "idle"
        self.reason: str | None = config.problem
        """Why the server is down, or what happened last."""
        self.log = log
        self._on_listing = on_listing
        self._on_state_change = on_state_change
        self._start_requested = anyio.Event()
        self.state_changed = anyio.Event()
        """Set and replaced at every change of the state."""
        self._wake = anyio.Event()
        """Wakes the task that owns the connection: the tools changed, or the connection is lost."""
        self._lost = anyio.Event()
        self.lost_reason: str | None = None
        """Why the newest connection was lost, if it was."""
        self._client: mcp.Client | None = None
        self.calls = InFlightCalls(config.name)
        self.gated_callers: dict[str, GatedCaller] = {}
        """By thread id, the function that makes a host's calls over that host's own connection."""
        self._call_tasks: TaskGroup | None = None

    def reset(self) -> None:
        """Forget an earlier run, before the next `run`."""
        self._start_requested = anyio.Event()
        self.reason = self.config.problem
        self._set_state("idle")

    def start(self) -> None:
        """Start the server if it is not running. Do not wait for it."""
        self._start_requested.set()

    async def connect(self, within_s: float) -> None:
        """Start the server if necessary, and wait until it runs and has listed its tools.

        Raises `ToolError`: the server is down or did not start in time; nothing was sent.
        """
        if not self.config.can_start:
            why = self.config.problem or "it is disabled"
            raise ToolError(f"server {self.config.name!r} is not available: {why}; nothing was sent")
        self.start()
        # Let the task that owns the connection notice a loss before the connection is used.
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(within_s):
            while not self._is_usable and self.state in ("idle", "starting", "ready"):
                await self.state_changed.wait()
        if not self._is_usable:
            why = self.reason if self.state in ("down", "closed") else f"it did not start within {within_s:g} s"
            raise ToolError(f"server {self.config.name!r} is not available: {why}; nothing was sent")

    @property
    def _is_usable(self) -> bool:
        return self._client is not None and self.lost_reason is None

    def mark_lost(self, reason: str) -> None:
        """End the connection, which cannot continue. Only the first reason is kept."""
        if self.lost_reason is None:
            self.lost_reason = reason
            self._lost.set()
            self._wake.set()

    def request_listing(self) -> None:
        """Have the tools listed again soon, because the server says that they changed."""
        self._wake.set()

    def begin(
        self,
        call: InFlightCall,
        tool: str,
        arguments: dict[str, JsonValue],
        meta: dict[str, JsonValue],
        *,
        answers: Mapping[str, Answer],
        state: str | None,
        check: SendCheck | None = None,
    ) -> None:
        """Start sending the call of a tool; `call` records what becomes of it. `check` runs just before the request.

        Raises `ToolError`: the connection was closed; nothing was sent.
        """
        client = self._client
        if self._call_tasks is None or client is None or not self._is_usable:
            raise ToolError(f"server {self.config.name!r} is not available: it was ended; nothing was sent")
        sdk_meta: Any = meta
        params = mcp.types.CallToolRequestParams(
            name=tool,
            arguments=arguments,
            input_responses={key: mcp.types.ElicitResult.model_validate(answer) for key, answer in answers.items()}
            or None,
            request_state=state,
            _meta=sdk_meta or None,
        )

        async def log_progress(progress: float, total: float | None, message: str | None) -> None:
            what = f"{self.config.name}: {call.label or tool} is at"
            logger.info("%s %g%s", what, progress, "" if total is None else f" of {total:g}")

        async def send() -> Any:
            send_check.set(check)
            request = mcp.types.CallToolRequest(params=params)
            return await client.session.send_request(request, _call_result_adapter(), progress_callback=log_progress)

        self._call_tasks.start_soon(self.calls.run, call, send)

    async def run(self) -> None:
        """Maintain the connection from the first `start` until cancelled."""
        async with anyio.create_task_group() as self._call_tasks:
            try:
                await self._maintain()
            finally:
                self._call_tasks = None

    async def _maintain(self) -> None:
        failures = 0
        try:
            while True:
                await self._start_requested.wait()
                began = time.monotonic()
                self._set_state("starting")
                try:
                    await self._connect()
                # The SDK and the server may cause an error of any type; keep the reason.
                except Exception as error:
                    self.lost_reason = self.lost_reason or _describe(error)
                    logger.debug("server %r", self.config.name, exc_info=True)
                was_ready = self._client is not None
                self._client = None
                is_stable = was_ready and time.monotonic() - began > STABLE_S
                failures = 1 if is_stable else failures + 1
                self.reason = self.lost_reason or "it ended"
                logger.warning("server %r is lost: %s", self.config.name, self.reason)
                # When a good connection is lost once, calls wait instead of being refused.
                is_first = was_ready and failures == 1
                self._set_state("starting" if is_first else "down")
                await self._wait_before_restart(0 if is_first else choose_pause_s(failures))
        finally:
            self._client = None
            self._set_state("closed")

    async def _wait_before_restart(self, seconds: float) -> None:
        """Wait for `seconds`, or until the stored login changes, because a person may have logged in."""
        login = await self._find_login_version()
        while seconds > 0 and await self._find_login_version() == login:
            await anyio.sleep(min(seconds, LOGIN_POLL_S))
            seconds -= LOGIN_POLL_S

    async def _find_login_version(self) -> str | None:
        """Return a value that differs after every change of the login; None if there is none or it cannot be read."""
        if self._login is None:
            return None
        try:
            return await self._login.version()
        except PlanwardenError as error:
            logger.debug("server %r: %s", self.config.name, error.message)
            return None

    async def _connect(self) -> None:
        """Run one connection, from its start until it is lost. Raises when the start fails."""
        self.lost_reason, self._lost, self._wake = None, anyio.Event(), anyio.Event()
        limit_s = self.config.settings.start_timeout_s
        with anyio.CancelScope(deadline=anyio.current_time() + limit_s) as starting:
            async with mcp.Client(
                self._transport(),
                cache=None,
                client_info=mcp.types.Implementation(name="planwarden", version="1"),
                message_handler=self._handle_message,
                elicitation_callback=self.calls.handle_elicitation,
            ) as client:
                try:
                    tools, note = await read_listing(client)
                except Exception as error:
                    # Keep this reason: closing the connection would set another one.
                    self.mark_lost(_describe(error))
                    raise
                starting.deadline = math.inf
                await self._on_listing(self, tools, note)
                self._client = client
                self.reason = None
                self._set_state("ready")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._subscribe, client)
                    await self._relist_on_changes(client)
                    tasks.cancel_scope.cancel()
        if starting.cancelled_caught:
            raise ToolError(self.lost_reason or f"it did not answer within {limit_s:g} s")

    def _transport(self) -> "client.Transport":
        if self.config.is_local:
            from planwarden.tools.downstream.stdio_transport import stdio_transport

            return stdio_transport(self.config, self.log, self.mark_lost, self.request_listing)
        from planwarden.tools.downstream.http_transport import http_transport

        return http_transport(self.config, self._login)

    async def _handle_message(self, message: object) -> None:
        if isinstance(message, mcp.types.ToolListChangedNotification):
            self.request_listing()

    async def _subscribe(self, client: "mcp.Client") -> None:
        """Subscribe to changes (subscriptions/listen), because since 2026-07-28 only subscribers get them."""
        offered = client.server_capabilities.tools
        if offered is None or not offered.list_changed:
            return
        pause_s = RESUBSCRIBE_S
        while True:
            try:
                async with client.listen(tools_list_changed=True) as subscription:
                    # Before the subscription, the server reported no changes, even if there were some.
                    self.request_listing()
                    async for _ in subscription:
                        self.request_listing()
            except subscriptions.ListenNotSupportedError:
                return
            except (mcp.MCPError, subscriptions.SubscriptionLost, TimeoutError) as error:
                logger.debug("server %r: %s", self.config.name, error)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _relist_on_changes(self, client: "mcp.Client") -> None:
        """List the tools again whenever they changed, until the connection is lost."""
        while True:
            await self._wake.wait()
            # A burst of changes causes only one listing; a change during that listing causes one more.
            if await self._is_lost_within(DEBOUNCE_S):
                return
            self._wake = anyio.Event()
            try:
                with anyio.fail_after(self.config.settings.start_timeout_s):
                    tools, note = await read_listing(client)
            # The known tools stay; the server itself refuses a call of a tool that it no longer has.
            except (mcp.MCPError, ValidationError, ToolError, TimeoutError) as error:
                logger.warning("server %r could not be listed again: %s", self.config.name, _describe(error))
            else:
                await self._on_listing(self, tools, note)
            if await self._is_lost_within(RELIST_S):
                return

    async def _is_lost_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._lost.wait()
        return self._lost.is_set()

    def _set_state(self, state: ConnectionState) -> None:
        changed, self.state_changed = self.state_changed, anyio.Event()
        self.state = state
        changed.set()
        self._on_state_change(self)


def choose_pause_s(failures: int) -> float:
    """Return the seconds to wait before the next start after this many failures in a row."""
    return min(FIRST_PAUSE_S * 2 ** min(failures - 1, 20), LONGEST_PAUSE_S)


def _describe(error: BaseException) -> str:
    """Return one line about an error, or about the first error of a group."""
    if isinstance(error, BaseExceptionGroup):
        return _describe(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    if isinstance(error, PlanwardenError):
        return error.message
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return one_line(f"what it sent is not valid MCP: {where}: {first['msg']}", 300)
    if isinstance(error, mcp.MCPError):
        return one_line(error.message, 300)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {one_line(lines[0], 200)}" if lines else type(error).__name__
