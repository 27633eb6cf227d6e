"""Tasks that are over stay over: executions that continue, clock changes, other processes and pruning."""

from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp.types import INVALID_PARAMS
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.mcp.tasks.state import PAGE_S
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.server.mcp.support import Document, Served, nobody, ok, sender, served
from tests.server.mcp.tasks_support import (
    TERMINAL,
    TakesTasks,
    cancel,
    code_of,
    get,
    key_of,
    listen,
    start,
    until,
    update,
)
from tests.support.wardens import Ledger, PausingTool, confirm, plan, tool_step

pytestmark = pytest.mark.anyio

INBOX = "http://127.0.0.1:4711/inbox"
ERASED = plan(tool_step("a", "erase", {"ids": [1]}))
SENT = plan(tool_step("a", "send", {"to": "ann"}))
MORE: JsonValue = {"budgets": {"toolCalls": 9}, "waitSeconds": 0}
APPROVED: JsonValue = {"action": "accept", "content": {"decision": "approve"}}


def connect_with_forms(found: Served, extension: TakesTasks | None = None) -> Client:
    """A client that takes tasks, shows forms and opens addresses."""
    return Client(found.server, mode="auto", extensions=[extension or TakesTasks()], elicitation_callback=nobody)


def execution_of(task: Document) -> Document:
    assert task["status"] == "completed", task
    shown: Document = task["result"]["structuredContent"]
    return shown


async def exhaust_budget(client: Client, steps: JsonValue) -> Document:
    """The task of a plan whose budget was used up, as its client is told."""
    created = await start(client, "execute_plan", plan=steps, options={"budgets": {"toolCalls": 1}})
    ended = await until(client, created["taskId"], *TERMINAL)
    assert execution_of(ended)["status"] == "incomplete"
    return ended


@requirement("tasks:over")
async def test_a_task_that_ended_with_its_budget_stays_over_while_its_execution_goes_on(tmp_path: Path) -> None:
    gate = PausingTool()
    steps = plan(tool_step("a", "note", {"text": "x"}), tool_step("b", "gate"), confirm("c"))
    tools = [*Ledger().tools(), gate.tool()]
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_with_forms(found) as client:
        ended = await exhaust_budget(client, steps)
        task_id, thread_id = ended["taskId"], execution_of(ended)["threadId"]
        more = await ok(client, "execute_plan", threadId=thread_id, options=MORE)
        assert (more["executionId"], more["status"]) == (task_id, "running")
        with anyio.fail_after(60):
            await gate.started.wait()
        assert execution_of(await get(client, task_id))["status"] == "running"
        gate.opened.set()
        engine = found.warden.service.engine
        assert (await engine.wait(await engine.find(task_id), 60)).status == "suspended"
        over = await get(client, task_id)
        assert execution_of(over)["awaiting"] == "human" and "inputRequests" not in over
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_with_forms(found) as client:
        assert execution_of(await get(client, task_id))["status"] == "suspended"
        await ok(client, "cancel_execution", threadId=thread_id)
        assert execution_of(await get(client, task_id))["status"] == "cancelled"


