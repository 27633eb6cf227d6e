"""Tasks that wait or are over: nobody polls without end, reading decides nothing, and what is over stays over."""

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from mcp.types import INVALID_PARAMS
from pydantic import JsonValue

from planwarden.server.api.audit import read_audit_page, verify_audit
from planwarden.server.mcp import task_state
from planwarden.server.mcp.task_state import PAGE_S
from tests.kit import ManualClock, MemoryStore, PausingTool, confirm, model_step, plan, requirement, tool_step
from tests.server.mcp.http_support import FORMS, LINKS, TAKES, wired
from tests.server.mcp.support import INBOX, Desk, Document, decide_on_page, ids_of, question_of
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, Task, code_of, execution_of, run, take_tasks

APPROVED: JsonValue = {"action": "accept", "content": {"decision": "approve"}}
ERASED = plan(tool_step("a", "erase", {"ids": [1]}))
MORE: JsonValue = {"budgets": {"toolCalls": 9}, "waitSeconds": 0}
SENT = plan(tool_step("a", "send", {"to": "ann"}))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    """A client that takes tasks, shows forms and opens addresses; there is an inbox."""
    async with take_tasks(tmp_path, inbox_url=INBOX) as opened:
        yield opened


async def kinds(desk: Desk, task: Task) -> list[str]:
    rows = (await read_audit_page(desk.warden.service.store, limit=500)).rows
    return [row.kind for row in rows if row.execution_id == task.task_id]


@requirement("tasks:waiting")
async def test_a_call_that_waits_for_a_person_who_cannot_be_asked_is_an_ordinary_result(tmp_path: Path) -> None:
    async with take_tasks(tmp_path, asks=None) as mute:
        for steps in (ERASED, SENT, plan(confirm("a"))):
            asked = await mute.ok("execute_plan", plan=steps)
            assert (asked["status"], asked["awaiting"]) == ("suspended", "human")
            assert f"planwarden approve {question_of(asked)['suspensionId']}" in asked["nextAction"]
            again = await mute.ok("resume_execution", **ids_of(asked), decision={"approved": True})
            assert (again["status"], again["awaiting"], mute.ledger.lines) == ("suspended", "human", [])


@requirement("tasks:waiting", "tasks:durable")
async def test_a_task_that_comes_to_wait_for_a_person_who_cannot_be_asked_ends_and_stays_ended(tmp_path: Path) -> None:
    gate = PausingTool()
    steps = plan(
        confirm("ask", dependencies=[]),
        tool_step("a", "gate", dependencies=[]),
        tool_step("b", "erase", {"ids": [1]}, dependencies=["ask", "a"]),
        tool_step("c", "note", {"text": "x"}),
    )
    async with take_tasks(tmp_path, gate.tool(), asks=None, on_disk=True) as desk:
        task = await run(desk, steps)
        with anyio.fail_after(60):
            await gate.started.wait()
        # Other branches go on before the task ends over a question.
        assert (await task.get())["status"] == "working"
        gate.opened.set()
        over = await task.until(*TERMINAL)
        shown = execution_of(over)
        assert (shown["status"], shown["awaiting"], shown["executionId"]) == ("suspended", "human", task.task_id)
        question = question_of(shown)
        assert question["howToAnswer"]["command"] == f"planwarden --home {tmp_path} approve {question['suspensionId']}"
        assert over["ttlMs"] is None and await task.get() == over
    async with take_tasks(tmp_path, gate.tool(), asks=None, on_disk=True) as desk:
        task = task.seen_by(desk.client)
        assert await task.over() == shown
        await decide_on_page(desk)
        await decide_on_page(desk)
        assert (await task.over())["status"] == "completed"
        assert desk.ledger.lines == ["erase [1]", "note x"]
        assert (await desk.ok("get_execution", threadId=shown["threadId"]))["status"] == "completed"
        assert (await kinds(desk, task)).count("task_ended") == 1
        assert (await verify_audit(desk.warden.service.store)).problems == ()


@requirement("tasks:waiting")
async def test_a_client_without_forms_that_reads_a_task_does_not_end_it_for_clients_with_forms(desk: Desk) -> None:
    async with wired(desk.server) as wire:
        other = wire.declaring(TAKES)
        task = await run(desk, SENT)
        key = await task.key()
        for _ in range(2):
            read = (await other.task("tasks/get", task.task_id))["result"]
            assert execution_of(read)["awaiting"] == "human"
            await other.task("tasks/update", task.task_id, inputResponses={key: APPROVED})
            assert desk.ledger.lines == [] and await task.key() == key
        await task.update(**{key: APPROVED})
        await task.over()
        assert execution_of((await other.task("tasks/get", task.task_id))["result"])["status"] == "completed"
        assert desk.ledger.lines == ["send ann 1 False"]


