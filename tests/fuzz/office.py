"""A served warden with open questions of every kind, and an HTTP client that sends bytes to it without a socket."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from planwarden.server.auth.network import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.transports.http import build_http_app
from planwarden.storage.clock import SystemClock
from tests.fuzz.corpus import PLANS, Document
from tests.fuzz.entrance import Wrong, check_result
from tests.harness.clients import build_headers, build_meta, read_answer
from tests.server.mcp.support import Served, sender, served
from tests.support.wardens import Ledger, plan, tool_step

HOST = "127.0.0.1:80"
FEW, MANY = 8, 30
"""Open questions: when there are fewer, more are asked, and never more than the second."""


@dataclass
class Office:
    """The server, and the questions that are open in it."""

    found: Served
    http: httpx2.AsyncClient
    ledger: Ledger
    threads: list[str] = field(default_factory=lambda: ["none"])
    questions: list[Document] = field(default_factory=list[Document])
    """Open questions as their view shows them."""

    async def post(self, body: bytes, headers: Mapping[bytes, bytes]) -> httpx2.Response:
        return await self.http.post("/mcp", content=body, headers=headers)

    async def call(self, tool: str, arguments: Document, **params: Any) -> Document:
        """The JSON-RPC answer to a correct call."""
        meta = build_meta({"elicitation": {"form": {}}})
        request = {"name": tool, "arguments": arguments, **params, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": request}
        answer = await self.post(json.dumps(body).encode(), build_headers("tools/call", tool))
        found = read_answer(answer)
        assert found is not None
        return found

    async def fill(self) -> None:
        """Asks questions until there are enough; forgets those that are decided."""
        page = (await self.call("list_suspensions", {"limit": 100}))["result"]["structuredContent"]
        self.questions = page.get("suspensions", [])
        for number in range(FEW if len(self.questions) < FEW else 0):
            view = (await self.call("execute_plan", {"plan": PLANS[number % len(PLANS)]}))["result"]
            if check_result(view) != "ok":
                raise Wrong(f"plan {number} of the corpus: {str(view)[:500]}")
            thread = view["structuredContent"]["threadId"]
            self.threads.append(thread)
            asked = view["structuredContent"].get("suspensions", [])
            self.questions.extend({"threadId": thread, **question} for question in asked)
        for question in self.questions[MANY:]:
            await self.call("cancel_execution", {"threadId": question["threadId"]})
        self.questions = self.questions[:MANY]
        self.threads = self.threads[-MANY:]

    async def check_alive(self) -> None:
        """Runs an ordinary plan, and looks whether anything dangerous happened, which nobody approved."""
        answer = await self.call("execute_plan", {"plan": PLANS[0], "options": {"waitSeconds": 20}})
        view = answer["result"]["structuredContent"]
        if view.get("status") != "completed":
            raise Wrong(f"an ordinary plan came to {str(view)[:500]}")
        if any(line.startswith("erase") for line in self.ledger.lines):
            raise Wrong(f"a dangerous call ran: {self.ledger.lines}")
        await self.fill()


@asynccontextmanager
async def office(home: Path) -> AsyncGenerator[Office]:
    ledger = Ledger()
    async with served(home, tools=[*ledger.tools(), sender(ledger)]) as found:
        names = AllowedNames.from_settings(HttpSettings(), "127.0.0.1", 80)
        app = build_http_app(found.server, names, clock=SystemClock())
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=True)
        async with (
            found.server.session_manager.run(),
            httpx2.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers={"Host": HOST}) as http,
        ):
            opened = Office(found, http, ledger)
            await opened.call("execute_plan", {"plan": plan(tool_step("a", "erase", {"ids": [1]}))})
            await opened.check_alive()
            yield opened
