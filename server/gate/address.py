"""Connects to a wrapped server over the SDK's Streamable HTTP, with planwarden's limits. Messages are encoded anew,
with the same values. The SDK adds the headers that some revisions need only to its own requests, so this module builds
them from the host's messages (https://modelcontextprotocol.io/specification/2026-07-28, Streamable HTTP). If a request
fails, only that request ends; if the session ends, the connection ends.
"""

import logging
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from planwarden.agent.common.errors import OutcomeUnknown, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate.relay import Relay
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.http_transport import http_transport
from planwarden.tools.downstream.in_flight_calls import LOST, NOT_SENT, TOO_LARGE
from planwarden.tools.downstream.listing import one_line
from planwarden.tools.downstream.results import MAX_ERROR_CHARS

logger = logging.getLogger(__name__)

SEND_S = 30.0
"""How many seconds a message may wait until the messages before it are sent."""
MAX_HEADER_MAPS = 1_000
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
SESSION_ENDED = "Session terminated"
"""What the SDK says about a session that the server no longer knows."""
REDIRECT = "Redirect to "
"""The beginning of the SDK's message about a redirect that it does not follow."""
NO_ANSWER = ("Failed to parse ", "SSE stream ")
"""The beginnings of the SDK's messages about a request that was sent and got no answer."""


class AddressUpstream:
    """The connection to one server behind an address."""

    receiver: Relay

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self._sending: Any = None
        """The SDK's stream for sending, which has no public type; None without a connection."""
        self._handshake_id: int | str | None = None
        self._version: str | None = None
        """The revision of the protocol from the handshake."""
        self._parameter_headers: dict[str, Mapping[tuple[str, ...], str]] = {}
        """By tool, the parameters that the server wants as headers too, with the names of the headers."""

    @property
    def is_running(self) -> bool:
        return self._sending is not None

    async def start(self, tasks: TaskGroup) -> None:
        await tasks.start(self._run, await self.receiver.find_login())

    async def send(self, line: bytes) -> None:
        sending = self._sending
        if sending is None:
            raise ToolError(f"server {self.config.name!r} is not connected")
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise ToolError(f"the message cannot be sent over HTTP: {reason}") from None
        metadata = None
        if isinstance(message, JSONRPCRequest):
            metadata = ClientMessageMetadata(headers=self._build_headers(message))
        elif self._version is not None:
            metadata = ClientMessageMetadata(headers={MCP_PROTOCOL_VERSION_HEADER: self._version})
        try:
            with anyio.fail_after(SEND_S):
                await sending.send(SessionMessage(message, metadata))
        except TimeoutError:
            raise ToolError(f"server {self.config.name!r} does not take messages") from None
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise OutcomeUnknown(f"server {self.config.name!r} closed its connection") from None

    async def reset(self) -> None:
        """Do nothing, because a server behind an address judges each request alone."""

    def _build_headers(self, request: JSONRPCRequest) -> dict[str, str]:
        params: dict[str, JsonValue] = request.params or {}
        meta = params.get("_meta")
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if request.method == "initialize":
            self._handshake_id, self._version = request.id, None
            return {}
        if not isinstance(version, str) or version not in MODERN_PROTOCOL_VERSIONS:
            return {} if self._version is None else {MCP_PROTOCOL_VERSION_HEADER: self._version}
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: request.method}
        name = params.get(NAME_BEARING_METHODS.get(request.method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            arguments = params.get("arguments")
            if request.method == "tools/call" and isinstance(arguments, dict):
                headers |= mcp_param_headers(self._parameter_headers.get(name, {}), arguments)
        return headers

    async def _run(
        self, login: LoginLocation | None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        reason = "it closed the connection"
        # The SDK may raise any exception. Then the server is out of reach, and the gate goes on.
        try:
            async with http_transport(self.config, login, is_typed=False) as (received, self._sending):
                task_status.started()
                async for item in received:
                    if isinstance(item, SessionMessage) and not await self._take(item):
                        reason = "it ended the session"
                        break
        except Exception:
            logger.exception("the connection to server %r failed", self.config.name)
        finally:
            # Also if the connection is cancelled in the moment when it opens.
            self._sending = None
        self.receiver.handle_loss(reason)

    async def _take(self, item: SessionMessage) -> bool:
        """Pass one message to the receiver; return False if the message says that the session has ended."""
        message = item.message
        if isinstance(message, JSONRPCError):
            failure = self._read_failure(message.error)
            if failure is not None:
                self.receiver.settle(message.id, failure)
                return message.error.message != SESSION_ENDED
        if isinstance(message, JSONRPCResponse):
            self._note_result(message)
        await self.receiver.handle_line(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        return True

    def _read_failure(self, error: ErrorData) -> ToolError | None:
        """Return why a request has no answer; None if the error is the server's own answer."""
        name, text = f"server {self.config.name!r}", error.message
        if error.code == INVALID_REQUEST and text == SESSION_ENDED:
            return ToolError(f"{name} ended the session before it took the request; try again")
        if error.code == NOT_SENT or (error.code == INVALID_REQUEST and text.startswith(REDIRECT)):
            return ToolError(f"{name} cannot be reached: {one_line(text, MAX_ERROR_CHARS)}")
        # Servers may also send these two codes, so the beginning of the message shows whether the SDK made the error.
        is_sdks = error.code in (PARSE_ERROR, CONNECTION_CLOSED) and text.startswith(NO_ANSWER)
        if is_sdks or error.code in (LOST, TOO_LARGE):
            return OutcomeUnknown(f"{name} did not return a result: {one_line(text, MAX_ERROR_CHARS)}")
        return None

    def _note_result(self, message: JSONRPCResponse) -> None:
        result: dict[str, JsonValue] = message.result
        version, tools = result.get("protocolVersion"), result.get("tools")
        if message.id == self._handshake_id and isinstance(version, str):
            self._version = version
        for tool in tools if isinstance(tools, list) else ():
            name = tool.get("name") if isinstance(tool, dict) else None
            if not isinstance(tool, dict) or not isinstance(name, str):
                continue
            self._parameter_headers.pop(name, None)
            headers = x_mcp_header_map(tool.get("inputSchema"))
            if headers and len(self._parameter_headers) < MAX_HEADER_MAPS:
                self._parameter_headers[name] = headers