@requirement("tasks:caller", "tasks:waiting")
async def test_a_question_to_the_calling_model_ends_the_task_once_its_person_has_answered(desk: Desk) -> None:
    steps = plan(confirm("a", dependencies=[]), model_step("b", "note", dependencies=[]))
    shown = await desk.ok("execute_plan", plan=steps)
    assert [question["addressee"] for question in shown["suspensions"]] == ["human", "caller"]
    task = Task(desk.client, shown["executionId"])
    await task.answer(APPROVED)
    over = await task.over()
    question = question_of(over)
    assert (question["addressee"], question["kind"]) == ("caller", "step") and "submit_answer" in over["nextAction"]
    content = {"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}
    done = await desk.ok("submit_answer", **ids_of(over), content=content)
    assert (done["status"], desk.ledger.lines) == ("completed", ["note x"])
    assert (await task.over())["status"] == done["status"]


@requirement("tasks:link")
@pytest.mark.parametrize("content", [None, {"decision": "approve"}], ids=str)
async def test_a_dangerous_call_is_asked_as_an_address_and_opening_it_decides_nothing(
    desk: Desk, content: Document | None
) -> None:
    task = await run(desk, ERASED)
    [(key, request)] = (await task.until("input_required"))["inputRequests"].items()
    assert (request["method"], request["params"]["mode"]) == ("elicitation/create", "url")
    suspension = key.partition(".")[0]
    assert request["params"]["url"] == f"{INBOX}/suspensions/{suspension}"
    assert request["params"]["message"].endswith("accepting here only opens it.")
    opened: JsonValue = {"action": "accept", **({} if content is None else {"content": content})}
    for _ in range(3):
        await task.update(**{key: opened})
    for name in (f"{suspension}.1", key):
        await task.update(**{name: APPROVED})
    still = await task.get()
    assert (still["status"], desk.ledger.lines) == ("working", []) and "inputRequests" not in still
    assert still["statusMessage"].endswith("and has not decided there yet")
    found_kinds = await kinds(desk, task)
    assert (found_kinds.count("link_answered"), found_kinds.count("form_closed")) == (1, 0)
    assert (await desk.ok("list_suspensions"))["total"] == 1
    await decide_on_page(desk)
    assert ((await task.over())["status"], desk.ledger.lines) == ("completed", ["erase [1]"])
    assert (await verify_audit(desk.warden.service.store)).problems == ()


@requirement("tasks:link")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_an_address_that_was_not_opened_is_not_a_rejection(desk: Desk, action: str) -> None:
    task = await run(desk, ERASED)
    key = await task.key()
    await task.update(**{key: {"action": action}})
    await task.update(**{key: {"action": "accept"}})
    shown = await task.over()
    assert (shown["status"], shown["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
    assert question_of(shown)["howToAnswer"]["inboxUrl"].startswith(INBOX)
    await decide_on_page(desk)
    assert ((await task.over())["status"], desk.ledger.lines) == ("completed", ["erase [1]"])


@requirement("tasks:link")
async def test_a_client_that_opens_addresses_only_is_sent_to_the_page_for_every_question(desk: Desk) -> None:
    async with wired(desk.server) as wire:
        opens, shows = wire.declaring(TAKES, LINKS), wire.declaring(TAKES, FORMS)
        created = await opens.call("execute_plan", arguments={"plan": SENT})
        requests: list[Document] = []
        for client in (opens, shows):
            task = (await client.task("tasks/get", created["taskId"]))["result"]
            assert task["status"] == "input_required"
            requests.append(task["inputRequests"])
        [[link_key], [form_key]] = requests
        assert link_key != form_key
        modes = [request["params"]["mode"] for asked in requests for request in asked.values()]
        assert modes == ["url", "form"]
        # Each key is the key of its own request only.
        await opens.task("tasks/update", created["taskId"], inputResponses={form_key: APPROVED})
        assert desk.ledger.lines == []
        await opens.task("tasks/update", created["taskId"], inputResponses={link_key: {"action": "accept"}})
        await decide_on_page(desk)
        assert desk.ledger.lines == ["send ann 1 False"]


@requirement("tasks:link", "tasks:waiting", "tasks:over")
@pytest.mark.parametrize("back_s", [0.0, 60.0, 400 * 86_400.0])
async def test_a_task_waits_for_a_person_who_opened_the_page_for_a_limited_time_whatever_the_clock_does(
    tmp_path: Path, back_s: float
) -> None:
    clock = ManualClock()
    async with take_tasks(tmp_path, inbox_url=INBOX, store=MemoryStore(clock)) as desk:
        task = await run(desk, ERASED)
        await task.answer({"action": "accept"})
        clock.advance(-back_s)
        assert (await task.get())["status"] == ("working" if back_s < PAGE_S else "completed")
        clock.advance(PAGE_S - 1)
        assert back_s or (await task.get())["status"] == "working"
        clock.advance(back_s + 2)
        over = await task.until("completed")
        assert execution_of(over)["awaiting"] == "human"
        assert over["createdAt"] <= over["lastUpdatedAt"]


@requirement("tasks:notified", "tasks:waiting")
async def test_a_listener_learns_of_an_end_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_state, "PAGE_S", 0.05)
    extension = TakesTasks()
    async with take_tasks(tmp_path, extension=extension, inbox_url=INBOX) as desk, anyio.create_task_group() as tasks:
        task = await run(desk, ERASED)
        tasks.start_soon(task.listen)
        asked = await extension.wait_for_update(lambda told: told["status"] == "input_required")
        await task.update(**{key: {"action": "accept"} for key in asked["inputRequests"]})
        over = await extension.wait_for_update(lambda told: told["status"] == "completed")
        assert execution_of(over)["awaiting"] == "human"
        tasks.cancel_scope.cancel()


async def exhaust_budget(desk: Desk, *later: dict[str, JsonValue]) -> Task:
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
        service = desk.warden.service
        assert (await service.wait(await service.find(task.task_id), 60)).status == "suspended"
        assert (await task.over())["awaiting"] == "human" and "inputRequests" not in await task.get()
    async with take_tasks(tmp_path, gate.tool(), on_disk=True) as desk:
        task = task.seen_by(desk.client)
        assert (await task.over())["status"] == "suspended"
        await desk.ok("cancel_execution", threadId=thread_id)
        assert (await task.over())["status"] == "cancelled"


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
        store = desk.warden.service.store
        assert await store.prune(store.clock.now() + 1) == 1
        for call in (task.get(), task.update(a={"action": "accept"}), task.cancel()):
            assert await code_of(call) == INVALID_PARAMS
        assert (await verify_audit(desk.warden.service.store)).problems == ()
