"""Waiting over MCP: calls return in time, progress is reported, and executions outlive their request."""

from pathlib import Path

import anyio
import pytest
from mcp import Client

from tests.server.mcp.support import ERAS, Era, ids_of, ok, served, text_of
from tests.support.wardens import Ledger, PausingTool, model_step, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]


PLAN = plan(tool_step("a", "gate"))


async def test_a_call_returns_in_time_with_the_handle(tmp_path: Path, era: Era) -> None:
    gate = PausingTool()
    async with served(tmp_path, tools=[gate.tool()]) as found, Client(found.server, mode=era) as client:
        with anyio.fail_after(60):
            at_once = await ok(client, "execute_plan", plan=PLAN, options={"waitSeconds": 0})
            assert at_once["status"] == "running" and "get_execution" in at_once["nextAction"]
            later = await ok(client, "execute_plan", plan=PLAN, options={"waitSeconds": 0.05})
            assert later["status"] == "running"
        gate.opened.set()


async def test_waiting_ends_as_soon_as_the_execution_does(tmp_path: Path, era: Era) -> None:
    gate = PausingTool()
    async with (
        served(tmp_path, tools=[gate.tool()]) as found,
        Client(found.server, mode=era) as client,
        anyio.create_task_group() as tasks,
    ):

        async def let_through() -> None:
            await gate.started.wait()
            gate.opened.set()

        tasks.start_soon(let_through)
        with anyio.fail_after(60):
            done = await ok(client, "execute_plan", plan=PLAN, options={"waitSeconds": 300})
        assert done["status"] == "completed"


async def test_progress_is_reported_to_who_asked_for_it(tmp_path: Path, era: Era) -> None:
    gate = PausingTool()
    seen: list[tuple[float, str | None]] = []

    async def show(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))
        gate.opened.set()

    steps = plan(tool_step("a", "gate"), model_step("b", "gate"))
    async with served(tmp_path, tools=[gate.tool()]) as found, Client(found.server, mode=era) as client:
        with anyio.fail_after(60):
            result = await client.call_tool("execute_plan", {"plan": steps}, progress_callback=show)
        assert result.structured_content["status"] == "suspended"
        numbers = [number for number, _ in seen]
        assert numbers == sorted(set(numbers))
        assert any(message == "0 of 2 steps done; running a" for _, message in seen)

        count = len(seen)
        with anyio.fail_after(60):
            await ok(client, "submit_answer", **ids_of(result.structured_content), content={"content": "no"})
        assert len(seen) == count


async def test_a_client_that_stops_waiting_stops_nothing(tmp_path: Path, era: Era) -> None:
    gate = PausingTool()
    async with served(tmp_path, tools=[gate.tool()]) as found:
        async with Client(found.server, mode=era) as client, anyio.create_task_group() as tasks:
            with anyio.fail_after(60):
                tasks.start_soon(client.call_tool, "execute_plan", {"plan": PLAN})
                await gate.started.wait()
                tasks.cancel_scope.cancel()
        # The connection is gone as well.
        gate.opened.set()
        async with Client(found.server, mode=era) as client:
            service = found.warden.service
            [header] = await service.engine.store.executions("local", 10)
            execution = await service.engine.find(header.execution_id)
            with anyio.fail_after(60):
                await service.engine.wait(execution, 60)
            done = await ok(client, "get_execution", threadId=header.thread_id)
            assert (done["status"], done["steps"][0]["result"]) == ("completed", "through")


async def test_a_running_execution_is_cancelled_from_outside(tmp_path: Path, era: Era) -> None:
    gate = PausingTool()
    async with served(tmp_path, tools=[gate.tool()]) as found, Client(found.server, mode=era) as client:
        with anyio.fail_after(60):
            running = await ok(client, "execute_plan", plan=PLAN, options={"waitSeconds": 0})
            await gate.started.wait()
            done = await ok(client, "cancel_execution", threadId=running["threadId"])
        assert done["status"] == "cancelled"


async def test_many_calls_share_one_connection(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        texts: list[str] = []

        async def one(number: int) -> None:
            steps = plan(tool_step("a", "note", {"text": str(number)}))
            texts.append(text_of(await client.call_tool("execute_plan", {"plan": steps})))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(one, number)
        assert len(texts) == 50 and all(text.startswith("completed") for text in texts)
        assert sorted(ledger.lines) == sorted(f"note {number}" for number in range(50))
