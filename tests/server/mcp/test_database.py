"""What a caller of MCP sees when PostgreSQL goes away under a server, and when it is back."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp import Client
from psycopg.conninfo import make_conninfo

import planwarden
from planwarden.storage.postgres import reader, writer
from planwarden.storage.postgres.store import PostgresStore
from tests.requirements import requirement
from tests.server.mcp.support import Document, approving, ids_of, ok, refused, served
from tests.support.postgres import Server, shared_server
from tests.support.proxy import LosingProxy
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio
PLAN = plan(confirm("ask"), tool_step("act", "note", {"text": "once"}))


@pytest.fixture(autouse=True)
async def patience(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    for module in (reader, writer):
        monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    with anyio.fail_after(60):
        yield


@asynccontextmanager
async def client_of(url: str, home: Path, *tools: object) -> AsyncGenerator[Client]:
    store = PostgresStore.open(url)
    try:
        async with (
            served(home, tools=tools, store=store) as running,
            Client(running.server, elicitation_callback=approving()) as client,
        ):
            yield client
    finally:
        await store.close()


async def finished(client: Client, asked: Document) -> Document:
    """The execution, once what was asked is answered, and it is finished or asks again."""
    found = asked
    while found["status"] in ("running", asked["status"]):
        found = await ok(client, "get_execution", threadId=asked["threadId"])
    return found


async def test_a_call_while_the_database_is_gone_is_refused_and_the_same_call_succeeds_when_it_is_back(
    tmp_path: Path,
) -> None:
    server, ledger = Server(), Ledger()
    async with client_of(server.make_database(), tmp_path, *ledger.tools()) as client:
        asked = await ok(client, "execute_plan", plan=PLAN)
        await anyio.to_thread.run_sync(server.stop, "fast")
        decision = {**ids_of(asked), "decision": {"approved": True}}
        for name, arguments in (("resume_execution", decision), ("execute_plan", {"plan": PLAN})):
            error = await refused(client, name, **arguments)
            assert error["code"] == "storage_error"
            assert "cannot be reached or ended the connection; check that it runs" in error["message"]
        await anyio.to_thread.run_sync(server.start)
        await ok(client, "resume_execution", **decision)
        done = await finished(client, asked)
        assert (done["status"], ledger.lines) == ("completed", ["note once"])
    server.end()


async def test_an_effect_that_ends_while_the_database_is_gone_is_stored_later_and_nobody_is_asked(
    tmp_path: Path,
) -> None:
    server, started, may_end = Server(), anyio.Event(), anyio.Event()
    effects: list[str] = []

    @planwarden.tool(risk="read", effect="effect")
    async def send() -> str:
        """Send a letter."""
        started.set()
        await may_end.wait()
        effects.append("sent")
        return "sent"

    async with client_of(server.make_database(), tmp_path, send) as client, anyio.create_task_group() as tasks:
        asked = await ok(client, "execute_plan", plan=plan(confirm("ask"), tool_step("act", "send")))
        decision = {**ids_of(asked), "decision": {"approved": True}}
        # Its caller is told of the outage or not; the execution goes on.
        tasks.start_soon(client.call_tool, "resume_execution", decision)
        await started.wait()
        await anyio.to_thread.run_sync(server.stop, "immediate")
        may_end.set()
        error = await refused(client, "list_suspensions")
        assert error["code"] == "storage_error"
        await anyio.to_thread.run_sync(server.start)
        done = await finished(client, asked)
        assert (done["status"], effects) == ("completed", ["sent"])
        assert done["suspensions"] == []
    server.end()


@requirement("crash:lost-answer")
async def test_the_same_decision_is_accepted_after_the_answer_to_the_first_was_lost(url: str, tmp_path: Path) -> None:
    ledger, folder = Ledger(), tmp_path / "proxy"
    folder.mkdir()
    socket = shared_server().folder / ".s.PGSQL.5432"
    is_losing = False

    def loses(data: bytes) -> bool:
        if is_losing and b"append_all" in data and b'"decided"' in data:
            # The commit takes place, its answer is lost, and nobody can ask for it.
            with suppress(FileNotFoundError):
                proxy.close()
            return True
        return False

    proxy = LosingProxy(socket, folder, loses)
    async with client_of(make_conninfo(url, host=str(folder)), tmp_path, *ledger.tools()) as client:
        asked = await ok(client, "execute_plan", plan=PLAN)
        is_losing = True
        decision = {**ids_of(asked), "decision": {"approved": True}}
        assert (await refused(client, "resume_execution", **decision))["code"] == "storage_error"
        assert proxy.lost == 1
        again = LosingProxy(socket, folder, lambda data: False)
        await ok(client, "resume_execution", **decision)
        done = await finished(client, asked)
        assert (done["status"], ledger.lines) == ("completed", ["note once"])
    again.close()
