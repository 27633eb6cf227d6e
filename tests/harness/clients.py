"""MCP as a host speaks it, in raw JSON: over pipes with forms for a person, and over HTTP without them."""

import json
import os
from collections.abc import Awaitable, Callable
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
        self._waiting: dict[int, tuple[anyio.Event, list[Document]]] = {}
        self._tasks: TaskGroup | None = None

    async def run(self, tasks: TaskGroup) -> None:
        """Reads what the process prints, until it ends."""
        self._tasks = tasks
        await self._process.read_lines(self._take)

    async def open(self) -> None:
        params: Document = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "campaign", "version": "1"},
        }
        await self.send("initialize", params)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def call(self, tool: str, arguments: Document) -> Document:
        """The structured result of a tool. Raises `Refused`, and `Lost` when no answer comes."""
        return read_result(await self.send("tools/call", {"name": tool, "arguments": arguments}))

    async def send(self, method: str, params: Document) -> Document:
        number, event, answers = next(self._numbers), anyio.Event(), list[Document]()
        self._waiting[number] = (event, answers)
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        with anyio.move_on_after(ANSWER_S):
            await event.wait()
        del self._waiting[number]
        if not answers:
            raise Lost(f"no answer to {method}")
        return answers[0]

    async def _take(self, message: Document) -> None:
        if "method" not in message:
            found = self._waiting.get(message.get("id", 0))
            if found is not None:
                found[1].append(message)
                found[0].set()
        elif message["method"] == "elicitation/create" and self._tasks is not None:
            self._tasks.start_soon(self._fill_in, message)

    async def _fill_in(self, message: Document) -> None:
        answer = await self._answer_form(message["params"])
        try:
            self._write({"jsonrpc": "2.0", "id": message["id"], "result": answer})
        except Lost:
            return

    def _write(self, message: Document) -> None:
        try:
            os.write(self._process.inlet, f"{json.dumps(message)}\n".encode())
        except OSError as error:
            raise Lost(f"the pipe is closed: {error}") from error


class HttpHost:
    """A host of the newest protocol, over HTTP, that can show nothing to a person."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def call(self, tool: str, arguments: Document) -> Document:
        """As `StdioHost.call`."""
        params: Document = {
            "name": tool,
            "arguments": arguments,
            "_meta": {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}},
        }
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": LATEST_MODERN_VERSION,
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        try:
            answer = await self._http.post(self._url, json=body, headers=headers)
            events = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
            return read_result(json.loads(events[-1] if events else answer.text))
        except (httpx2.HTTPError, ValueError) as error:
            raise Lost(f"no answer over HTTP: {type(error).__name__}") from error


def read_result(message: Document) -> Document:
    """The structured content of a result. Raises `Refused`."""
    if "error" in message:
        raise Refused(str(message["error"].get("code")), str(message["error"].get("message")))
    result = message["result"]
    if result.get("isError"):
        structured: Document = result.get("structuredContent") or {}
        error: Document = structured.get("error", {})
        raise Refused(error.get("code", "?"), error.get("message", str(result)[:300]))
    return result.get("structuredContent") or result
