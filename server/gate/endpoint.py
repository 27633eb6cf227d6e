"""`/gate/NAME` over Streamable HTTP: serves one server of planwarden.json to hosts that connect over HTTP.

In older revisions, each session is one host with its own connection to the server. Since revision 2026-07-28, requests
have no session, and each carries all that it needs. The requests of one principal to one server share a connection, on
which each request gets a new id. Calls belong to the owner of the token, who sees no calls of others.
"""

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
)
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp.types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from msgspec.structs import replace
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.server.api.warden import Warden
from planwarden.server.auth.caller import Caller, identify_bearer
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Frame
from planwarden.server.gate.judging import announce_gate, judge_calls
from planwarden.server.gate.relay import Host
from planwarden.server.gate.serving import Write, open_relay
from planwarden.tools.downstream.config import ServerConfig

logger = logging.getLogger(__name__)

IDLE_S = 1_800.0
"""How many seconds a session may be unused before it ends, together with its connection to the server."""
SHARED_IDLE_S = 300.0
PING_S = 15.0
MAX_SESSIONS = 1_000
MAX_WAITING = 64
"""How many messages about one request may wait for the client to read them."""
REQUEST_IDS = "planwarden.request_ids"
"""The key under which the scope of an HTTP request holds the ids of the MCP requests in its body."""
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Session:
    """The session of one host that speaks a revision before 2026-07-28."""

    def __init__(self, caller: Caller, config: ServerConfig) -> None:
        self.caller = caller
        self.config = config
        self.transport = StreamableHTTPServerTransport(uuid4().hex, idle_timeout=IDLE_S)
        self._requests: dict[int | str, JSONRPCRequest] = {}
        """The requests that are not answered yet, the newest at the end."""
        self._host: Host | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the transport answer an HTTP request. Stop if the client leaves early."""
        try:
            await self.transport.handle_request(scope, receive, send)
        finally:
            for request_id in scope.get(REQUEST_IDS, ()):
                if self._requests.pop(request_id, None) is not None and self._host is not None:
                    self._host.stop_waiting(request_id)

    async def run(self, warden: Warden, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Relay between the host and its own connection to the server until the session ends or is idle too long."""
        async with self.transport.connect() as (received, sending):

            async def write(line: bytes) -> None:
                message = _read_message(line)
                if message is None:
                    return
                metadata = ServerMessageMetadata(related_request_id=self._find_related(message))
                if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                    self._requests.pop(message.id, None)
                with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await sending.send(SessionMessage(message, metadata))

            async with connect(warden, self.config, self.caller.principal, write) as self._host:
                task_status.started()
                with self.transport.idle_scope or anyio.CancelScope(), suppress(anyio.ClosedResourceError):
                    async for item in received:
                        if isinstance(item, SessionMessage):
                            _note_request(item)
                            await self._take(item.message, self._host)

    async def _take(self, message: JSONRPCMessage, host: Host) -> None:
        if isinstance(message, JSONRPCRequest):
            self._requests[message.id] = message
        await host.handle_line(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            # The server does not answer a cancelled request, but the stream of a request ends only with an answer.
            request = self._requests.pop((message.params or {}).get("requestId", ""), None)
            if request is not None:
                await host.write(frames.build_error(request.id, frames.INVALID_REQUEST, "cancelled"))

    def _find_related(self, message: JSONRPCMessage) -> int | str | None:
        """Return the id of the request with this progress token, else of the newest call; None if there is no call."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            return None
        params: dict[str, JsonValue] = message.params or {}
        token = params.get("progressToken")
        calls = [request for request in self._requests.values() if request.method == "tools/call"]
        for request in self._requests.values():
            if token is not None and _read_meta(request.params).get("progressToken") == token:
                return request.id
        return calls[-1].id if calls and message.method != "notifications/tools/list_changed" else None


class SharedHost:
    """The requests of one principal to one server in revisions without sessions, from 2026-07-28 on."""

    def __init__(self, caller: Caller, config: ServerConfig) -> None:
        self.caller = caller
        self.config = config
        self.idle = anyio.CancelScope()
        self._host: Host
        self._ids = count(1)
        self._streams: dict[int, tuple[Frame, MemoryObjectSendStream[bytes]]] = {}
        """By its id on this connection, each request as the client sent it, and the stream of messages about it."""

    async def run(self, warden: Warden, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the connection to the server open until no request has come for `SHARED_IDLE_S`."""
        async with connect(warden, self.config, self.caller.principal, self._write) as self._host:
            with self.idle:
                task_status.started()
                await anyio.sleep_forever()

    async def _write(self, line: bytes) -> None:
        """Pass a message of the server to the request that the message names, else to the newest request."""
        frame = frames.read_frame(line)
        params = frames.read_value(frame.params)
        own_id = frame.id if frame.method is msgspec.UNSET else _read_own_id(params)
        own_id = own_id if isinstance(own_id, int) or not self._streams else max(self._streams)
        if not isinstance(own_id, int) or own_id not in self._streams:
            return
        request, stream = self._streams[own_id]
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.WouldBlock):
            if frame.method is msgspec.UNSET:
                await stream.send(replace(frame, id=request.id).encode().strip())
            else:
                if isinstance(params, dict):
                    frame = replace(frame, params=msgspec.Raw(msgspec.json.encode(_restore_ids(params, request))))
                # If a client reads too slowly, notifications beyond `MAX_WAITING` are dropped.
                stream.send_nowait(frame.encode().strip())

    async def answer(self, frame: Frame) -> AsyncGenerator[bytes]:
        """Yield the server's messages about the request, the answer last. After `PING_S` of silence, yield `b""`."""
        own_id = next(self._ids)
        sending, received = anyio.create_memory_object_stream[bytes](MAX_WAITING)
        self._streams[own_id] = frame, sending
        self.idle.deadline = float("inf")
        is_answered = False
        try:
            await self._host.handle_line(_replace_ids(frame, own_id).encode())
            while not is_answered:
                message = b""
                with anyio.move_on_after(PING_S):
                    message = await received.receive()
                is_answered = bool(message) and frames.read_frame(message).method is msgspec.UNSET
                yield message
        finally:
            del self._streams[own_id]
            sending.close()
            received.close()
            if not self._streams:
                self.idle.deadline = anyio.current_time() + SHARED_IDLE_S
            if not is_answered:
                # A client of this revision cancels by closing the stream.
                with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                    cancelled = frames.build_notification("notifications/cancelled", {"requestId": own_id})
                    await self._host.handle_line(cancelled)


