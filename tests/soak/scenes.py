"""What the load consists of. Each scene starts an execution, says how it has to end, and plays its part."""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
import httpx2
from mcp import Client
from mcp.types import TextResourceContents
from pydantic import JsonValue, TypeAdapter

from planwarden.server.inbox.forms import derive_key
from tests.server.cli.support import start_on_terminal
from tests.server.inbox.support import Browser
from tests.server.mcp.http_support import HEADERS, bearing
from tests.server.mcp.support import ERAS, Document, Person, approving, ids_of, ok
from tests.soak.book import NEVER, WAITS, Book
from tests.soak.stage import CALLERS, Stage
from tests.support.wardens import confirm, model_step, plan, tool_step

LOOK = tool_step("look", "shop_look", {"article": "a lamp"}, dependencies=[])
SUM = tool_step("sum", "calculator", {"expression": "12 * 3"}, dependencies=[])
FINISHED = ("completed", "rejected", "failed", "incomplete", "cancelled")
DOCUMENT = TypeAdapter[Document](Document)


@dataclass
class Visit:
    """One play of a scene, for one caller; `goal` names its execution."""

    stage: Stage
    book: Book
    chance: random.Random
    goal: str
    caller: str | None
    """None for the host that talks over standard input and output."""
    browser: Browser

    @asynccontextmanager
    async def connect(self, person: Person | None = None) -> AsyncGenerator[Client]:
        """A client of the caller: a new one over HTTP, or the host, which fills in every form."""
        if self.caller is None:
            assert self.stage.host is not None
            yield self.stage.host
            return
        async with self.stage.connect(self.caller, self.chance.choice(ERAS), person) as client:
            yield client

    async def start(self, client: Client, *steps: dict[str, JsonValue], expect: str, wait: float = 60) -> Document:
        """Runs a plan until it ends, waits, or `wait` seconds have passed, and notes how it has to end."""
        self.book.expect(self.goal, expect)
        options = {"waitSeconds": wait}
        return await ok(client, "execute_plan", plan=plan(*steps), goal=self.goal, options=options)

    async def finish(self, client: Client, execution: Document) -> Document:
        """Asks until the execution has ended."""
        while execution["status"] not in FINISHED:
            await anyio.sleep(0.5)
            execution = await ok(client, "get_execution", threadId=execution["threadId"])
        return execution

    async def find_question(self, client: Client, execution: Document) -> Document:
        """Asks until the execution waits for somebody."""
        while not execution.get("suspensions"):
            assert execution["status"] not in FINISHED, execution
            await anyio.sleep(0.5)
            execution = await ok(client, "get_execution", threadId=execution["threadId"])
        return execution

    @property
    def order(self) -> dict[str, JsonValue]:
        """A step that needs a person, and which the ledger proves."""
        return tool_step("order", "shop_order", {"note": self.goal})


Scene = Callable[[Visit], Awaitable[object]]


async def run_tools(visit: Visit) -> None:
    async with visit.connect() as client:
        done = await visit.start(client, LOOK, SUM, expect="completed")
        await visit.finish(client, done)


async def approve_in_the_inbox(visit: Visit) -> None:
    async with visit.connect() as client:
        asked = await visit.start(client, LOOK, visit.order, expect="completed")
        asked = await visit.find_question(client, asked)
    visit.book.orders.add(visit.goal)
    await visit.browser.decide(ids_of(asked)["suspensionId"], "approve")
    async with visit.connect() as client:
        await visit.finish(client, asked)


async def reject_in_the_inbox(visit: Visit) -> None:
    async with visit.connect() as client:
        asked = await visit.start(client, visit.order, expect="rejected")
        asked = await visit.find_question(client, asked)
        await visit.browser.decide(ids_of(asked)["suspensionId"], "reject", reason="too expensive")
        await visit.finish(client, asked)


async def look_around_in_the_inbox(visit: Visit) -> None:
    for path in ("/inbox", "/inbox/history", "/inbox/grants"):
        page = await visit.browser.open(path)
        assert page.status == 200, page.words


