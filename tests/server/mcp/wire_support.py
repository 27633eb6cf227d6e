"""A client of protocol 2026-07-28 that may lie: it sends JSON over HTTP exactly as a test writes it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2
from mcp.types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp.types.version import LATEST_MODERN_VERSION

from planwarden.server.auth.network import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.tasks.state import TASKS
from planwarden.server.transports.http import build_http_app
from planwarden.storage.clock import SystemClock
from tests.server.mcp.support import Document

FORMS: Document = {"elicitation": {"form": {}}}
LINKS: Document = {"elicitation": {"url": {}}}
TAKES: Document = {"extensions": {TASKS: {}}}
HOST = "127.0.0.1:80"


@dataclass(frozen=True)
class Wire:
    """Sends requests with these capabilities."""

    http: httpx2.AsyncClient
    capabilities: Document = field(default_factory=dict[str, Any])
    version: str = LATEST_MODERN_VERSION

    def declaring(self, *capabilities: Document) -> "Wire":
        """The same wire with other capabilities."""
        return replace(self, capabilities={name: found for each in capabilities for name, found in each.items()})

    async def send(self, method: str, params: Document, name: str | None = None) -> Document:
        """The whole answer: `result` or `error`. `name` goes into the routing header."""
        meta: Document = {PROTOCOL_VERSION_META_KEY: self.version, CLIENT_CAPABILITIES_META_KEY: self.capabilities}
        sent: Document = {**params, "_meta": meta}
        headers = {
            "Host": HOST,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": self.version,
            "Mcp-Method": method,
            **({} if name is None else {"Mcp-Name": name}),
        }
        body: Document = {"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}
        answer = await self.http.post("/mcp", json=body, headers=headers)
        events = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
        return json.loads(events[-1] if events else answer.text)

    async def call(self, tool: str, /, **params: Any) -> Document:
        """The result of a tool: `arguments`, and `inputResponses` and `requestState` as they are."""
        return (await self.send("tools/call", {"name": tool, **params}, tool))["result"]

    async def task(self, method: str, task_id: Any, **params: Any) -> Document:
        """The whole answer to a request about a task."""
        return await self.send(method, {"taskId": task_id, **params}, str(task_id))


@asynccontextmanager
async def wired(server: PlanwardenServer) -> AsyncGenerator[Wire]:
    """A wire to the server, without a socket; once for each server."""
    app = build_http_app(server, AllowedNames.from_settings(HttpSettings(), "127.0.0.1", 80), clock=SystemClock())
    transport = httpx2.ASGITransport(app=app)
    async with (
        server.session_manager.run(),
        httpx2.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http,
    ):
        yield Wire(http)
