"""MCP as a host speaks it, in raw JSON: over pipes with forms for a person, and over HTTP without them."""

import json
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import anyio
import httpx2
from anyio.abc import TaskGroup
from mcp.types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp.types.version import LATEST_MODERN_VERSION

from tests.harness.process import Lost, Process

Document = dict[str, Any]
AnswerForm = Callable[[Document], Awaitable[Document]]
"""Takes the parameters of a form, returns the person's answer."""

ANSWER_S = 8.0


class Refused(Exception):
    """The server answered with an error; `code` is its word for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class StdioHost:
    """A host that talks to one process over its pipes and shows forms to `answer_form`."""

    def __init__(self, process: Process, answer_form: AnswerForm) -> None:
        self._process = process
        self._answer_form = answer_form
        self._numbers = count(1)
        self.unasked = deque[Document](maxlen=100)
        """The last answers to what `send` did not send."""
        self._waiting: dict[int, tuple[anyio.Event, list[Document]]] = {}
        self._tasks: TaskGroup | None = None

    async def run(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        await self._process.read_lines(self._take)

    async def open(self) -> None:
        client = {"name": "campaign", "version": "1"}
        params: Document = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": client}
        await self.send("initialize", params)
        self.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    async def call(self, tool: str, arguments: Document) -> Document:
        """The structured result of a tool. Raises `Refused`, and `Lost` when no answer comes."""
        return read_result(await self.send("tools/call", {"name": tool, "arguments": arguments}))

    async def send(self, method: str, params: Document) -> Document:
        number, event, answers = next(self._numbers), anyio.Event(), list[Document]()
        self._waiting[number] = (event, answers)
        self.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())
        with anyio.move_on_after(ANSWER_S):
            await event.wait()
        del self._waiting[number]
        if not answers:
            raise Lost(f"no answer to {method}")
        return answers[0]

    async def _take(self, message: Document) -> None:
        if "method" not in message:
            number = message.get("id")
            if isinstance(number, int) and number in self._waiting:
                self._waiting[number][1].append(message)
                self._waiting[number][0].set()
            else:
                self.unasked.append(message)
        elif message["method"] == "elicitation/create" and self._tasks is not None:
            self._tasks.start_soon(self._fill_in, message)

    async def _fill_in(self, message: Document) -> None:
        answer = await self._answer_form(message["params"])
        with suppress(Lost):
            self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}).encode())

    def write(self, line: bytes) -> None:
        """Raises `Lost` when nobody reads any more."""
        try:
            os.write(self._process.inlet, line + b"\n")
        except OSError as error:
            raise Lost(f"the pipe is closed: {error}") from error


class HttpHost:
    """A host of the newest protocol, over HTTP, that can show nothing to a person."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def call(self, tool: str, arguments: Document) -> Document:
        """As `StdioHost.call`."""
        params: Document = {"name": tool, "arguments": arguments, "_meta": build_meta({})}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        try:
            answer = await self._http.post(self._url, json=body, headers=build_headers("tools/call", tool))
            return read_result(read_answer(answer) or {})
        except (httpx2.HTTPError, ValueError) as error:
            raise Lost(f"no answer over HTTP: {type(error).__name__}") from error


def build_meta(capabilities: Document, version: str = LATEST_MODERN_VERSION) -> Document:
    return {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: capabilities}


def build_headers(method: str, name: str | None, version: str = LATEST_MODERN_VERSION) -> dict[bytes, bytes]:
    named = {} if name is None else {b"Mcp-Name": name.encode("utf-8", "surrogatepass")}
    return {
        b"Accept": b"application/json, text/event-stream",
        b"Content-Type": b"application/json",
        b"MCP-Protocol-Version": version.encode(),
        b"Mcp-Method": method.encode(),
        **named,
    }


def read_answer(answer: httpx2.Response) -> Document | None:
    events = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
    text = events[-1] if events else answer.text
    return json.loads(text) if text.strip() else None


def read_result(message: Document) -> Document:
    """Return the structured content of a result. Raises `Refused`."""
    if "error" in message:
        raise Refused(str(message["error"].get("code")), str(message["error"].get("message")))
    result: Document = message.get("result", {"isError": True})
    if result.get("isError"):
        structured: Document = result.get("structuredContent") or {}
        error: Document = structured.get("error", {})
        raise Refused(error.get("code", "?"), error.get("message", str(result)[:300]))
    return result.get("structuredContent") or result
