"""Passes messages between one host and its servers, and makes the gate's own requests to both sides.

Messages pass in both directions and in every revision of the protocol. Only ids change, and keys that only planwarden
may set. Only `tools/call` and requests about the gate's own tasks go to the judge of calls. While a server is out of
reach, each request tries to start the server; if that fails, the answer is an error that names the server. A restarted
server gets the host's handshake and subscriptions again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol
from uuid import uuid4

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from planwarden.agent.common.artifact import MAX_ARTIFACT_BYTES
from planwarden.agent.common.errors import InvalidArguments, OutcomeUnknown, PlanwardenError, StoreError, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Client, Frame, RequestId, read_client
from planwarden.tools.downstream.child_process import MAX_LINE_BYTES, OversizedLine, cut_line
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.listing import MAX_PAGES

logger = logging.getLogger(__name__)

MAX_REQUESTS = 1_000
"""How many requests from a host, and how many requests to it, may be under way at the same time."""
TOO_MANY = f"{MAX_REQUESTS} requests are under way; wait for their answers"
FALLBACK_VERSION = "2025-06-18"
"""The revision that the gate names when it answers a handshake itself and the host named no revision."""
SUBSCRIPTION_METHODS = frozenset({"resources/subscribe", "resources/unsubscribe"})
TASK_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel"})
TASK_PREFIX = "planwarden-"
"""The beginning of the ids of the gate's own tasks."""


class RefusedRequest(ToolError):
    """The wrapped server answered a request of the gate with an error."""


class LargeResult(ToolError):
    """The wrapped server's result is too large to be stored. `raw` is the result; None if it is too large to read."""

    def __init__(self, message: str, raw: Raw | None) -> None:
        super().__init__(message)
        self.raw = raw


class CallJudge(Protocol):
    """Judges the calls of a host to one server while the store is open."""

    tools: Any
    """A `GatedTools`. This module does not import the class, because the import is slow."""

    async def handle(self, frame: Frame) -> bytes | None:
        """Return the line that answers the call, or None for a call that passes through."""
        ...

    async def record_delivery(self, frame: Frame) -> None:
        """Record that the host has the answer to the call."""
        ...

    async def find_login(self) -> LoginLocation | None:
        """Return where the login for the server is kept; None for a local server."""
        ...


class Upstream(Protocol):
    """The connection to one server."""

    receiver: "Relay"
    """The relay that gets the server's messages; it is set before the start."""

    @property
    def is_running(self) -> bool: ...

    async def start(self, tasks: TaskGroup) -> None:
        """Open the connection, and tell the receiver when it ends. Raises `ToolError`: it cannot be opened."""
        ...

    async def send(self, line: bytes) -> None:
        """Send one message.

        Raises:
            OutcomeUnknown: the connection ended while sending; the message may have reached the server.
            ToolError: nothing was sent, for example because there is no connection.
        """
        ...

    async def reset(self) -> None:
        """Make the server forget earlier messages, so that it accepts a handshake again."""
        ...


