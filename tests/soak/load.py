"""The load: random plans with people who decide, as in a campaign without mishaps, and clients that come and go."""

import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextResourceContents
from pydantic import JsonValue, TypeAdapter

from tests.campaign.plans import random_plan
from tests.harness.clients import Document
from tests.harness.stage import Server, Stage
from tests.server.mcp.http_support import HEADERS
from tests.server.mcp.support import ERAS, ok
from tests.support.wardens import confirm, plan, tool_step

FINISHED = ("completed", "rejected", "failed", "incomplete", "cancelled")
DOCUMENT = TypeAdapter[Document](Document)
STUCK_S = 300.0
"""A scene that takes so long will never end."""
LOOK_S = 0.3


class Load:
    """The load on one stage. What goes wrong is in `faults`; nothing is raised."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self.stage, self.chance = stage, chance
        self.visits = Counter[str]()
        """How often each scene was played to its end."""
        self.faults = list[str]()

    @property
    def page(self) -> Server:
        return self.stage.living("http")[0]

    async def play_until(self, over: anyio.Event) -> None:
        """Return when the event was set and the scenes that were being played have ended."""
        async with anyio.create_task_group() as tasks:
            for scene, pause_s in PAUSES_S.items():
                tasks.start_soon(self._repeat, scene, pause_s, over)

    async def play(self, scene: "Scene") -> None:
        try:
            with anyio.fail_after(STUCK_S):
                await scene(self)
            self.visits[scene.__name__] += 1
        # Whatever it is, it is a finding, and the load goes on.
        except Exception as error:  # noqa: BLE001
            self.faults.append(f"{scene.__name__}: {error!r}"[-3000:])

    async def _repeat(self, scene: "Scene", pause_s: float, over: anyio.Event) -> None:
        while not over.is_set():
            with anyio.move_on_after(pause_s * self.chance.uniform(0.5, 1.5)):
                await over.wait()
                return
            await self.play(scene)

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Client]:
        """Open a client of any era over HTTP."""
        async with httpx2.AsyncClient(timeout=60) as http:
            transport = streamable_http_client(f"{self.page.url}/mcp", http_client=http)
            async with Client(transport, mode=self.chance.choice(ERAS)) as client:
                yield client

    async def run(self, client: Client, *steps: dict[str, JsonValue], ends: str = "completed") -> Document:
        """Run a plan to its end while people decide. Raises `AssertionError` when it ends otherwise."""
        execution = await ok(client, "execute_plan", plan=plan(*steps), options={"waitSeconds": 5})
        while execution["status"] not in FINISHED:
            await anyio.sleep(LOOK_S)
            execution = await ok(client, "get_execution", threadId=execution["threadId"])
        assert execution["status"] == ends, execution
        return execution


async def run_random_plan(load: Load) -> None:
    server = load.chance.choice(load.stage.living("http", "stdio"))
    host = server.http or server.stdio
    assert host is not None
    execution = await host.call("execute_plan", {"plan": random_plan(load.chance), "options": {"waitSeconds": 5}})
    load.stage.testimony.started.append(execution["executionId"])
    if load.chance.random() < 0.1:
        execution = await host.call("cancel_execution", {"threadId": execution["threadId"]})
    while execution["status"] not in FINISHED:
        await anyio.sleep(LOOK_S)
        execution = await host.call("get_execution", {"threadId": execution["threadId"]})


async def look_around_in_the_inbox(load: Load) -> None:
    for path in ("/inbox", "/inbox/history", "/inbox/grants"):
        page = await load.stage.browser.get(f"{load.page.url}{path}")
        assert page.status_code == 200, page.text


async def read_a_large_result(load: Load) -> None:
    async with load.connect() as client:
        done = await load.run(client, tool_step("report", "desk_report", {"note": str(load.chance.random())}))
        stand_in = done["steps"][0]["result"]
        offset: int | None = 0
        read = 0
        while offset is not None:
            uri = f"planwarden://artifacts/{done['threadId']}/{stand_in['artifactId']}?offset={offset}"
            [content] = (await client.read_resource(uri)).contents
            assert isinstance(content, TextResourceContents)
            piece = DOCUMENT.validate_json(content.text)
            read += len(piece["text"])
            offset = piece.get("nextOffset")
        assert read == stand_in["sizeBytes"], (read, stand_in["sizeBytes"])


async def hang_up(load: Load) -> None:
    """The client gives the call up, or is gone; the execution lives in the server."""
    browse = tool_step("browse", "desk_browse", {"seconds": load.chance.uniform(1, 3)})
    with anyio.move_on_after(load.chance.uniform(0, 3)):
        async with load.connect() as client:
            await load.run(client, browse)


async def drop_the_connection(load: Load) -> None:
    """A client of the older era opens a session and a stream for news, and never says goodbye."""
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "dropping", "version": "1"}}
    async with httpx2.AsyncClient(base_url=load.page.url, headers=HEADERS, timeout=60) as http:

        async def post(method: str, params: Any = None, session: dict[str, str] | None = None, **more: int) -> Any:
            body: Document = {"jsonrpc": "2.0", "method": method, "params": params or {}, **more}
            return await http.post("/mcp", json=body, headers=session)

        answer = await post("initialize", client, id=1)
        assert answer.status_code == 200, answer.text
        session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        await post("notifications/initialized", None, session)
        await post("resources/subscribe", {"uri": "planwarden://suspensions"}, session, id=2)
        async with http.stream("GET", "/mcp", headers=session) as stream:
            assert stream.status_code == 200
            await anyio.sleep(load.chance.uniform(0, 2))


async def listen(load: Load) -> None:
    """A client of the newer era hears of its execution, and leaves the stream."""
    async with httpx2.AsyncClient(timeout=60) as http:
        transport = streamable_http_client(f"{load.page.url}/mcp", http_client=http)
        async with (
            Client(transport, mode="auto") as client,
            client.listen(resource_subscriptions=["planwarden://suspensions"]) as stream,
        ):
            asked = await ok(client, "execute_plan", plan=plan(confirm("sure")), options={"waitSeconds": 0})
            await anext(aiter(stream))
            await ok(client, "cancel_execution", threadId=asked["threadId"])


async def lose_the_downstream_server(load: Load) -> None:
    async with load.connect() as client:
        await load.run(client, tool_step("lost", "kiosk_collapse"), ends="failed")


async def come_and_go(load: Load) -> None:
    """A host starts a server of its own, asks, and ends it; what it started goes on elsewhere."""
    server = await load.stage.start("stdio")
    assert server.stdio is not None
    given = {"plan": random_plan(load.chance), "options": {"waitSeconds": 1}}
    load.stage.testimony.started.append((await server.stdio.call("execute_plan", given))["executionId"])
    server.process.end(signal.SIGTERM)
    with suppress(ValueError):
        await server.process.wait(60)
    server.process.close()
    load.stage.servers.remove(server)


Scene = Callable[[Load], Awaitable[None]]
PAUSES_S: dict[Scene, float] = {
    run_random_plan: 1.5,
    look_around_in_the_inbox: 5,
    read_a_large_result: 20,
    hang_up: 6,
    drop_the_connection: 5,
    listen: 6,
    lose_the_downstream_server: 60,
    come_and_go: 45,
}
"""Each scene, and the seconds between two plays of it."""