async def decide_at_the_terminal(visit: Visit) -> None:
    async with visit.connect() as client:
        approves = visit.chance.random() < 0.5
        asked = await visit.start(client, visit.order, expect="completed" if approves else "rejected")
        question = ids_of(await visit.find_question(client, asked))["suspensionId"]
        if approves:
            visit.book.orders.add(visit.goal)
            await anyio.to_thread.run_sync(_approve_at_the_terminal, visit.stage, question)
        else:
            result = await anyio.to_thread.run_sync(visit.stage.cli.spawn, "reject", question)
            assert result.code == 0, result
        await visit.finish(client, asked)


def _approve_at_the_terminal(stage: Stage, question: str) -> None:
    terminal = start_on_terminal(stage.cli, "approve", question)
    try:
        terminal.expect("Enter leaves it open]")
        terminal.type("y")
        assert terminal.finish() == 0, terminal.text
    finally:
        terminal.close()


async def fill_in_a_form(visit: Visit) -> None:
    async with visit.connect(approving()) as client:
        asked = await visit.start(client, confirm("sure"), SUM, expect="completed")
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        await visit.finish(client, done)


async def leave_without_an_answer(visit: Visit) -> None:
    """The time for the answer passes while no client is there."""
    async with visit.connect() as client:
        silent: dict[str, JsonValue] = {"action": "Go on?", "timeoutSeconds": visit.chance.uniform(1, 4)}
        asked = await visit.start(client, tool_step("sure", "displayConfirmation", silent), expect="rejected")
    await anyio.sleep(5)
    async with visit.connect() as client:
        await visit.finish(client, asked)


async def wait_a_while(visit: Visit) -> None:
    async with visit.connect() as client:
        wait = tool_step("wait", "wait", {"seconds": visit.chance.uniform(0.5, 8)})
        await visit.finish(client, await visit.start(client, wait, SUM, expect="completed"))


async def cancel(visit: Visit) -> None:
    """Cancels a question, or a call that runs."""
    async with visit.connect() as client:
        browse = tool_step("browse", "shop_browse", {"seconds": 30})
        step, wait = visit.chance.choice([(visit.order, 60), (browse, 0)])
        started = await visit.start(client, step, expect="cancelled", wait=wait)
        await anyio.sleep(visit.chance.uniform(0, 1))
        await ok(client, "cancel_execution", threadId=started["threadId"], reason="changed my mind")


async def read_a_large_result(visit: Visit) -> None:
    async with visit.connect() as client:
        report = tool_step("report", "shop_report", {"note": visit.goal})
        done = await visit.finish(client, await visit.start(client, report, expect="completed"))
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


async def hang_up(visit: Visit) -> None:
    """The client gives the call up, or is gone; the execution lives in the server."""
    browse = tool_step("browse", "shop_browse", {"seconds": visit.chance.uniform(1, 3)})
    with anyio.move_on_after(visit.chance.uniform(0, 3)):
        async with visit.connect() as client:
            await visit.start(client, browse, SUM, expect="completed")
    visit.book.expect(visit.goal, "completed", NEVER)


async def drop_the_connection(visit: Visit) -> None:
    """A client of the older era opens a session and a stream for news, and never says goodbye."""
    body: Document = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "dropping", "version": "1"},
        },
    }
    headers = {**HEADERS, **bearing(visit.stage.tokens[visit.caller or CALLERS[0]])}
    async with httpx2.AsyncClient(base_url=visit.stage.url, headers=headers, timeout=60) as http:
        answer = await http.post("/mcp", json=body)
        assert answer.status_code == 200, answer.text
        session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        subscribe = {"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe"}
        params = {"params": {"uri": "planwarden://suspensions"}}
        await http.post("/mcp", json={**subscribe, **params}, headers=session)
        async with http.stream("GET", "/mcp", headers=session) as stream:
            assert stream.status_code == 200
            await anyio.sleep(visit.chance.uniform(0, 2))