class Host:
    """One host and its servers: the host's unanswered requests, and the requests that the host has to answer."""

    names_servers = False
    """Whether the host knows each tool by its name in the catalogue, which begins with the name of the server."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], tasks: TaskGroup) -> None:
        """`write` sends a line to the host."""
        self.write = write
        self.tasks = tasks
        self.relays: list[Relay] = []
        self.needs_store = anyio.Event()
        """Set once a call needs the store, or the gate ends."""
        self.is_opened = anyio.Event()
        """Set once the store and the engine are open, or cannot be opened."""
        self.failure: PlanwardenError = StoreError("planwarden is about to end")
        """Why the store cannot be opened."""
        self.handshake: Raw | UnsetType = UNSET
        """The parameters of the host's last `initialize` request."""
        self.client = Client()
        """The client of the last request."""
        self.greeted_client = Client()
        """The client of the last handshake. Requests that say nothing about their client come from this one."""
        self._requests: dict[RequestId, anyio.CancelScope] = {}
        self._questions: dict[RequestId | None, asyncio.Future[Frame] | tuple[Relay, RequestId]] = {}
        """Requests that the host has to answer: a future for the gate's requests, else a relay and the server's id."""
        self._ids = count(1)

    def fail(self, reason: PlanwardenError) -> None:
        """From now on, answer each call with the reason why the store cannot be opened."""
        self.failure = reason
        self.is_opened.set()

    async def handle_line(self, line: bytes | OversizedLine) -> None:
        """Pass one message of the host on, or begin to answer it."""
        if isinstance(line, OversizedLine):
            text = f"the line is longer than {MAX_LINE_BYTES} bytes"
            await self.write(frames.build_error(frames.find_id_in_edges(line), frames.PARSE_ERROR, text))
            return
        if not line.strip():
            return
        try:
            frame = frames.read_frame(line)
        except InvalidArguments as error:
            await self.write(frames.build_error(frames.find_request_id(line), frames.PARSE_ERROR, error.message))
            return
        if frame.is_request:
            await self._begin(frame)
        elif isinstance(frame.method, str):
            # Other messages without an id are dropped: they expect no answer, but a server might run such a call.
            if frame.method.startswith("notifications/"):
                self._pass_notification(frame)
        elif isinstance(question := self._questions.get(frame.request_id), tuple):
            del self._questions[frame.request_id]
            question[0].forward(replace(frame, id=question[1]))
        elif question is not None and not question.done():
            question.set_result(frame)

    async def _begin(self, frame: Frame) -> None:
        request_id = frame.request_id
        if request_id is None or self.has_request(request_id):
            text = "the id of a request must be a text or a number that no other request under way has"
            await self.write(frames.build_error(request_id, frames.INVALID_REQUEST, text))
        elif len(self._requests) >= MAX_REQUESTS:
            await self.write(frames.build_error(request_id, frames.INVALID_REQUEST, TOO_MANY))
        else:
            self.client = read_client(frame, self.greeted_client)
            if frame.method == "initialize":
                self.handshake, self.greeted_client = frame.params, self.client
            self._requests[request_id] = scope = anyio.CancelScope()
            self.tasks.start_soon(self._answer, frame, request_id, scope)

    def has_request(self, request_id: RequestId) -> bool:
        """Return whether the id belongs to a request under way, of the host or of the gate."""
        return request_id in self._requests or any(relay.is_asked(request_id) for relay in self.relays)

    async def _answer(self, frame: Frame, request_id: RequestId, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                try:
                    answer = await self.route(frame)
                except PlanwardenError as error:
                    answer = frames.build_error(request_id, frames.INVALID_PARAMS, error.message)
                # This is the outermost handler: the host learns that the request failed, and the log why.
                except Exception:
                    logger.exception("a request failed")
                    text = "planwarden failed; see its log"
                    answer = frames.build_error(request_id, frames.INTERNAL_ERROR, text)
                await self.write(answer)
                for relay in self.relays:
                    if relay.judge is not None:
                        await relay.judge.record_delivery(frame)
        finally:
            del self._requests[request_id]

    async def route(self, frame: Frame) -> bytes:
        """Return the answer to a request. Raises `PlanwardenError`: it cannot be answered."""
        return await self.relays[0].answer(frame)

    def _pass_notification(self, frame: Frame) -> None:
        relays = self.relays
        if frame.method == "notifications/cancelled":
            cancelled = frames.read_value(frame.read_member("requestId"))
            if isinstance(cancelled, int | float | str):
                if (scope := self._requests.get(cancelled)) is not None:
                    # A call that the gate judges is not cancelled: hosts cancel by themselves after a time limit.
                    relays = [relay for relay in relays if relay.is_asked(cancelled)]
                    scope.cancel()
                elif self.has_request(cancelled):
                    # The host must not cancel a request that the gate itself made.
                    return
        for relay in relays:
            relay.forward(frame)

    def stop_waiting(self, request_id: RequestId) -> None:
        """Stop answering a request whose client is gone, unless a server still has to answer the request."""
        scope = self._requests.get(request_id)
        if scope is not None and not any(relay.is_asked(request_id) for relay in self.relays):
            scope.cancel()

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Send the host a request of the gate itself, and return the result. If cancelled, withdraw the request.

        Raises `ToolError`: the host answered with an error, or with something that is not a result.
        """
        # Servers choose the ids of their own requests, so no server may be able to guess this id.
        request_id = f"planwarden-{uuid4().hex}"
        self._questions[request_id] = answer = asyncio.get_running_loop().create_future()
        try:
            await self.write(frames.build_request(request_id, method, params))
            return _read_result(await answer)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self.write(frames.build_notification("notifications/cancelled", {"requestId": request_id}))
            raise
        finally:
            del self._questions[request_id]

    async def pass_message(self, relay: "Relay", frame: Frame) -> str:
        """Pass a server's request or notification to the host. Return an empty text, or why the request is refused."""
        if frame.is_request and frame.request_id is not None:
            if len(self._questions) >= MAX_REQUESTS:
                return TOO_MANY
            if self.client.envelope and self.handshake is UNSET:
                return "in the host's revision of the protocol, a server asks only in the result of a call"
            # Several servers may use the same id.
            is_alone = len(self.relays) == 1
            own_id = frame.request_id if is_alone else f"{relay.config.name}:{next(self._ids)}"
            self._questions[own_id] = relay, frame.request_id
            frame = replace(frame, id=own_id)
        elif frame.method == "notifications/cancelled":
            its_id = frames.read_value(frame.read_member("requestId"))
            own_id = next((own for own, question in self._questions.items() if question == (relay, its_id)), None)
            if own_id is None:
                return ""
            del self._questions[own_id]
            params = {**frame.read_params(), "requestId": Raw(msgspec.json.encode(own_id))}
            frame = replace(frame, params=Raw(msgspec.json.encode(params)))
        await self.write(frame.encode())
        return ""

    def forget(self, relay: "Relay") -> None:
        """Drop the questions of a server whose connection ended."""
        for own_id, question in list(self._questions.items()):
            if isinstance(question, tuple) and question[0] is relay:
                del self._questions[own_id]


class Relay:
    """One server of a host. Each call waits for the judge, who needs an open store. Without a judge, no call runs."""

    def __init__(self, config: ServerConfig, upstream: Upstream, host: Host) -> None:
        self.config = config
        self.host = host
        self.judge: CallJudge | None = None
        self._upstream = upstream
        upstream.receiver = self
        self._starting = anyio.Lock()
        self._is_greeted = False
        """Whether the running server has had a handshake."""
        self._failures, self._failure = 0, ""
        """How many times the server could not be reached, and why not the last time."""
        self._forwarding = 0
        """How many messages that need no answer are on their way to the server."""
        self._answers: dict[RequestId | None, asyncio.Future[Frame | ToolError]] = {}
        """By id, the answers that the server owes."""
        self._subscriptions: dict[str, dict[str, JsonValue]] = {}
        """By URI, the parameters of the host's subscriptions. A restarted server gets them again."""
        self._ids = count(frames.FIRST_OWN_ID)
        host.relays.append(self)

    async def answer(self, frame: Frame) -> bytes:
        """Return the answer to a request of the host. Raises `PlanwardenError` for a call that cannot be judged."""
        if frame.method == "tools/call" or is_about_task(frame):
            answer = await (await self.open()).handle(frame)
            if answer is not None:
                return answer
        if frame.method == "initialize":
            return await self._greet(frame)
        try:
            await self.ensure_running()
            answer = await self._exchange(frame)
            if frame.method in SUBSCRIPTION_METHODS and answer.error is UNSET:
                self._note_subscription(frame)
            if frame.method == "tools/call" and isinstance(answer.result, Raw):
                with suppress(InvalidArguments):
                    result = frames.read_object(answer.result)
                    if "_meta" in result:
                        return frames.build_result(frame.request_id, frames.drop_own_facts(result))
            return answer.encode()
        except ToolError as error:
            return frames.build_error(frame.request_id, frames.UNREACHABLE, error.message)

    async def open(self) -> CallJudge:
        """Wait for the store, then return the judge of calls. Raises `PlanwardenError`: the store cannot be opened."""
        self.host.needs_store.set()
        await self.host.is_opened.wait()
        if self.judge is None:
            raise self.host.failure
        return self.judge

    async def find_login(self) -> LoginLocation | None:
        """Return where the login for the server is stored; None if the server needs no login. Raises like `open`."""
        has_login = self.config.login_name is not None or not self.config.is_gated
        return await (await self.open()).find_login() if has_login else None

    def _note_subscription(self, frame: Frame) -> None:
        params = frames.read_members(frame.params)
        uri = str(params.get("uri"))
        self._subscriptions.pop(uri, None)
        if frame.method == "resources/subscribe" and len(self._subscriptions) < MAX_REQUESTS:
            self._subscriptions[uri] = params

    async def _greet(self, frame: Frame) -> bytes:
        """Return the answer to the handshake. If the server is out of reach, planwarden itself gives the answer."""
        self._is_greeted, was_running = True, self._upstream.is_running
        self._subscriptions.clear()
        with suppress(ToolError), anyio.move_on_after(self.config.settings.start_timeout_s):
            answer = await self._pass_handshake(frame)
            # After a request of a newer revision, servers of the SDK refuse a handshake, so the server is reset.
            if was_running and not self._answers and answer.error is not UNSET:
                await self._upstream.reset()
                answer = await self._pass_handshake(frame)
            return answer.encode()
        self._is_greeted = False
        version = frames.read_value(frame.read_member("protocolVersion"))
        own_answer: dict[str, JsonValue] = {
            "protocolVersion": version if isinstance(version, str) else FALLBACK_VERSION,
            "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}},
            "serverInfo": {"name": self.config.name, "version": "0"},
        }
        return frames.build_result(frame.request_id, own_answer)

    async def _pass_handshake(self, frame: Frame) -> Frame:
        await self.ensure_running(greets=False)
        return await self._exchange(frame)

    def is_asked(self, request_id: RequestId) -> bool:
        """Return whether the server has to answer that request."""
        return request_id in self._answers

    def forward(self, frame: Frame) -> None:
        """Begin to pass on a message that needs no answer. Drop it if the server is not running or does not read."""
        if self._upstream.is_running and self._forwarding < MAX_REQUESTS:
            self._forwarding += 1
            self.host.tasks.start_soon(self._forward, frame)

    async def _forward(self, frame: Frame) -> None:
        with suppress(ToolError):
            await self._upstream.send(frame.encode())
        self._forwarding -= 1

    async def ensure_running(self, *, greets: bool = True) -> None:
        """Start the server unless it is running, and repeat the host's handshake if there was one.

        Raises `ToolError`: the server cannot be started, or the handshake failed.
        """
        name, limit_s, failures = f"server {self.config.name!r}", self.config.settings.start_timeout_s, self._failures
        async with self._starting:
            if self._failures != failures:
                # Another request tried to start the server while this request waited.
                raise ToolError(self._failure)
            try:
                if not self._upstream.is_running:
                    self._is_greeted = not greets
                    await self._upstream.start(self.host.tasks)
                if greets and not self._is_greeted and isinstance(self.host.handshake, Raw):
                    with anyio.fail_after(limit_s):
                        await self._request("initialize", msgspec.json.decode(self.host.handshake))
                        await self._upstream.send(frames.build_notification("notifications/initialized", {}))
                        for params in list(self._subscriptions.values()):
                            # Nobody waits for the answer to this request.
                            again = frames.build_request(next(self._ids), "resources/subscribe", params)
                            await self._upstream.send(again)
                self._is_greeted = True
                return
            except TimeoutError:
                reason = f"cannot be reached: it did not answer within {limit_s:g} s"
            except PlanwardenError as error:
                was_sent = isinstance(error, OutcomeUnknown | RefusedRequest)
                why = error.message.removeprefix(f"{name} cannot be reached: ").replace(name, "it", 1)
                reason = f"cannot be {'used' if was_sent else 'reached'}: {why}"
            self._failures, self._failure = failures + 1, f"{name} {reason}"
            raise ToolError(self._failure)

    async def request(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Return the server's result of a request that the gate itself makes.

        Raises:
            LargeResult: the server answered, but the answer is too large to be stored.
            OutcomeUnknown: the server ended before it answered, or its answer is not a result.
            RefusedRequest: the server answered with an error.
            ToolError: the server cannot be started, or its handshake failed; the request was not sent.
        """
        await self.ensure_running()
        if envelope := self.host.client.envelope:
            params = {**params, "_meta": {**envelope, **frames.read_members(params.get("_meta"))}}
        return await self._request(method, params)

    async def read_list(self, method: str, key: str, limit: int) -> list[JsonValue]:
        """Return at most `limit` entries of all pages. Raises like `request`, and `ToolError` if a page has no list."""
        entries: list[JsonValue] = []
        params: dict[str, JsonValue] = {}
        for _ in range(MAX_PAGES):
            page = await self.request(method, params)
            listed, cursor = page.get(key), page.get("nextCursor")
            if not isinstance(listed, list):
                raise ToolError(f"server {self.config.name!r} answered {method} with something else")
            entries += listed[: limit - len(entries)]
            if not isinstance(cursor, str) or len(entries) >= limit or params.get("cursor") == cursor:
                break
            params = {"cursor": cursor}
        return entries

    async def _request(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        own_id = next(own_id for own_id in self._ids if not self.host.has_request(own_id))
        frame = Frame("2.0", own_id, method, Raw(msgspec.json.encode(params)))
        try:
            return _read_result(await self._exchange(frame))
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(1), suppress(ToolError):
                cancelled: dict[str, JsonValue] = {"requestId": own_id, "reason": "the time limit has passed"}
                await self._upstream.send(frames.build_notification("notifications/cancelled", cancelled))
            raise

    async def _exchange(self, request: Frame) -> Frame:
        self._answers[request.request_id] = future = asyncio.get_running_loop().create_future()
        try:
            await self._upstream.send(request.encode())
            answer = await future
        finally:
            del self._answers[request.request_id]
        if isinstance(answer, ToolError):
            raise answer
        return answer

    def settle(self, request_id: RequestId | None, answer: Frame | ToolError) -> None:
        """Give a request its answer, or an error if there is no answer."""
        future = self._answers.get(request_id)
        if future is not None and not future.done():
            future.set_result(answer)

    async def handle_line(self, line: bytes) -> None:
        """Pass on one message of the server, or give its answer to the request that waits for it."""
        try:
            frame = frames.read_frame(line, is_servers=True)
        except InvalidArguments:
            mended = await anyio.to_thread.run_sync(frames.mend_frame, line)
            if mended is None:
                # Some servers print other text to standard output. A host would not understand the text either.
                reason = OutcomeUnknown(f"server {self.config.name!r} answered with something that is not JSON")
                self.settle(cut_line(line).answered_id, reason)
                return
            frame = mended
        if not isinstance(frame.method, str):
            self.settle(frame.request_id, frame)
            return
        if frame.method == "notifications/tools/list_changed":
            self._note_change()
        if refusal := await self.host.pass_message(self, frame):
            with suppress(ToolError):
                await self._upstream.send(frames.build_error(frame.request_id, frames.INVALID_REQUEST, refusal))

    def _note_change(self) -> None:
        if self.judge is not None:
            self.judge.tools.note_change()

    def handle_loss(self, reason: str) -> None:
        """Fail the requests that the server did not answer; the next request connects again."""
        self._is_greeted = False
        # The server that starts next may list other tools.
        self._note_change()
        self.host.forget(self)
        message = f"server {self.config.name!r} ended before it answered: {reason}"
        logger.warning("%s", message)
        for request_id in self._answers:
            self.settle(request_id, OutcomeUnknown(message))


def is_about_task(frame: Frame) -> bool:
    """Return whether the request is about a task of the gate; other tasks are the server's own."""
    task_id = frames.read_value(frame.read_member("taskId")) if frame.method in TASK_METHODS else None
    return isinstance(task_id, str) and task_id.startswith(TASK_PREFIX)


def _read_result(frame: Frame) -> dict[str, JsonValue]:
    """Return the result in the answer to a request of the gate. Raises as `Relay.request` does."""
    if frame.error is not UNSET:
        message = frames.read_members(frame.error).get("message")
        raise RefusedRequest(str(message)[:1_000] if message else "it gave no reason")
    if isinstance(frame.result, Raw) and (size := len(bytes(frame.result))) > MAX_ARTIFACT_BYTES:
        raise LargeResult(f"the result has {size} bytes; {MAX_ARTIFACT_BYTES} can be kept", frame.result)
    result = frames.read_value(frame.result)
    if not isinstance(result, dict):
        raise OutcomeUnknown("the server answered with something that is not a result")
    return result
