"""The tasks extension through real clients: the execution is the task, and its questions pass the usual checks."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp import Client
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PROTOCOL_VERSION_META_KEY,
    CallToolResult,
    InputRequiredResult,
)
from mcp.types.version import LATEST_MODERN_VERSION
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.auth.caller import Caller
from planwarden.server.auth.network import AllowedNames
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.tasks.state import TASKS
from planwarden.server.transports.http import build_http_app
from planwarden.storage.clock import SystemClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.server.mcp.support import Document, Served, ids_of, nobody, ok, question_of, sender, served
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
from tests.support.wardens import Ledger, PausingTool, confirm, model_step, plan, tool_step

pytestmark = pytest.mark.anyio

APPROVED: JsonValue = {"action": "accept", "content": {"decision": "approve"}}
REJECTED: JsonValue = {"action": "accept", "content": {"decision": "reject"}}
NOTED = plan(tool_step("a", "note", {"text": "x"}))
CONFIRMED = plan(confirm("a", "write it down?"), tool_step("b", "note", {"text": "x"}))
SENT = plan(tool_step("a", "send", {"to": "ann"}))
TWO = plan(
    tool_step("a", "send", {"to": "ann"}, dependencies=[]), tool_step("b", "send", {"to": "bob"}, dependencies=[])
)


def connect_with_tasks(server: PlanwardenServer, extension: TakesTasks | None = None) -> Client:
    """A client that takes tasks and shows forms; forms that are pushed to it are a mistake."""
    return Client(server, mode="auto", extensions=[extension or TakesTasks()], elicitation_callback=nobody)


@requirement("tasks:lifecycle")
async def test_a_plan_becomes_a_task_whose_end_is_the_result_of_the_call(tmp_path: Path) -> None:
    gate = PausingTool()
    async with served(tmp_path, tools=[gate.tool()]) as found, connect_with_tasks(found.server) as client:
        created = await start(client, "execute_plan", plan=plan(tool_step("a", "gate")), options={"waitSeconds": 300})
        assert (created["resultType"], created["status"], created["ttlMs"]) == ("task", "working", None)
        assert not {"result", "error", "inputRequests", "requestState", "task"} & created.keys()
        with anyio.fail_after(60):
            await gate.started.wait()
        working = await get(client, created["taskId"])
        assert (working["resultType"], working["status"]) == ("complete", "working")
        assert "0 of 1 steps done; running a" in working["statusMessage"]
        gate.opened.set()
        done = await until(client, created["taskId"], *TERMINAL)
        assert done["status"] == "completed" and done["createdAt"] == created["createdAt"]
        assert 90 * 86_400_000 <= done["ttlMs"] < 90 * 86_400_000 + 60_000
        result = CallToolResult.model_validate(done["result"])
        assert result.structured_content["executionId"] == created["taskId"]
        shown = await ok(client, "get_execution", threadId=result.structured_content["threadId"])
        assert shown["status"] == "completed" and shown.keys() > result.structured_content.keys()


@requirement("tasks:lifecycle")
async def test_what_failed_or_was_rejected_completes_as_a_task(tmp_path: Path) -> None:
    async with (
        served(tmp_path, tools=[*Ledger().tools(), sender(Ledger())]) as found,
        connect_with_tasks(found.server) as client,
    ):
        failed = await start(client, "execute_plan", plan=plan(tool_step("a", "broken")))
        done = await until(client, failed["taskId"], *TERMINAL)
        assert (done["status"], done["result"]["structuredContent"]["status"]) == ("completed", "failed")
        asked = await start(client, "execute_plan", plan=SENT)
        await update(client, asked["taskId"], **{await key_of(client, asked["taskId"]): REJECTED})
        done = await until(client, asked["taskId"], *TERMINAL)
        assert (done["status"], done["result"]["structuredContent"]["status"]) == ("completed", "rejected")


@requirement("tasks:lifecycle")
async def test_a_goal_with_a_model_of_its_own_is_a_task(tmp_path: Path) -> None:
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": NOTED}},
        {"when": {"purpose": "synthesize"}, "reply": {"content": "Written."}},
    ]
    async with (
        served(tmp_path, tools=Ledger().tools(), script=script) as found,
        connect_with_tasks(found.server) as client,
    ):
        created = await start(client, "run_goal", goal="write it down")
        done = await until(client, created["taskId"], *TERMINAL)
        assert done["result"]["structuredContent"]["output"] == "Written."


@requirement("tasks:caller")
async def test_what_would_ask_the_calling_model_is_an_ordinary_result(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, connect_with_tasks(found.server) as client:
        asked = await ok(client, "run_goal", goal="write it down")
        assert (question_of(asked)["addressee"], question_of(asked)["kind"]) == ("caller", "plan")
        step = await ok(client, "execute_plan", plan=plan(model_step("a", "note")))
        assert (question_of(step)["addressee"], question_of(step)["kind"]) == ("caller", "step")
        task = await get(client, step["executionId"])
        assert (task["status"], {"steps": [], **task["result"]["structuredContent"]}) == ("completed", step)
        assert step["threadId"] in task["statusMessage"] and "submit_answer" in task["statusMessage"]


@requirement("tasks:input")
async def test_a_question_is_asked_as_a_form_and_its_answer_is_worth_client(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_tasks(found.server) as client:
        created = await start(client, "execute_plan", plan=SENT)
        asked = await until(client, created["taskId"], "input_required")
        [(key, request)] = asked["inputRequests"].items()
        assert request["method"] == "elicitation/create" and request["params"]["mode"] == "form"
        assert "send" in request["params"]["message"]
        assert request["params"]["requestedSchema"]["required"] == ["decision"]
        edited: JsonValue = {"action": "accept", "content": {"decision": "approve", "arg_to": "bob"}}
        assert (await update(client, created["taskId"], **{key: edited}))["resultType"] == "complete"
        await until(client, created["taskId"], "completed")
        assert ledger.lines == ["send bob 1 False"]
        page = await found.warden.service.audit.read_page(execution_id=created["taskId"])
        [decided] = [row for row in page.rows if row.kind == "decided"]
        assert (decided.facts["assurance"], decided.facts["channel"]) == ("client", "tasks")
        assert decided.facts["rendered"]


@requirement("tasks:input")
async def test_answers_can_come_one_by_one(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_tasks(found.server) as client:
        task_id = (await start(client, "execute_plan", plan=TWO))["taskId"]
        first, second = (await until(client, task_id, "input_required"))["inputRequests"]
        await update(client, task_id, **{first: APPROVED})
        half = await get(client, task_id)
        assert (half["status"], list(half["inputRequests"])) == ("input_required", [second])
        await update(client, task_id, **{second: APPROVED, first: REJECTED})
        done = await until(client, task_id, *TERMINAL)
        assert done["result"]["structuredContent"]["status"] == "completed"
        assert sorted(ledger.lines) == ["send ann 1 False", "send bob 1 False"]


@requirement("tasks:replay")
async def test_an_answer_sent_a_hundred_times_has_one_effect(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_tasks(found.server) as client:
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(lambda n=number: update(client, task_id, **{key: APPROVED if n else REJECTED}))
        done = await until(client, task_id, *TERMINAL)
        await update(client, task_id, **{key: APPROVED})
        assert len(ledger.lines) == (1 if done["result"]["structuredContent"]["status"] == "completed" else 0)
        assert await get(client, task_id) == done


@requirement("tasks:replay")
async def test_a_revised_question_has_a_new_key_and_the_old_one_decides_nothing(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_tasks(found.server) as client:
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        old = await key_of(client, task_id)
        [question] = (await found.warden.service.list_suspensions(principal="local")).suspensions
        await found.warden.service.answer(
            question.thread_id,
            question.suspension_id,
            Decision(approved=True, modified_args={"to": "everybody"}),
            Authority(assurance="claimed", channel="mcp", principal="local"),
            wait_seconds=0,
            principal="local",
        )
        new = await key_of(client, task_id)
        assert new != old
        await update(client, task_id, **{old: APPROVED})
        assert (await get(client, task_id))["status"] == "input_required" and ledger.lines == []
        await update(client, task_id, **{new: APPROVED})
        await until(client, task_id, "completed")
        assert ledger.lines == ["send everybody 1 False"]


@pytest.mark.parametrize(
    "response",
    [
        {"action": "decline"},
        {"action": "cancel"},
        {"action": "accept"},
        {"action": "accept", "content": {}},
        {"action": "accept", "content": {"decision": "yes"}},
        {"action": "accept", "content": {"confirm": True}},
    ],
)
@requirement("tasks:replay")
async def test_a_form_that_came_back_undecided_is_not_asked_again_even_after_a_restart(
    tmp_path: Path, response: JsonValue
) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as found,
        connect_with_tasks(found.server) as client,
    ):
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        await update(client, task_id, **{key: response})
        await update(client, task_id, **{key: APPROVED})
        over = await get(client, task_id)
        assert (over["status"], over["result"]["structuredContent"]["awaiting"]) == ("completed", "human")
    async with (
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as found,
        connect_with_tasks(found.server) as client,
    ):
        over = await get(client, task_id)
        assert (over["status"], over["result"]["structuredContent"]["awaiting"]) == ("completed", "human")
        assert ledger.lines == []
        service = found.warden.service
        assert (await service.audit.verify()).problems == ()
        [question] = (await service.list_suspensions(principal="local")).suspensions
        by_person = Authority(assurance="human", channel="cli", principal="local")
        await service.answer(
            question.thread_id, question.suspension_id, Decision(approved=True), by_person, principal=None
        )
        over = await get(client, task_id)
        assert (over["status"], over["result"]["structuredContent"]["status"]) == ("completed", "completed")
    assert ledger.lines == ["send ann 1 False"]


@pytest.mark.parametrize(
    "response",
    ["yes", 7, None, [], {}, {"action": "approve"}, {"action": "accept", "content": "approve"}],
)
@requirement("tasks:replay")
async def test_an_answer_that_is_none_is_an_error_and_the_question_stays(tmp_path: Path, response: JsonValue) -> None:
    async with served(tmp_path, tools=[sender(Ledger())]) as found, connect_with_tasks(found.server) as client:
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        assert await code_of(update(client, task_id, **{key: response})) == INVALID_PARAMS
        wrong: JsonValue = {"action": "accept", "content": {"decision": "approve", "arg_copies": "many"}}
        assert await code_of(update(client, task_id, **{key: wrong})) == INVALID_PARAMS
        assert await key_of(client, task_id) == key


@requirement("tasks:durable")
async def test_a_task_survives_a_restart_in_the_middle(tmp_path: Path) -> None:
    ledger = Ledger()
    tools = [*ledger.tools(), sender(ledger)]
    steps = plan(tool_step("a", "note", {"text": "x"}), tool_step("b", "send", {"to": "ann"}))
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_with_tasks(found.server) as client:
        created = await start(client, "execute_plan", plan=steps)
        key = await key_of(client, created["taskId"])
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_with_tasks(found.server) as client:
        assert await key_of(client, created["taskId"]) == key
        await update(client, created["taskId"], **{key: APPROVED})
        await until(client, created["taskId"], "completed")
    async with served(tmp_path, tools=tools, on_disk=True) as found, connect_with_tasks(found.server) as client:
        done = await get(client, created["taskId"])
        assert (done["status"], done["createdAt"]) == ("completed", created["createdAt"])
    assert ledger.lines == ["note x", "send ann 1 False"]


@requirement("tasks:durable")
async def test_a_client_that_drops_before_the_answer_loses_nothing(tmp_path: Path) -> None:
    gate = PausingTool()
    async with served(tmp_path, tools=[gate.tool()]) as found:
        async with connect_with_tasks(found.server) as client:
            task_id = (await start(client, "execute_plan", plan=plan(tool_step("a", "gate"))))["taskId"]
            with anyio.fail_after(60):
                await gate.started.wait()
        gate.opened.set()
        async with connect_with_tasks(found.server) as again:
            assert (await until(again, task_id, *TERMINAL))["status"] == "completed"


@requirement("tasks:durable", "tasks:notified")
async def test_two_clients_of_two_servers_share_a_task(tmp_path: Path) -> None:
    ledger, extension = Ledger(), TakesTasks()
    async with (
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as one,
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as other,
        connect_with_tasks(one.server, extension) as first,
        connect_with_tasks(other.server) as second,
        anyio.create_task_group() as tasks,
    ):
        task_id = (await start(first, "execute_plan", plan=SENT))["taskId"]
        tasks.start_soon(listen, first, task_id)
        await extension.wait_for_update(lambda task: task["status"] == "input_required")
        await update(second, task_id, **{await key_of(second, task_id): APPROVED})
        ended = await extension.wait_for_update(lambda task: task["status"] == "completed")
        assert ended["result"]["structuredContent"]["status"] == "completed"
        tasks.cancel_scope.cancel()
    assert ledger.lines == ["send ann 1 False"]


@requirement("tasks:cancel")
async def test_a_cancelled_task_runs_nothing_more(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[*ledger.tools(), sender(ledger)]) as found,
        connect_with_tasks(found.server) as client,
    ):
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        assert set(await cancel(client, task_id)) == {"_meta", "resultType"}
        ended = await until(client, task_id, *TERMINAL)
        assert ended["status"] == "cancelled" and not {"result", "error", "inputRequests"} & ended.keys()
        await update(client, task_id, **{key: APPROVED})
        await cancel(client, task_id)
        assert await get(client, task_id) == ended and ledger.lines == []
        done = await start(client, "execute_plan", plan=NOTED)
        await until(client, done["taskId"], "completed")
        await cancel(client, done["taskId"])
        assert (await get(client, done["taskId"]))["status"] == "completed"


@requirement("tasks:cancel")
async def test_cancelling_races_completion_to_one_end(tmp_path: Path) -> None:
    ends = set[str]()
    for number in range(30):
        gate = PausingTool()
        async with served(tmp_path, tools=[gate.tool()]) as found, connect_with_tasks(found.server) as client:
            task_id = (await start(client, "execute_plan", plan=plan(tool_step("a", "gate"))))["taskId"]
            with anyio.fail_after(60):
                await gate.started.wait()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cancel, client, task_id)
                    for _ in range(number):
                        await anyio.lowlevel.checkpoint()
                    gate.opened.set()
            ended = await until(client, task_id, *TERMINAL)
            ends.add(ended["status"])
            await cancel(client, task_id)
            assert await get(client, task_id) == ended
    assert ends <= {"cancelled", "completed"}


@requirement("tasks:owner")
async def test_unknown_and_foreign_tasks_are_the_same_error(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, connect_with_tasks(found.server) as client:
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, task_id)
        found.server.identify = lambda: Caller("somebody else")
        for name in (task_id, "0" * 32, "", "planwarden://x", "é" * 200):
            assert await code_of(get(client, name)) == INVALID_PARAMS
            assert await code_of(update(client, name, **{key: APPROVED})) == INVALID_PARAMS
            assert await code_of(cancel(client, name)) == INVALID_PARAMS
        messages = {await _message(get(client, name)) for name in (task_id, "0" * 32)}
        assert messages == {"Failed to retrieve task: Task not found"}
        found.server.identify = lambda: Caller("local")
        assert await key_of(client, task_id) == key and ledger.lines == []


@requirement("tasks:undeclared")
async def test_a_client_without_the_extension_gets_ordinary_results_and_no_tasks(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode="auto") as client:
        done = await ok(client, "execute_plan", plan=NOTED)
        assert done["status"] == "completed"
        for call in (get(client, done["executionId"]), cancel(client, done["executionId"]), listen(client, "x")):
            assert await code_of(call) == MISSING_REQUIRED_CLIENT_CAPABILITY
        assert await code_of(update(client, done["executionId"])) == MISSING_REQUIRED_CLIENT_CAPABILITY


@requirement("tasks:undeclared")
async def test_older_revisions_see_nothing_of_tasks(tmp_path: Path) -> None:
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        Client(found.server, mode="legacy", extensions=[TakesTasks()]) as client,
    ):
        assert TASKS not in client.server_capabilities.model_dump_json()
        done = await ok(client, "execute_plan", plan=NOTED)
        assert done["status"] == "completed"
        assert await code_of(get(client, done["executionId"])) == METHOD_NOT_FOUND


@requirement("tasks:undeclared")
async def test_over_http_the_routing_header_has_to_name_the_task(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found:
        app = build_http_app(
            found.server, AllowedNames.from_settings(HttpSettings(), "127.0.0.1", 80), clock=SystemClock()
        )
        transport = httpx2.ASGITransport(app=app)
        async with (
            found.server.session_manager.run(),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:80") as http,
        ):
            for name in ("another", "", None):
                answer = await http.post("/mcp", json=_raw_get("x"), headers=_headers(name))
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, HEADER_MISMATCH)
            answer = await http.post("/mcp", json=_raw_get("x"), headers=_headers("x"))
            assert answer.json()["error"]["code"] == INVALID_PARAMS


@requirement("tasks:lifecycle")
async def test_a_decision_is_asked_for_before_the_call_becomes_a_task(tmp_path: Path) -> None:
    ledger, gate = Ledger(), PausingTool()
    steps = plan(confirm("a"), tool_step("b", "gate"))
    async with (
        served(tmp_path, tools=[*ledger.tools(), gate.tool()]) as found,
        connect_with_tasks(found.server) as client,
    ):
        task_id = (await start(client, "execute_plan", plan=steps))["taskId"]
        await key_of(client, task_id)
        asked = await _newest(found)
        arguments: Document = {**ids_of(asked), "decision": {"approved": True}, "waitSeconds": 300}
        returned = await _call(client, arguments)
        assert isinstance(returned, InputRequiredResult)
        declined = await _call(client, arguments, returned, {"action": "decline"})
        assert isinstance(declined, CallToolResult)
        assert declined.structured_content["awaiting"] == "human"
        created = (await _call(client, arguments, returned, APPROVED)).model_dump(by_alias=True)
        assert (created["resultType"], created["taskId"], created["status"]) == ("task", task_id, "working")
        gate.opened.set()
        assert (await until(client, task_id, *TERMINAL))["status"] == "completed"


@requirement("tasks:lifecycle")
async def test_an_incomplete_execution_goes_on_without_a_task(tmp_path: Path) -> None:
    steps = plan(tool_step("a", "note", {"text": "x"}), tool_step("b", "note", {"text": "y"}))
    async with served(tmp_path, tools=Ledger().tools()) as found, connect_with_tasks(found.server) as client:
        created = await start(client, "execute_plan", plan=steps, options={"budgets": {"toolCalls": 1}})
        ended = await until(client, created["taskId"], *TERMINAL)
        execution = ended["result"]["structuredContent"]
        assert (ended["status"], execution["status"]) == ("completed", "incomplete")
        more = {"budgets": {"toolCalls": 9}}
        done = await ok(client, "execute_plan", threadId=execution["threadId"], options=more)
        assert (done["executionId"], done["status"]) == (created["taskId"], "completed")


@requirement("tasks:notified")
async def test_a_listener_receives_the_whole_task_at_every_change(tmp_path: Path) -> None:
    extension = TakesTasks()
    async with (
        served(tmp_path, tools=[*Ledger().tools(), sender(Ledger())]) as found,
        connect_with_tasks(found.server, extension) as client,
        anyio.create_task_group() as tasks,
    ):
        ended = (await start(client, "execute_plan", plan=NOTED))["taskId"]
        await until(client, ended, "completed")
        task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
        tasks.start_soon(listen, client, ended, task_id, "0" * 32)
        assert _bare(await extension.wait_for_update(lambda task: task["taskId"] == ended)) == _bare(
            await get(client, ended)
        )
        asked = await extension.wait_for_update(lambda task: task["status"] == "input_required")
        assert _bare(asked) == _bare(await get(client, task_id))
        await update(client, task_id, **dict.fromkeys(asked["inputRequests"], APPROVED))
        done = await extension.wait_for_update(lambda task: task["taskId"] == task_id and task["status"] == "completed")
        assert _bare(done) == _bare(await get(client, task_id))
        assert {task["taskId"] for task in extension.updates} == {ended, task_id}
        tasks.cancel_scope.cancel()


@requirement("tasks:owner", "tasks:notified")
async def test_a_listener_hears_nothing_of_other_peoples_tasks(tmp_path: Path) -> None:
    extension, store = TakesTasks(), MemoryStore()
    async with (
        served(tmp_path, tools=[*Ledger().tools(), sender(Ledger())], store=store) as found,
        connect_with_tasks(found.server, extension) as client,
        anyio.create_task_group() as tasks,
    ):
        foreign = (await start(client, "execute_plan", plan=SENT))["taskId"]
        key = await key_of(client, foreign)
        found.server.identify = lambda: Caller("somebody else")
        own = (await start(client, "execute_plan", plan=SENT))["taskId"]
        tasks.start_soon(listen, client, foreign, own)
        await extension.wait_for_update(lambda task: task["taskId"] == own)
        found.server.identify = lambda: Caller("local")
        await update(client, foreign, **{key: APPROVED})
        await until(client, foreign, "completed")
        found.server.identify = lambda: Caller("somebody else")
        await cancel(client, own)
        await extension.wait_for_update(lambda task: task["status"] == "cancelled")
        assert {task["taskId"] for task in extension.updates} == {own}
        tasks.cancel_scope.cancel()


def _raw_get(task_id: str) -> Document:
    capabilities: Document = {"extensions": {TASKS: {}}}
    meta: Document = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: capabilities}
    return {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": task_id, "_meta": meta}}


def _headers(name: str | None) -> dict[str, str]:
    return {
        "Host": "127.0.0.1:80",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": LATEST_MODERN_VERSION,
        "Mcp-Method": "tasks/get",
        **({} if name is None else {"Mcp-Name": name}),
    }


def _bare(task: Document) -> Document:
    """Without what belongs to the message and not to the task."""
    return {name: value for name, value in task.items() if name not in ("_meta", "resultType")}


async def _newest(found: Served) -> Document:
    [question] = (await found.warden.service.list_suspensions(principal="local")).suspensions
    return {"threadId": question.thread_id, "suspensions": [{"suspensionId": question.suspension_id}]}


async def _call(
    client: Client, arguments: Document, returned: InputRequiredResult | None = None, answer: Any = None
) -> Any:
    """`resume_execution`, with the answer to what an earlier call returned."""
    responses: Any = None
    if returned is not None:
        assert returned.input_requests is not None
        responses = dict.fromkeys(returned.input_requests, answer)
    return await client.session.call_tool(
        "resume_execution",
        arguments,
        input_responses=responses,
        request_state=None if returned is None else returned.request_state,
        allow_input_required=True,
        allow_claimed=True,
    )


async def _message(call: Any) -> str:
    with pytest.raises(Exception, match="Task not found") as caught:
        await call
    return str(caught.value)
