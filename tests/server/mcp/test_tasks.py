"""The tasks extension through real clients: the execution is the task, and its questions pass the usual checks."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from mcp import types
from pydantic import JsonValue

from planwarden.server.auth.caller import Caller
from planwarden.server.mcp.task_state import TASKS
from tests.kit import Client, PausingTool, model_step, plan, requirement, tool_step, verify_audit
from tests.server.mcp.http_support import TAKES, wired
from tests.server.mcp.support import Desk, Document, decide_on_page, ok, open_desk, question_of
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, Task, code_of, listen, run, start, take_tasks

APPROVED: JsonValue = {"action": "accept", "content": {"decision": "approve"}}
REJECTED: JsonValue = {"action": "accept", "content": {"decision": "reject"}}
NOTED = plan(tool_step("a", "note", {"text": "x"}))
SENT = plan(tool_step("a", "send", {"to": "ann"}))
TWO = plan(
    tool_step("a", "send", {"to": "ann"}, dependencies=[]), tool_step("b", "send", {"to": "bob"}, dependencies=[])
)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    """A client that takes tasks and shows forms; a form that is pushed to it is a mistake."""
    async with take_tasks(tmp_path) as opened:
        yield opened


@requirement("tasks:lifecycle")
async def test_a_plan_becomes_a_task_whose_end_is_the_result_of_the_call(tmp_path: Path) -> None:
    gate = PausingTool()
    async with take_tasks(tmp_path, gate.tool()) as desk:
        task = await run(desk, plan(tool_step("a", "gate")), options={"waitSeconds": 300})
        created = task.created
        assert (created["resultType"], created["status"], created["ttlMs"]) == ("task", "working", None)
        assert not {"result", "error", "inputRequests", "requestState", "task"} & created.keys()
        with anyio.fail_after(60):
            await gate.started.wait()
        working = await task.get()
        assert (working["resultType"], working["status"]) == ("complete", "working")
        assert "0 of 1 step done; running a" in working["statusMessage"]
        gate.opened.set()
        done = await task.until(*TERMINAL)
        assert done["status"] == "completed" and done["createdAt"] == created["createdAt"]
        assert 90 * 86_400_000 <= done["ttlMs"] < 90 * 86_400_000 + 60_000
        result = await task.over()
        assert result["executionId"] == task.task_id
        shown = await desk.ok("get_execution", threadId=result["threadId"])
        assert shown["status"] == "completed" and shown.keys() > result.keys()


@requirement("tasks:lifecycle", "tasks:waiting")
async def test_a_goal_with_a_model_of_its_own_is_a_task_and_a_plan_is_one_from_when_it_is_run(tmp_path: Path) -> None:
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": NOTED}},
        {"when": {"purpose": "synthesize"}, "reply": {"content": "Written."}},
        {"when": {"purpose": "plan"}, "reply": {"plan": NOTED}},
    ]
    async with take_tasks(tmp_path, script=script) as desk:
        task = await start(desk.client, "run_goal", goal="write it down")
        assert (await task.over())["output"] == "Written."
        planned = await desk.ok("create_plan", goal="write it down")
        assert planned["status"] == "planned"
        assert await code_of(Task(desk.client, planned["executionId"]).get()) == types.INVALID_PARAMS
        task = await start(desk.client, "execute_plan", threadId=planned["threadId"])
        assert task.task_id == planned["executionId"] and (await task.over())["status"] == "completed"


@requirement("tasks:caller")
async def test_what_would_ask_the_calling_model_is_an_ordinary_result(desk: Desk) -> None:
    asked = await desk.ok("run_goal", goal="write it down")
    assert (question_of(asked)["addressee"], question_of(asked)["kind"]) == ("caller", "plan")
    step = await desk.ok("execute_plan", plan=plan(model_step("a", "note")))
    assert (question_of(step)["addressee"], question_of(step)["kind"]) == ("caller", "step")
    task = await Task(desk.client, step["executionId"]).get()
    assert (task["status"], {"steps": [], **task["result"]["structuredContent"]}) == ("completed", step)
    assert step["threadId"] in task["statusMessage"] and "submit_answer" in task["statusMessage"]


@requirement("tasks:input")
async def test_answers_can_come_one_by_one(desk: Desk) -> None:
    task = await run(desk, TWO)
    first, second = (await task.until("input_required"))["inputRequests"]
    await task.update(**{first: APPROVED})
    half = await task.get()
    assert (half["status"], list(half["inputRequests"])) == ("input_required", [second])
    await task.update(**{second: APPROVED, first: REJECTED})
    assert (await task.over())["status"] == "completed"
    assert sorted(desk.ledger.lines) == ["send ann 1 False", "send bob 1 False"]


@pytest.mark.parametrize(
    "response", [{"action": "decline"}, {"action": "accept"}, {"action": "accept", "content": {"decision": "yes"}}]
)
@requirement("tasks:replay")
async def test_a_form_that_came_back_undecided_is_not_asked_again_even_after_a_restart(
    tmp_path: Path, response: JsonValue
) -> None:
    async with take_tasks(tmp_path, on_disk=True) as desk:
        task = await run(desk, SENT)
        key = await task.key()
        await task.update(**{key: response})
        await task.update(**{key: APPROVED})
        assert (await task.over())["awaiting"] == "human" and desk.ledger.lines == []
    async with take_tasks(tmp_path, on_disk=True) as desk:
        task = task.seen_by(desk.client)
        assert (await task.over())["awaiting"] == "human" and desk.ledger.lines == []
        assert (await verify_audit(desk.warden.service.store)).problems == ()
        await decide_on_page(desk)
        assert (await task.over())["status"] == "completed" and desk.ledger.lines == ["send ann 1 False"]


@requirement("tasks:durable")
async def test_a_task_survives_a_restart_in_the_middle_and_a_client_that_drops(tmp_path: Path) -> None:
    steps = plan(tool_step("a", "note", {"text": "x"}), tool_step("b", "send", {"to": "ann"}))
    gate = PausingTool()
    async with take_tasks(tmp_path, on_disk=True) as first:
        task = await run(first, steps)
        key = await task.key()
    async with take_tasks(tmp_path, gate.tool(), on_disk=True) as desk:
        task = task.seen_by(desk.client)
        assert await task.key() == key
        await task.update(**{key: APPROVED})
        assert (await task.over())["status"] == "completed"
        assert (await task.get())["createdAt"] == task.created["createdAt"]
        assert first.ledger.lines + desk.ledger.lines == ["note x", "send ann 1 False"]
        async with Client(desk.server, mode="auto", extensions=[TakesTasks()]) as dropping:
            other = await start(dropping, "execute_plan", plan=plan(tool_step("a", "gate")))
            with anyio.fail_after(60):
                await gate.started.wait()
        gate.opened.set()
        assert (await other.seen_by(desk.client).over())["status"] == "completed"


@requirement("tasks:cancel")
async def test_a_cancelled_task_runs_nothing_more(desk: Desk) -> None:
    task = await run(desk, SENT)
    key = await task.key()
    assert set(await task.cancel()) == {"_meta", "resultType"}
    ended = await task.until(*TERMINAL)
    assert ended["status"] == "cancelled" and not {"result", "error", "inputRequests"} & ended.keys()
    await task.update(**{key: APPROVED})
    await task.cancel()
    assert await task.get() == ended and desk.ledger.lines == []
    done = await run(desk, NOTED)
    await done.until("completed")
    await done.cancel()
    assert (await done.get())["status"] == "completed"


@requirement("tasks:cancel")
async def test_cancelling_races_completion_to_one_end(tmp_path: Path) -> None:
    for number in range(12):
        gate = PausingTool()
        async with take_tasks(tmp_path, gate.tool()) as desk:
            task = await run(desk, plan(tool_step("a", "gate")))
            with anyio.fail_after(60):
                await gate.started.wait()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(task.cancel)
                    for _ in range(2 * number):
                        await anyio.lowlevel.checkpoint()
                    gate.opened.set()
            ended = await task.until(*TERMINAL)
            assert ended["status"] in ("cancelled", "completed")
            await task.cancel()
            assert await task.get() == ended


@requirement("tasks:owner")
async def test_unknown_and_foreign_tasks_are_the_same_error(desk: Desk) -> None:
    task = await run(desk, SENT)
    key = await task.key()
    desk.server.identify = lambda: Caller("somebody else")
    for name in (task.task_id, "0" * 32, "", "planwarden://x", "é" * 200):
        foreign = Task(desk.client, name)
        for call in (foreign.update(**{key: APPROVED}), foreign.cancel()):
            assert await code_of(call) == types.INVALID_PARAMS
        with pytest.raises(Exception, match=r"^Failed to retrieve task: Task not found$"):
            await foreign.get()
    desk.server.identify = lambda: Caller("local")
    assert await task.key() == key and desk.ledger.lines == []


@requirement("tasks:undeclared")
async def test_a_client_without_the_extension_gets_ordinary_results_and_no_tasks(tmp_path: Path) -> None:
    async with open_desk(tmp_path) as desk:
        done = await desk.ok("execute_plan", plan=NOTED)
        assert done["status"] == "completed"
        task = Task(desk.client, done["executionId"])
        for call in (task.get(), task.cancel(), task.update(), listen(desk.client, "x")):
            assert await code_of(call) == types.MISSING_REQUIRED_CLIENT_CAPABILITY
        async with Client(desk.server, mode="legacy", extensions=[TakesTasks()]) as old:
            assert TASKS not in old.server_capabilities.model_dump_json()
            assert (await ok(old, "execute_plan", plan=NOTED))["status"] == "completed"
            assert await code_of(task.seen_by(old).get()) == types.METHOD_NOT_FOUND


@requirement("tasks:undeclared")
async def test_over_http_the_routing_header_has_to_name_the_task(desk: Desk) -> None:
    async with wired(desk.server) as wire:
        client, asking = wire.declaring(TAKES), {"taskId": "x"}
        for name in ("another", "", None):
            assert (await client.send("tasks/get", asking, name))["error"]["code"] == types.HEADER_MISMATCH
        assert (await client.send("tasks/get", asking, "x"))["error"]["code"] == types.INVALID_PARAMS


@requirement("tasks:notified", "tasks:owner")
async def test_a_listener_receives_its_own_whole_tasks_at_every_change(tmp_path: Path) -> None:
    extension = TakesTasks()
    async with take_tasks(tmp_path, extension=extension) as desk, anyio.create_task_group() as tasks:
        desk.server.identify = lambda: Caller("somebody else")
        foreign = await run(desk, SENT)
        key = await foreign.key()
        desk.server.identify = lambda: Caller("local")
        ended = await run(desk, NOTED)
        await ended.over()
        task = await run(desk, SENT)
        tasks.start_soon(task.listen, ended.task_id, foreign.task_id, "0" * 32)
        told = await extension.wait_for_update(lambda told: told["taskId"] == ended.task_id)
        assert _bare(told) == _bare(await ended.get())
        asked = await extension.wait_for_update(lambda told: told["status"] == "input_required")
        assert _bare(asked) == _bare(await task.get())
        desk.server.identify = lambda: Caller("somebody else")
        await foreign.update(**{key: APPROVED})
        await foreign.over()
        desk.server.identify = lambda: Caller("local")
        await task.update(**dict.fromkeys(asked["inputRequests"], APPROVED))
        done = await extension.wait_for_update(
            lambda told: told["taskId"] == task.task_id and told["status"] == "completed"
        )
        assert _bare(done) == _bare(await task.get())
        assert {told["taskId"] for told in extension.updates} == {ended.task_id, task.task_id}
        tasks.cancel_scope.cancel()


def _bare(task: Document) -> Document:
    return {name: value for name, value in task.items() if name not in ("_meta", "resultType")}
