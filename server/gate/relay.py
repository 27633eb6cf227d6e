"""Passes messages between one host and the wrapped server, and makes requests of the gate's own to that server.

Everything passes as it is, in both directions, whatever revision of the protocol the two speak; only `tools/call` is
handed to what judges calls. While the server is out of reach, each request starts it, and is answered with an error
that names it if that fails. A server that is started again gets the handshake of the host again.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, UnsetType

from planwarden.agent.common.artifact import MAX_ARTIFACT_BYTES
from planwarden.agent.common.errors import InvalidArguments, OutcomeUnknown, PlanwardenError, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Frame, RequestId
from planwarden.server.gate.upstream import Connect, LargeResult, ProcessUpstream
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.transports.log import ServerLog

logger = logging.getLogger(__name__)

MAX_REQUESTS = 1_000
"""Requests of a host, and those of its server, that may be under way at the same time."""
OLDEST_WITHOUT_HANDSHAKE = "2025-06-18"
"""The revision that a handshake is answered with while the server is out of reach, if the host names none."""
ENVELOPE = "io.modelcontextprotocol/"
"""Begins the keys of `_meta` in which each request of newer revisions says what the handshake said before."""


TASK_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
TASK_PREFIX = "planwarden-"
"""Begins the ids of the gate's own tasks."""


class RefusedRequest(ToolError):
    """The wrapped server answered a request of the gate with an error."""


class CallHandler(Protocol):
    """Judges the calls of a host."""

    async def handle(self, frame: Frame) -> bytes | None:
        """Return the line that answers the call, or None for one that passes through."""
        ...

    def note_change(self) -> None:
        """The server says that its tools changed."""
        ...