class GateEndpoint:
    """An ASGI application for the paths below `/gate/`. The application that calls it authenticates each request."""

    def __init__(self, warden: Warden, tasks: TaskGroup) -> None:
        self._warden = warden
        self._tasks = tasks
        self._configs = {
            config.name: config
            for config in warden.settings.servers.configs
            if config.can_start and not config.is_gated
        }
        self._sessions: dict[str, Session] = {}
        self._shared: dict[tuple[str, str], SharedHost] = {}
        self._opening = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; `gate` in the scope names the server."""
        await (await self._find_app(Request(scope, receive)))(scope, receive, send)

    async def _find_app(self, request: Request) -> ASGIApp:
        config, caller = self._configs.get(name := str(request.scope["gate"])), identify_bearer()
        if config is None:
            return JSONResponse({"error": f"there is no server {name[:64]!r}"}, 404)
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return await self._answer(request, caller, config)
        session_id = request.headers.get(MCP_SESSION_ID_HEADER)
        if session_id is None and len(self._sessions) < MAX_SESSIONS:
            return partial(self._open_session, Session(caller, config))
        session = self._sessions.get(session_id or "")
        if session is not None and session.caller == caller and session.config is config:
            return session.handle
        text = "too many sessions are open" if session_id is None else "Session not found"
        error = frames.build_error(None, frames.INVALID_REQUEST, text)
        return _build_response(error, 503 if session_id is None else 404)

    async def _open_session(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the transport answer the request that opens a session; if it refuses the request, forget the session."""
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        # The session counts toward `MAX_SESSIONS` even before its connection is open.
        self._sessions[session.transport.mcp_session_id or ""] = session
        try:
            await self._tasks.start(self._run, self._sessions, session.transport.mcp_session_id, session)
            await session.transport.handle_request(scope, receive, note_status)
        finally:
            if status >= 400:
                self._sessions.pop(session.transport.mcp_session_id or "", None)
                with anyio.CancelScope(shield=True):
                    await session.transport.terminate()

    async def _run(
        self,
        hosts: dict[Any, Any],
        key: object,
        host: Session | SharedHost,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the host, and keep it among the `hosts` while it runs."""
        hosts[key] = host
        try:
            await host.run(self._warden, task_status=task_status)
        # A failure of one host must not end the others.
        except Exception:
            logger.exception("a connection at /gate/%s ended", host.config.name)
        finally:
            if hosts.get(key) is host:
                del hosts[key]
            if isinstance(host, Session):
                with anyio.CancelScope(shield=True):
                    await host.transport.terminate()

    async def _answer(self, request: Request, caller: Caller, config: ServerConfig) -> Response:
        """Return the answer to a request that has no session."""
        if request.method != "POST":
            return Response(status_code=405, headers={"allow": "POST"})
        body = await request.body()
        try:
            frame = frames.read_frame(body)
        except InvalidArguments as error:
            return _build_response(frames.build_error(None, frames.PARSE_ERROR, error.message))
        if not frame.is_request:
            return Response(status_code=202)
        params = frames.read_value(frame.params)
        verdict = classify_inbound_request({"method": frame.method, "params": params}, headers=request.headers)
        if isinstance(verdict, InboundLadderRejection):
            error = frames.build_error(frame.request_id, verdict.code, verdict.message, verdict.data)
            return _build_response(error)
        host = await self._find_host(caller, config)
        answers = host.answer(frame)
        first = await anext(answers)
        if first and frames.read_frame(first).method is msgspec.UNSET:
            await answers.aclose()
            return _build_response(first)

        async def stream() -> AsyncGenerator[bytes]:
            yield _build_event(first)
            async for line in answers:
                yield _build_event(line)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def _find_host(self, caller: Caller, config: ServerConfig) -> SharedHost:
        key = caller.principal, config.name
        async with self._opening:
            host = self._shared.get(key)
            if host is None or host.idle.cancel_called:
                host = SharedHost(caller, config)
                await self._tasks.start(self._run, self._shared, key, host)
            return host


@asynccontextmanager
async def connect(warden: Warden, config: ServerConfig, principal: str, write: Write) -> AsyncGenerator[Host]:
    """Yield a host for the principal, with its own connection to the server; `write` sends lines to the host."""
    async with anyio.create_task_group() as tasks:
        host = Host(write, tasks)
        host.is_opened.set()
        relay = open_relay(config, warden.settings.home, host)
        async with judge_calls(relay, warden, principal):
            yield host
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving_gates(warden: Warden) -> AsyncGenerator[GateEndpoint]:
    """Yield the application that serves `/gate/NAME` while the block runs; the warden must be open."""
    async with announce_gate(warden.service, ""), anyio.create_task_group() as tasks:
        yield GateEndpoint(warden, tasks)
        tasks.cancel_scope.cancel()


def _replace_ids(frame: Frame, own_id: int) -> Frame:
    """Return the request with `own_id`, unique on the connection, in place of its id and of any progress token."""
    params = frame.read_params()
    meta = frames.read_object(params["_meta"])
    if "progressToken" in meta:
        meta["progressToken"] = msgspec.Raw(str(own_id).encode())
    params["_meta"] = msgspec.Raw(msgspec.json.encode(meta))
    return replace(frame, id=own_id, params=msgspec.Raw(msgspec.json.encode(params)))


def _read_message(line: bytes) -> JSONRPCMessage | None:
    """Return the message. If HTTP cannot carry it, return an error in place of an answer, otherwise None."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        frame = frames.read_frame(line)
        if frame.method is not msgspec.UNSET:
            return None
        text = "the server answered with something that is not a result"
        return jsonrpc_message_adapter.validate_json(
            frames.build_error(frame.request_id, frames.INTERNAL_ERROR, text), by_name=False
        )


def _note_request(item: SessionMessage) -> None:
    """Add the id of the MCP request to the scope of the HTTP request that carried it."""
    metadata = item.metadata
    http = metadata.request_context if isinstance(metadata, ServerMessageMetadata) else None
    if isinstance(item.message, JSONRPCRequest) and isinstance(http, Request):
        http.scope.setdefault(REQUEST_IDS, []).append(item.message.id)


def _read_meta(params: JsonValue) -> dict[str, JsonValue]:
    return frames.read_members(frames.read_members(params).get("_meta"))


def _read_own_id(params: JsonValue) -> JsonValue:
    own_id = frames.read_members(params).get("progressToken", _read_meta(params).get(SUBSCRIPTION))
    return int(own_id) if isinstance(own_id, str) and re.fullmatch("[0-9]{1,15}", own_id) else own_id


def _restore_ids(params: dict[str, JsonValue], request: Frame) -> dict[str, JsonValue]:
    """Return the parameters of a notification with the progress token and subscription id that the client knows."""
    meta = _read_meta(params)
    if "progressToken" in params:
        own_meta = frames.read_members(request.read_params().get("_meta"))
        params = {**params, "progressToken": own_meta.get("progressToken")}
    if SUBSCRIPTION in meta:
        params = {**params, "_meta": {**meta, SUBSCRIPTION: str(request.id)}}
    return params


def _build_response(line: bytes, status: int | None = None) -> Response:
    """Return the line as an HTTP response. Without `status`, an error in the line determines the status."""
    answer = frames.read_frame(line)
    code = frames.read_members(answer.error).get("code")
    status = status or (ERROR_CODE_HTTP_STATUS.get(code, 200) if isinstance(code, int) else 200)
    return Response(line, status, media_type="application/json")


def _build_event(line: bytes) -> bytes:
    return b"event: message\r\ndata: " + line + b"\r\n\r\n" if line else b": ping\r\n\r\n"
