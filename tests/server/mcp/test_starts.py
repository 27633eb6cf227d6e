"""Starting once over MCP: the second caller with a key gets what the first one got, with waiting, progress and task."""

from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult

from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, ids_of, ok, refused, served, text_of
from tests.server.mcp.tasks_support import TakesTasks, start, until
from tests.support.wardens import Ledger, PausingTool, confirm, plan, tool_step

pytestmark = pytest.mark.anyio

PLAN = plan(tool_step("a", "gate"))
NOTE = plan(tool_step("a", "note", {"text": "once"}))


@requirement("key:once")
@pytest.mark.parametrize("era", ERAS)
async def test_whoever_sends_a_key_again_waits_and_is_told_of_progress_as_the_first(tmp_path: Path, era: Era) -> None:
    gate, told = PausingTool(), list[str | None]()

    async def let_through(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)
        gate.opened.set()

    async with served(tmp_path, tools=[gate.tool()]) as found, Client(found.server, mode=era) as client:
        with anyio.fail_after(60):
            options = {"waitSeconds": 0}
            first = await ok(client, "execute_plan", plan=PLAN, key="k", options=options)
            at_once = await ok(client, "execute_plan", plan=PLAN, key="k", options=options)
            assert at_once["status"] == "running"
            arguments = {"plan": PLAN, "key": "k", "options": {"waitSeconds": 300}}
            again: CallToolResult = await client.call_tool("execute_plan", arguments, progress_callback=let_through)
    assert again.structured_content["status"] == "completed"
    assert first["executionId"] == at_once["executionId"] == again.structured_content["executionId"]
    assert told[0] == "0 of 1 steps done; running a"


@requirement("key:once", "key:conflict", "key:valid")
@pytest.mark.parametrize("era", ERAS)
async def test_a_key_is_checked_and_another_request_with_it_refused(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        for verb in ("run_goal", "create_plan"):
            asked = await ok(client, verb, goal="a goal", key=verb)
            assert ids_of(await ok(client, verb, goal="a goal", key=verb)) == ids_of(asked)
            error = await refused(client, verb, goal="another goal", key=verb)
            assert error["code"] == "key_conflict" and asked["executionId"] in error["message"]
            assert error["details"] == {"executionId": asked["executionId"], "threadId": asked["threadId"]}
        for key, said in (
            ("", "'key' is empty"),
            ("x" * 201, "limit is 200"),
            (7, "key"),
            ("a\tb", "U+0009 at place 2"),
        ):
            error = await refused(client, "run_goal", goal="a goal", key=key)
            assert error["code"] == "invalid_arguments" and said in error["message"]
        assert (await ok(client, "list_suspensions"))["total"] == 2


@requirement("key:warning")
@pytest.mark.parametrize("era", ERAS)
async def test_a_plan_sent_again_without_a_key_warns_in_text_and_structure(tmp_path: Path, era: Era) -> None:
    steps = plan(confirm("ask"))
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        first = await ok(client, "execute_plan", plan=steps)
        again = await client.call_tool("execute_plan", {"plan": steps})
        [warning] = again.structured_content["warnings"]
        assert "warnings" not in first and first["executionId"] in warning
        assert "Warning: " in text_of(again) and first["executionId"] in text_of(again)


@requirement("key:once")
async def test_a_task_started_again_with_its_key_is_the_same_task(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools(), script=[]) as found,
        Client(found.server, mode="auto", extensions=[TakesTasks()]) as client,
    ):
        first = await start(client, "execute_plan", plan=NOTE, key="k")
        await until(client, first["taskId"], "completed")
        again = await start(client, "execute_plan", plan=NOTE, key="k")
        assert (again["taskId"], again["status"]) == (first["taskId"], "completed")
    assert ledger.lines == ["note once"]
