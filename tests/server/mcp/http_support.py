"""HTTP for tests: a server on a free port, tokens and clients for it, and a client that sends what a test writes."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types.version import LATEST_MODERN_VERSION

from planwarden.server.auth.admission import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.task_state import TASKS
from planwarden.server.settings.configuration import Settings
from planwarden.server.transports.http import build_http_app, serve_http
from planwarden.storage.clock import SystemClock
from planwarden.storage.opening import open_store
from planwarden.storage.tokens import Role, TokenStore
from tests.harness.clients import build_headers, build_meta, read_answer
from tests.server.mcp.support import Document, Era, Person

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
LIST: Document = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


@asynccontextmanager
async def serving(
    settings: Settings, *, host: str = "127.0.0.1", port: int = 0, accepts_trust: bool = False
) -> AsyncGenerator[str]:
    addresses: list[str] = []
    ready = anyio.Event()

    def started(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def serve() -> None:
        await serve_http(settings, host=host, port=port, accepts_trust=accepts_trust, started=started)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        with anyio.fail_after(60):
            await ready.wait()
        yield addresses[0]
        tasks.cancel_scope.cancel()


async def token_for(settings: Settings, name: str, *, role: Role = "caller", days: int | None = None) -> str:
    """A new token of that name in the home's database."""
    async with open_store(settings.store) as store:
        token, _ = await TokenStore(store).make(name, role=role, days=days)
    return token


async def revoke(settings: Settings, name: str) -> None:
    async with open_store(settings.store) as store:
        assert await TokenStore(store).revoke(name)


@asynccontextmanager
async def client_of(url: str, token: str, era: Era, person: Person | None = None) -> AsyncGenerator[Client]:
    async with httpx2.AsyncClient(headers=bearing(token), timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=era, elicitation_callback=person) as client:
            yield client


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


FORMS: Document = {"elicitation": {"form": {}}}
LINKS: Document = {"elicitation": {"url": {}}}
TAKES: Document = {"extensions": {TASKS: {}}}
HOST = "127.0.0.1:80"


@dataclass(frozen=True)
class Wire:
    """A client of protocol 2026-07-28 that may lie: it declares these capabilities, and sends JSON as it is written."""

    http: httpx2.AsyncClient
    capabilities: Document = field(default_factory=dict[str, Any])
    version: str = LATEST_MODERN_VERSION

    def declaring(self, *capabilities: Document) -> "Wire":
        return replace(self, capabilities={name: found for each in capabilities for name, found in each.items()})

    async def send(self, method: str, params: Document, name: str | None = None) -> Document:
        """The whole answer: `result` or `error`. `name` goes into the routing header."""
        sent: Document = {**params, "_meta": build_meta(self.capabilities, self.version)}
        body: Document = {"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}
        headers = {b"Host": HOST.encode(), **build_headers(method, name, self.version)}
        answer = await self.http.post("/mcp", content=json.dumps(body), headers=headers)
        return read_answer(answer) or {}

    async def call(self, tool: str, /, **params: Any) -> Document:
        """The result of a tool: `arguments`, and `inputResponses` and `requestState` as they are."""
        return (await self.send("tools/call", {"name": tool, **params}, tool))["result"]

    async def task(self, method: str, task_id: Any, **params: Any) -> Document:
        return await self.send(method, {"taskId": task_id, **params}, str(task_id))


@asynccontextmanager
async def wired(server: PlanwardenServer) -> AsyncGenerator[Wire]:
    """A wire to the server, without a socket; once for each server."""
    app = build_http_app(server, AllowedNames.from_settings(HttpSettings(), "127.0.0.1", 80), clock=SystemClock())
    transport = httpx2.ASGITransport(app=app)
    async with server.session_manager.run(), httpx2.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
        yield Wire(http)