@requirement("tasks:over", "tasks:cancel")
async def test_cancelling_a_task_that_is_over_stops_its_execution_and_not_its_status(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_forms(found) as client:
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        await update(client, task_id, **{await key_of(client, task_id): {"action": "cancel"}})
        assert execution_of(await get(client, task_id))["status"] == "suspended"
        assert (await cancel(client, task_id))["resultType"] == "complete"
        assert execution_of(await until(client, task_id, *TERMINAL))["status"] == "cancelled"
        assert (await found.warden.list_suspensions()).total == 0 and ledger.lines == []


@requirement("tasks:over", "tasks:link")
@pytest.mark.parametrize("back_s", [60.0, 400 * 86_400.0])
async def test_a_clock_that_moves_back_keeps_no_task_open(tmp_path: Path, back_s: float) -> None:
    clock = ManualClock()
    async with (
        served(tmp_path, tools=Ledger().tools(), store=MemoryStore(clock)) as found,
        connect_with_forms(found) as client,
    ):
        found.warden.service.inbox_url = INBOX
        task_id = (await start(client, "execute_plan", plan=ERASED))["taskId"]
        await update(client, task_id, **{await key_of(client, task_id): {"action": "accept"}})
        clock.advance(-back_s)
        assert (await get(client, task_id))["status"] == ("working" if back_s < PAGE_S else "completed")
        clock.advance(PAGE_S + 1)
        assert (await get(client, task_id))["status"] in ("working", "completed")
        clock.advance(back_s)
        assert execution_of(await get(client, task_id))["awaiting"] == "human"


@requirement("tasks:over")
async def test_a_task_was_never_updated_before_it_was_created(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        served(tmp_path, tools=Ledger().tools(), store=MemoryStore(clock)) as found,
        connect_with_forms(found) as client,
    ):
        asked = await start(client, "execute_plan", plan=plan(confirm("a")))
        clock.advance(-400 * 86_400)
        key = await key_of(client, asked["taskId"])
        await update(client, asked["taskId"], **{key: APPROVED})
        over = await until(client, asked["taskId"], *TERMINAL)
        assert over["createdAt"] <= over["lastUpdatedAt"] and over["ttlMs"] >= 0


@requirement("tasks:notified", "tasks:over")
async def test_a_listener_learns_of_an_end_in_another_process(tmp_path: Path) -> None:
    tools, extension = [sender(Ledger())], TakesTasks()
    async with (
        served(tmp_path, tools=tools, on_disk=True) as one,
        served(tmp_path, tools=tools, on_disk=True) as other,
        connect_with_forms(one) as first,
        connect_with_forms(other, extension) as second,
        anyio.create_task_group() as tasks,
    ):
        task_id = (await start(first, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(first, task_id)
        tasks.start_soon(listen, second, task_id)
        await extension.wait_for_update(lambda task: task["status"] == "input_required")
        await update(first, task_id, **{key: {"action": "cancel"}})
        over = await extension.wait_for_update(lambda task: task["status"] == "completed")
        assert execution_of(over)["awaiting"] == "human"
        tasks.cancel_scope.cancel()


@requirement("tasks:over", "tasks:owner")
async def test_the_task_of_a_pruned_execution_is_not_found_and_nothing_comes_back(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools(), on_disk=True) as found, connect_with_forms(found) as client:
        ended = await exhaust_budget(
            client, plan(tool_step("a", "note", {"text": "x"}), tool_step("b", "note", {"text": "y"}))
        )
        task_id = ended["taskId"]
        store = found.warden.service.engine.store
        assert await store.prune(store.clock.now() + 1) == 1
        answer: JsonValue = {"action": "accept"}
        for call in (get(client, task_id), update(client, task_id, a=answer), cancel(client, task_id)):
            assert await code_of(call) == INVALID_PARAMS
        assert (await found.warden.service.audit.verify()).problems == ()


@requirement("tasks:over")
async def test_every_step_may_be_another_process(tmp_path: Path) -> None:
    ledger = Ledger()
    task_id = key = ""
    for turn in range(6):
        async with served(tmp_path, tools=[sender(ledger)], on_disk=True) as found, connect_with_forms(found) as client:
            match turn:
                case 0:
                    task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
                case 1:
                    key = await key_of(client, task_id)
                case 2:
                    assert await key_of(client, task_id) == key
                    await update(client, task_id, **{key: {"action": "decline"}})
                case 3:
                    assert execution_of(await get(client, task_id))["status"] == "suspended"
                    await update(client, task_id, **{key: APPROVED})
                case 4:
                    [question] = (await found.warden.list_suspensions()).suspensions
                    person = Authority(assurance="human", channel="cli", principal="ann", digest=question.digest)
                    await found.warden.service.answer(
                        question.thread_id, question.suspension_id, Decision(approved=True), person, principal=None
                    )
                case _:
                    assert execution_of(await get(client, task_id))["status"] == "completed"
    assert ledger.lines == ["send ann 1 False"]
