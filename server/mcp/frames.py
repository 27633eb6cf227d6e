"""Limits the size of a message before it is parsed, in bytes and in values, because a value costs more than a byte.

The answer to a request that exceeds a limit is an error with the request's id, and the connection stays open. The id is
read without parsing, because clients write it near the beginning or the end of the message.

The server removes malformed trace context from `_meta`, as https://www.w3.org/TR/trace-context/#processing-model
demands; OpenTelemetry's readers would log the whole headers that they refuse. The server removes baggage too. For the
keys see https://modelcontextprotocol.io/seps/414-request-meta.
"""

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO, Self

import anyio
import anyio.to_thread
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError

from planwarden.tools.downstream.value_counter import ValueCounter

MAX_FRAME_BYTES = 8 * 1024 * 1024
UNCOUNTED_BYTES = 64 * 1024
"""A message up to this size cannot have too many values."""
EDGE_BYTES = 1_024
"""How many bytes at each end of a message are searched for its id."""

_ID = r'-?(?:0|[1-9][0-9]{0,17})|"[^"\\]{0,200}"'
_MEMBER = rf'(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"|"id"\s*:\s*(?:{_ID}|null))'
_HEAD = rf"\s*\{{\s*(?:{_MEMBER}\s*,\s*)*"
_TAIL = rf",\s*(?:{_MEMBER}\s*(?:,\s*|(?=\}})))+\}}\s*\Z"
_FOUND_ID = rf'"id"\s*:\s*({_ID})\s*(?:,|\}}|\Z)'

_TRACE_CONTEXT = {
    "traceparent": r"(?=.{55,256}\Z)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?",
    "tracestate": r"[ -~]{0,512}",
}
"""Patterns of the headers: version 00 of `traceparent` has 55 characters, later versions may have more. `tracestate`:
https://www.w3.org/TR/trace-context/#tracestate-limits."""


def find_request_id(head: bytes, tail: bytes) -> str | int | None:
    """Return the id of the request that begins with `head` and ends with `tail`; None if no id can be read."""
    first, last = re.match(_HEAD, head.decode("utf-8", "replace")), re.search(_TAIL, tail.decode("utf-8", "replace"))
    edges = (first[0] if first else "") + (last[0] if last else "")
    match = re.search(_FOUND_ID, edges)
    # An answer to one of our own requests has an id too, but no method.
    if match is None or '"method"' not in edges:
        return None
    read: str | int = json.loads(match[1])
    return read


def build_refusal(request_id: str | int | None, why: str) -> JSONRPCError:
    """Return the answer to a message that is not parsed."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=INVALID_REQUEST, message=why))


class StandardInput:
    """The lines of standard input. While it is open, all other code, even child processes, finds descriptor 0 empty."""

    def __init__(self) -> None:
        self.send: Callable[[SessionMessage], Awaitable[None]] | None = None
        """The function that sends a refusal; None before the server runs."""
        self._stream: BinaryIO = sys.stdin.buffer
        self._own_descriptor: int | None = None

    def __enter__(self) -> Self:
        with suppress(OSError, ValueError):
            if self._stream.fileno() == 0:
                self._own_descriptor = os.dup(0)
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)
                os.close(null)
                # `closefd=False`, because a thread may still read the descriptor when the server has ended.
                self._stream = open(self._own_descriptor, "rb", closefd=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._own_descriptor is not None:
            os.dup2(self._own_descriptor, 0)

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            line, refusal = await anyio.to_thread.run_sync(self._read)
            if refusal is None and not line:
                return
            if refusal is None:
                yield line
            elif self.send is not None and refusal.id is not None:
                with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await self.send(SessionMessage(refusal))

    def _read(self) -> tuple[str, JSONRPCError | None]:
        """Return the next line (empty at the end), or the refusal of a line that breaks a limit. Runs on a thread."""
        line = self._stream.readline(MAX_FRAME_BYTES + 1)
        tail, why = line, ""
        if len(line) > MAX_FRAME_BYTES and not line.endswith(b"\n"):
            why = f"the message is larger than {MAX_FRAME_BYTES} bytes"
            while not tail.endswith(b"\n") and (more := self._stream.readline(UNCOUNTED_BYTES)):
                tail = tail[-EDGE_BYTES:] + more
        # Parsing a message with too many values would block the event loop for too long.
        elif len(line) > UNCOUNTED_BYTES and ValueCounter().feed(line):
            why = "the message has too many values"
        if not why:
            return line.decode("utf-8", "replace"), None
        return "", build_refusal(find_request_id(line[:EDGE_BYTES], tail[-EDGE_BYTES:]), why)


def read_trace_context(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return `traceparent` and `tracestate`, each only if it is well-formed."""
    values = {name: meta.get(name) for name in _TRACE_CONTEXT}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, str) and re.fullmatch(_TRACE_CONTEXT[name], value)
    }


async def drop_malformed_trace_context(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Remove malformed trace context and all baggage before other code reads them. This is a middleware."""
    meta: Mapping[str, Any] = ctx.meta or {}
    others = {name: value for name, value in meta.items() if name not in (*_TRACE_CONTEXT, "baggage")}
    cleaned: Any = {**others, **read_trace_context(meta)}
    return await call_next(ctx if len(others) == len(meta) else replace(ctx, meta=cleaned))