class Relay:
    """One host and its server."""

    def __init__(
        self,
        config: ServerConfig,
        log: ServerLog,
        write: Callable[[bytes], Awaitable[None]],
        tasks: TaskGroup,
        connect: Connect = ProcessUpstream,
    ) -> None:
        """`write` sends a line to the host."""
        self.config = config
        self.write = write
        self.calls: CallHandler | None = None
        """Set before the first message."""
        self._tasks = tasks
        self._upstream = connect(config, log, self)
        self._starting = anyio.Lock()
        self._handshake: Raw | None = None
        """The parameters with which the host initialized."""
        self._greeting_id: RequestId | None = None
        """Of the handshake that the server has to answer."""
        self.client: dict[str, JsonValue] = {}
        """What the host says of itself, by its last handshake or request."""
        self.envelope: dict[str, JsonValue] = {}
        """The keys of `_meta` that each request of the host has since 2026-07-28."""
        self._is_greeted = False
        """The running process had a handshake."""
        self._passing: set[RequestId] = set()
        """Requests of the host that the server has to answer."""
        self._queued: set[RequestId] = set()
        """Those that wait for the server to start."""
        self._held: dict[RequestId, anyio.CancelScope] = {}
        """Those that are answered here."""
        self._questions: dict[RequestId, _OwnRequest] = {}
        """Requests of the gate that the host has to answer."""
        self._asked: set[RequestId] = set()
        """Requests of the running server that the host has to answer."""
        self._own: dict[RequestId, _OwnRequest] = {}
        self._last_id = frames.FIRST_OWN_ID

    async def handle_host_line(self, line: bytes) -> None:
        """Pass one message of the host on, or begin to answer it."""
        frame = await frames.read_or_refuse(line, self.write)
        if frame is None:
            return
        if frame.is_request:
            await self._handle_request(frame)
        elif isinstance(frame.method, str):
            await self._handle_notification(frame)
        elif (request_id := frame.request_id) is not None and request_id in self._questions:
            self._questions[request_id].settle(frame)
        elif request_id in self._asked:
            self._asked.discard(request_id)
            with suppress(ToolError):
                await self._forward(frame)

    async def _handle_request(self, frame: Frame) -> None:
        request_id = frame.request_id
        is_ours = isinstance(request_id, int | float) and request_id >= frames.FIRST_OWN_ID
        under_way = (self._passing, self._queued, self._held)
        if request_id is None or is_ours or any(request_id in requests for requests in under_way):
            text = "the id of a request is a text or a number, and no other request under way has it"
            await self.write(frames.build_error(request_id, frames.INVALID_REQUEST, text))
            return
        if sum(map(len, under_way)) >= MAX_REQUESTS:
            text = f"{MAX_REQUESTS} requests are under way; wait for their answers"
            await self.write(frames.build_error(request_id, frames.INVALID_REQUEST, text))
            return
        self.note_client(frame)
        if frame.method == "tools/call" or self._is_about_task(frame):
            self._held[request_id] = scope = anyio.CancelScope()
            self._tasks.start_soon(self._answer_call, frame, request_id, scope)
        elif self._upstream.is_running and self._is_greeted and frame.method != "initialize":
            await self._pass(frame, request_id)
        else:
            self._queued.add(request_id)
            self._tasks.start_soon(self._start_and_pass, frame, request_id)

    def _is_about_task(self, frame: Frame) -> bool:
        """Return whether the request is about a task of the gate; other tasks are the server's own."""
        if frame.method not in TASK_METHODS:
            return False
        task_id = frames.read_value(self._read_params(frame).get("taskId"))
        return isinstance(task_id, str) and task_id.startswith(TASK_PREFIX)

    async def _handle_notification(self, frame: Frame) -> None:
        if frame.method == "notifications/cancelled":
            cancelled = frames.read_value(self._read_params(frame).get("requestId"))
            if isinstance(cancelled, int | float | str) and (scope := self._held.get(cancelled)) is not None:
                # The call itself goes on: hosts cancel by themselves when their time limit passes.
                scope.cancel()
                return
        # A server may run a call that asks for no answer.
        if self._upstream.is_running and str(frame.method).startswith("notifications/"):
            with suppress(ToolError):
                await self._forward(frame)

    async def _answer_call(self, frame: Frame, request_id: RequestId, scope: anyio.CancelScope) -> None:
        assert self.calls is not None
        try:
            with scope:
                try:
                    answer = await self.calls.handle(frame)
                except PlanwardenError as error:
                    answer = frames.build_error(request_id, frames.INVALID_PARAMS, error.message)
                if answer is not None:
                    await self.write(answer)
                else:
                    del self._held[request_id]
                    self._queued.add(request_id)
                    await self._start_and_pass(frame, request_id)
        # The outermost handler of a call: the host is told that it failed, and the log says why.
        except Exception:
            logger.exception("a call failed")
            await self.write(frames.build_error(request_id, frames.INTERNAL_ERROR, "planwarden failed; see its log"))
        finally:
            self._held.pop(request_id, None)

    async def _start_and_pass(self, frame: Frame, request_id: RequestId) -> None:
        try:
            is_handshake = frame.method == "initialize"
            if is_handshake and not isinstance(frame.params, UnsetType):
                self._handshake, self._is_greeted, self._greeting_id = frame.params, True, request_id
            await self.ensure_running(greets=not is_handshake)
        except ToolError as error:
            self._passing.add(request_id)
            await self._refuse(request_id, error.message)
            return
        finally:
            self._queued.discard(request_id)
        await self._pass(frame, request_id)
        if is_handshake:
            await anyio.sleep(self.config.settings.start_timeout_s)
            if request_id == self._greeting_id:
                await self._refuse(request_id, "it does not answer")

    def _greet_without_server(self, request_id: RequestId) -> bytes:
        """Return the answer to a handshake while the server is out of reach; the next request tries again."""
        self._is_greeted = False
        version = frames.read_value(
            (frames.read_object(self._handshake) if self._handshake else {}).get("protocolVersion")
        )
        return frames.build_result(
            request_id,
            {
                "protocolVersion": version if isinstance(version, str) else OLDEST_WITHOUT_HANDSHAKE,
                "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
                "serverInfo": {"name": self.config.name, "version": "0"},
            },
        )

    async def _pass(self, frame: Frame, request_id: RequestId) -> None:
        self._passing.add(request_id)
        try:
            await self._forward(frame)
        except ToolError as error:
            await self._refuse(request_id, error.message)

    async def _refuse(self, request_id: RequestId, message: str) -> None:
        """Answer a request that passed, unless it is answered. A handshake succeeds all the same."""
        if request_id not in self._passing:
            return
        self._passing.discard(request_id)
        if request_id == self._greeting_id:
            self._greeting_id = None
            await self.write(self._greet_without_server(request_id))
        else:
            await self.write(frames.build_error(request_id, frames.UNREACHABLE, message))

    async def _forward(self, frame: Frame) -> None:
        await self._upstream.send(frame.encode())

    async def ensure_running(self, *, greets: bool = True) -> None:
        """Start the server unless it runs, with the handshake of the host if it had one.

        Raises `ToolError`: it cannot be started; nothing was sent.
        """
        async with self._starting:
            try:
                if not self._upstream.is_running:
                    self._is_greeted = not greets
                    await self._upstream.start(self._tasks)
                if greets and not self._is_greeted and self._handshake is not None:
                    with anyio.fail_after(self.config.settings.start_timeout_s):
                        await self._exchange("initialize", msgspec.json.decode(self._handshake))
                    await self._upstream.send(frames.build_notification("notifications/initialized", {}))
            except TimeoutError:
                reason = f"it did not answer within {self.config.settings.start_timeout_s:g} s"
                raise ToolError(f"server {self.config.name!r} cannot be reached: {reason}") from None
            except ToolError as error:
                name = f"server {self.config.name!r}"
                reason = error.message.removeprefix(f"{name} ").removeprefix("cannot be reached: ")
                raise ToolError(f"{name} cannot be reached: {reason}") from None
            self._is_greeted = True

    async def request(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the result of a request of the gate's own.

        Raises:
            LargeResult: the server answered, and the answer cannot be stored.
            OutcomeUnknown: the server ended before it answered.
            RefusedRequest: the server answered with an error.
            ToolError: the server cannot be started; nothing was sent.
        """
        await self.ensure_running()
        return await self._exchange(method, params)

    async def ask_host(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the host's result of a request of the gate, which is withdrawn when this is cancelled.

        Raises `ToolError`: the host answered with an error, or with something that is not a result.
        """
        self._last_id += 1
        # Another form than the ids of a server's own requests, which are passed on.
        request_id, own = f"planwarden-{self._last_id}", _OwnRequest()
        self._questions[request_id] = own
        try:
            await self.write(frames.build_request(request_id, method, params))
            return await own.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self.write(frames.build_notification("notifications/cancelled", {"requestId": request_id}))
            raise
        finally:
            del self._questions[request_id]

    async def _exchange(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        self._last_id += 1
        request_id, own = self._last_id, _OwnRequest()
        self._own[request_id] = own
        meta = params.get("_meta")
        if self.envelope and method != "initialize":
            params = {**params, "_meta": {**self.envelope, **(meta if isinstance(meta, dict) else {})}}
        try:
            await self._upstream.send(frames.build_request(request_id, method, params))
            return await own.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(ToolError):
                cancelled: dict[str, JsonValue] = {"requestId": request_id, "reason": "the time limit has passed"}
                await self._upstream.send(frames.build_notification("notifications/cancelled", cancelled))
            raise
        finally:
            del self._own[request_id]

    async def handle_line(self, line: bytes) -> None:
        """Pass one message of the server on, or take the answer to a request of the gate."""
        try:
            frame = frames.read_frame(line)
        except InvalidArguments:
            # Servers print to their standard output; a host would not understand it either.
            return
        request_id = frame.request_id
        if isinstance(frame.method, str):
            refusal = self._note_server_message(frame)
            if refusal:
                with suppress(ToolError):
                    await self._upstream.send(frames.build_error(request_id, frames.INVALID_REQUEST, refusal))
                return
        elif (own := self._own.get(request_id if request_id is not None else "")) is not None:
            own.settle(frame)
            return
        elif request_id not in self._passing:
            return
        else:
            self._passing.discard(request_id)
            if request_id == self._greeting_id:
                self._greeting_id = None
        await self.write(frames.end_line(line))

    def _note_server_message(self, frame: Frame) -> str:
        """Return why a request of the server is not passed on, or nothing."""
        if frame.method == "notifications/tools/list_changed" and self.calls is not None:
            self.calls.note_change()
        if not frame.is_request or frame.request_id is None:
            return ""
        if len(self._asked) >= MAX_REQUESTS:
            return f"{MAX_REQUESTS} requests are under way; wait for their answers"
        if self.envelope and self._handshake is None:
            return "the host speaks a revision in which a server asks by the result of a call"
        self._asked.add(frame.request_id)
        return ""

    async def fail_request(self, request_id: RequestId | None, error: ToolError) -> None:
        """Tell what asked that there is no answer."""
        if request_id is not None and (own := self._own.get(request_id)) is not None:
            own.fail(error)
        elif request_id is not None:
            await self._refuse(request_id, error.message)

    async def handle_loss(self, reason: str) -> None:
        """Answer what the server did not answer; the next request connects again."""
        self._is_greeted = False
        self._asked.clear()
        message = f"server {self.config.name!r} ended before it answered: {reason}"
        logger.warning("%s", message)
        for own in list(self._own.values()):
            own.fail(OutcomeUnknown(message))
        for request_id in list(self._passing):
            await self._refuse(request_id, message)

    def note_client(self, frame: Frame) -> None:
        """Remember what the host says of itself in a request."""
        params = self._read_params(frame)
        meta = params.get("_meta")
        try:
            keys = {} if meta is None else frames.read_object(meta)
        except InvalidArguments:
            keys = {}
        envelope = {key: frames.read_value(value) for key, value in keys.items() if key.startswith(ENVELOPE)}
        if f"{ENVELOPE}protocolVersion" in envelope:
            self.envelope = envelope
        info = params.get("clientInfo") if frame.method == "initialize" else keys.get(f"{ENVELOPE}clientInfo")
        if isinstance(client := frames.read_value(info), dict):
            self.client = client
        if frame.method == "initialize":
            self.envelope = {}

    @property
    def capabilities(self) -> JsonValue:
        """What the host declares, in its last request or its handshake."""
        if self.envelope:
            return self.envelope.get(f"{ENVELOPE}clientCapabilities")
        return frames.read_value((frames.read_object(self._handshake) if self._handshake else {}).get("capabilities"))

    def _read_params(self, frame: Frame) -> dict[str, Raw]:
        try:
            return frame.read_params()
        except InvalidArguments:
            return {}


class _OwnRequest:
    """A request of the gate that waits for its answer."""

    def __init__(self) -> None:
        self._answered = anyio.Event()
        self._result: dict[str, JsonValue] = {}
        self._failure: ToolError | None = None

    async def wait(self) -> dict[str, JsonValue]:
        """Return the result. Raises `ToolError`: what `fail` or `settle` took as the reason."""
        await self._answered.wait()
        if self._failure is not None:
            raise self._failure
        return self._result

    def fail(self, failure: ToolError) -> None:
        if not self._answered.is_set():
            self._failure = failure
            self._answered.set()

    def settle(self, frame: Frame) -> None:
        if frame.error is not UNSET:
            error = frames.read_value(frame.error)
            message = error.get("message") if isinstance(error, dict) else None
            self.fail(RefusedRequest(str(message)[:1_000]))
            return
        if isinstance(frame.result, Raw) and len(bytes(frame.result)) > MAX_ARTIFACT_BYTES:
            size = len(bytes(frame.result))
            self.fail(LargeResult(f"the result has {size} bytes; {MAX_ARTIFACT_BYTES} can be kept", frame.result))
            return
        result = frames.read_value(frame.result if isinstance(frame.result, Raw) else None)
        if isinstance(result, dict):
            self._result = result
            self._answered.set()
        else:
            self.fail(OutcomeUnknown("the server answered with something that is not a result"))
