"""Tasks that are over stay over: executions that continue, clock changes, other processes and pruning."""

from pathlib import Path

import anyio
import pytest
from mcp.types import INVALID_PARAMS
from pydantic import JsonValue

from tests.kit import ManualClock, MemoryStore, PausingTool, confirm, plan, requirement, tool_step
from tests.server.mcp.support import Desk, decide_on_page
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, Task, code_of, run, take_tasks

pytestmark = pytest.mark.anyio

SENT = plan(tool_step("a", "send", {"to": "ann"}))
MORE: JsonValue = {"budgets": {"toolCalls": 9}, "waitSeconds": 0}
APPROVED: JsonValue = {"action": "accept", "content": {"decision": "approve"}}


async def exhaust_budget(desk: Desk, *later: dict[str, JsonValue]) -> Task:
    """Return the task of a plan whose budget was used up after its first step."""
    steps = plan(tool_step("a", "note", {"text": "x"}), *later)
    task = await run(desk, steps, options={"budgets": {"toolCalls": 1}})
    assert (await task.over())["status"] == "incomplete"
    return task


@requirement("tasks:over")
async def test_a_task_that_ended_with_its_budget_stays_over_while_its_execution_goes_on(tmp_path: Path) -> None:
    gate = PausingTool()
    async with take_tasks(tmp_path, gate.tool(), on_disk=True) as desk:
        task = await exhaust_budget(desk, tool_step("b", "gate"), confirm("c"))
        thread_id = (await task.over())["threadId"]
        more = await desk.ok("execute_plan", threadId=thread_id, options=MORE)
        assert (more["executionId"], more["status"]) == (task.task_id, "running")
        with anyio.fail_after(60):
            await gate.started.wait()
        assert (await task.over())["status"] == "running"
        gate.opened.set()
        engine = desk.warden.service.engine
        assert (await engine.wait(await engine.find(task.task_id), 60)).status == "suspended"
        assert (await task.over())["awaiting"] == "human" and "inputRequests" not in await task.get()
    async with take_tasks(tmp_path, gate.tool(), on_disk=True) as desk:
        task = task.seen_by(desk.client)
        assert (await task.over())["status"] == "suspended"
        await desk.ok("cancel_execution", threadId=thread_id)
        assert (await task.over())["status"] == "cancelled"


@requirement("tasks:over", "tasks:cancel")
async def test_cancelling_a_task_that_is_over_stops_its_execution_and_not_its_status(tmp_path: Path) -> None:
    async with take_tasks(tmp_path) as desk:
        task = await run(desk, SENT)
        await task.answer({"action": "cancel"})
        assert (await task.over())["status"] == "suspended"
        assert (await task.cancel())["resultType"] == "complete"
        assert (await task.over())["status"] == "cancelled"
        assert (await desk.warden.list_suspensions()).total == 0 and desk.ledger.lines == []


@requirement("tasks:over")
async def test_a_task_was_never_updated_before_it_was_created(tmp_path: Path) -> None:
    clock = ManualClock()
    async with take_tasks(tmp_path, store=MemoryStore(clock)) as desk:
        task = await run(desk, plan(confirm("a")))
        clock.advance(-400 * 86_400)
        await task.answer(APPROVED)
        over = await task.until(*TERMINAL)
        assert over["createdAt"] <= over["lastUpdatedAt"] and over["ttlMs"] >= 0


@requirement("tasks:notified", "tasks:over", "tasks:durable", "tasks:waiting")
async def test_every_process_and_its_listeners_know_the_answers_that_one_process_took(tmp_path: Path) -> None:
    extension = TakesTasks()
    async with (
        take_tasks(tmp_path, on_disk=True) as first,
        take_tasks(tmp_path, on_disk=True, extension=extension) as second,
        anyio.create_task_group() as tasks,
    ):
        task = await run(first, SENT)
        other = task.seen_by(second.client)
        key = await other.key()
        tasks.start_soon(other.listen)
        await extension.wait_for_update(lambda told: told["status"] == "input_required")
        await task.update(**{key: {"action": "cancel"}})
        over = await extension.wait_for_update(lambda told: told["status"] == "completed")
        assert over["result"]["structuredContent"]["awaiting"] == "human"
        assert (await other.over())["awaiting"] == "human"
        await other.update(**{key: APPROVED})
        assert first.ledger.lines + second.ledger.lines == []
        await decide_on_page(first)
        assert [(await each.over())["status"] for each in (task, other)] == ["completed"] * 2
        tasks.cancel_scope.cancel()


@requirement("tasks:over", "tasks:owner")
async def test_the_task_of_a_pruned_execution_is_not_found_and_nothing_comes_back(tmp_path: Path) -> None:
    async with take_tasks(tmp_path, on_disk=True) as desk:
        task = await exhaust_budget(desk, tool_step("b", "note", {"text": "y"}))
        store = desk.warden.service.engine.store
        assert await store.prune(store.clock.now() + 1) == 1
        for call in (task.get(), task.update(a={"action": "accept"}), task.cancel()):
            assert await code_of(call) == INVALID_PARAMS
        assert (await desk.warden.service.audit.verify()).problems == ()