async def listen(visit: Visit) -> None:
    """A client of the newer era hears of its execution, and leaves the stream."""
    caller = visit.caller or CALLERS[0]
    async with (
        visit.stage.connect(caller, "auto", approving()) as client,
        client.listen(resource_subscriptions=["planwarden://suspensions"]) as stream,
    ):
        asked = await visit.start(client, confirm("sure"), expect="completed")
        await anext(aiter(stream))
        await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})


async def poll(visit: Visit) -> None:
    async with visit.connect() as client:
        for _ in range(5):
            page = await ok(client, "list_suspensions", limit=100)
            for found in page.get("suspensions", [])[:5]:
                await ok(client, "get_execution", threadId=found["threadId"], observationsAfter=0)
            await ok(client, "search_tools", query="order an article")


async def think(visit: Visit) -> None:
    """The caller is the model: it plans and names the calls of a step."""
    async with visit.connect() as client:
        visit.book.expect(visit.goal, "completed")
        asked = await ok(client, "run_goal", goal=visit.goal, options={"synthesize": False})
        asked = await ok(client, "submit_answer", **ids_of(asked), content=plan(model_step("sum", "calculator")))
        call: JsonValue = {"toolName": "calculator", "arguments": {"expression": "1 + 1"}}
        done = await ok(client, "submit_answer", **ids_of(asked), content={"toolCalls": [call]})
        while done["status"] not in FINISHED:
            done = await ok(client, "get_execution", threadId=done["threadId"])
            if done.get("suspensions"):
                done = await ok(client, "submit_answer", **ids_of(done), content={"content": "It is 2."})


async def answer_the_downstream_server(visit: Visit) -> None:
    """The server asks two questions in the middle of its call."""
    async with visit.connect() as client:
        asked = await visit.start(client, tool_step("pay", "bank_transfer"), expect="completed")
        while asked["status"] not in FINISHED:
            if not asked.get("suspensions"):
                await anyio.sleep(0.5)
                asked = await ok(client, "get_execution", threadId=asked["threadId"])
                continue
            question = asked["suspensions"][0]
            schema: Document = question.get("answerSchema") or {"properties": {}}
            fields = {f"arg.{derive_key(name)}": "7" for name in schema["properties"]}
            page = await visit.browser.decide(question["suspensionId"], "approve", **fields)
            assert page.status == 303, page.words
            asked = await ok(client, "get_execution", threadId=asked["threadId"])


async def lose_the_downstream_server(visit: Visit) -> None:
    async with visit.connect() as client:
        lost = await visit.start(client, tool_step("lost", "kiosk_collapse"), expect="failed")
        await visit.finish(client, lost)


async def come_and_go(visit: Visit) -> None:
    """A host starts a server of its own, asks, and ends it; the next one finds the question."""
    async with visit.stage.start_host("visitor") as client:
        asked = await visit.find_question(client, await visit.start(client, LOOK, visit.order, expect="completed"))
    visit.book.orders.add(visit.goal)
    async with visit.stage.start_host("visitor") as client:
        again = await ok(client, "get_execution", threadId=asked["threadId"])
        await visit.browser.decide(ids_of(again)["suspensionId"], "approve")
        await visit.finish(client, again)


async def leave_open(visit: Visit) -> None:
    """Some questions are never answered, and they wait for ever."""
    async with visit.connect() as client:
        asked = await visit.start(client, visit.order, expect=WAITS)
        await visit.find_question(client, asked)


PAUSES_S: dict[Scene, float] = {
    run_tools: 2,
    approve_in_the_inbox: 4,
    reject_in_the_inbox: 8,
    look_around_in_the_inbox: 5,
    decide_at_the_terminal: 25,
    fill_in_a_form: 4,
    leave_without_an_answer: 5,
    wait_a_while: 3,
    cancel: 6,
    read_a_large_result: 20,
    hang_up: 6,
    drop_the_connection: 5,
    listen: 6,
    poll: 5,
    think: 5,
    answer_the_downstream_server: 8,
    lose_the_downstream_server: 60,
    come_and_go: 45,
    leave_open: 240,
}
"""Each scene, and the seconds between two plays of it."""
