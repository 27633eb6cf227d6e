"""What a caller of MCP sees when PostgreSQL goes away under a server, when it is back, and behind PgBouncer."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from psycopg.conninfo import make_conninfo

import planwarden
from planwarden.storage.postgres import reader, writer
from planwarden.storage.postgres.store import PostgresStore
from tests.kit import confirm, plan, requirement, tool_step
from tests.server.mcp.support import Desk, Document, approving, ids_of, open_desk
from tests.support.network import Proxy
from tests.support.postgres import Server, shared_server

PLAN = plan(confirm("ask"), tool_step("act", "note", {"text": "once"}))


@pytest.fixture(autouse=True)
async def patience(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    for module in (reader, writer):
        monkeypatch.setattr(module, "RETRY_TIMEOUT_S", 0.2)
    with anyio.fail_after(120):
        yield


@asynccontextmanager
async def desk_on(url: str, home: Path, *tools: object) -> AsyncGenerator[Desk]:
    store = PostgresStore.open(url)
    try:
        async with open_desk(home, "auto", *tools, asks=approving(), store=store) as desk:
            yield desk
    finally:
        await store.close()


async def finished(desk: Desk, asked: Document) -> Document:
    """Return the execution, once what was asked is answered, and it is finished or asks again."""
    found = asked
    while found["status"] in ("running", asked["status"]):
        found = await desk.ok("get_execution", threadId=asked["threadId"])
    return found


async def test_calls_without_a_database_are_refused_and_an_effect_that_ends_is_stored_later(tmp_path: Path) -> None:
    server, started, may_end = Server(), anyio.Event(), anyio.Event()
    effects: list[str] = []

    @planwarden.tool(name="post", risk="read", effect="effect")
    async def post() -> str:
        """Send a letter."""
        started.set()
        await may_end.wait()
        effects.append("sent")
        return "sent"

    async with desk_on(server.make_database(), tmp_path, post) as desk, anyio.create_task_group() as tasks:
        waiting = await desk.ok("execute_plan", plan=PLAN)
        asked = await desk.ok("execute_plan", plan=plan(confirm("ask"), tool_step("act", "post")))
        decision = {**ids_of(asked), "decision": {"approved": True}}
        # Its caller is told of the outage or not; the execution goes on.
        tasks.start_soon(desk.client.call_tool, "resume_execution", decision)
        await started.wait()
        await anyio.to_thread.run_sync(server.stop, "immediate")
        may_end.set()
        decision = {**ids_of(waiting), "decision": {"approved": True}}
        for name, arguments in (("resume_execution", decision), ("execute_plan", {"plan": PLAN})):
            error = await desk.refused(name, **arguments)
            assert error["code"] == "storage_error"
            assert "cannot be reached or ended the connection; check that it runs" in error["message"]
        await anyio.to_thread.run_sync(server.start)
        done = await finished(desk, asked)
        assert (done["status"], done["suspensions"], effects) == ("completed", [], ["sent"])
        await desk.ok("resume_execution", **decision)
        done = await finished(desk, waiting)
        assert (done["status"], desk.ledger.lines) == ("completed", ["note once"])
    server.end()


@requirement("crash:lost-answer")
async def test_the_same_decision_is_accepted_after_the_answer_to_the_first_was_lost(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "proxy"
    folder.mkdir()
    socket = shared_server().folder / ".s.PGSQL.5432"
    is_losing = is_deciding = False

    def loses(data: bytes) -> bool:
        nonlocal is_losing, is_deciding
        is_deciding = is_losing and (is_deciding or b"decided" in data)
        if is_deciding and b"COMMIT" in data:
            is_losing = False
            # The commit takes place, its answer is lost, and nobody can ask for it.
            with suppress(FileNotFoundError):
                proxy.close()
            return True
        return False

    proxy = Proxy(socket, folder, loses)
    async with desk_on(make_conninfo(url, host=str(folder)), tmp_path) as desk:
        asked = await desk.ok("execute_plan", plan=PLAN)
        is_losing = True
        decision = {**ids_of(asked), "decision": {"approved": True}}
        assert (await desk.refused("resume_execution", **decision))["code"] == "storage_error"
        assert proxy.lost == 1
        again = Proxy(socket, folder, lambda data: False)
        await desk.ok("resume_execution", **decision)
        done = await finished(desk, asked)
        assert (done["status"], desk.ledger.lines) == ("completed", ["note once"])
    again.close()
