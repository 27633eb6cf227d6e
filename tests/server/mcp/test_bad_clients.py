"""Clients that lie, vanish, hurry or repeat themselves: the specified error, nothing lost, and one effect at most."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
)
from mcp.types.version import LATEST_MODERN_VERSION
from pydantic import JsonValue

from planwarden.agent.core.requester import Requester
from tests.requirements import requirement
from tests.server.mcp.support import Document, Person, Served, ids_of, nobody, ok, sender, served
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, get, key_of, start, until, update
from tests.server.mcp.wire_support import FORMS, LINKS, TAKES, Wire, wired
from tests.support.wardens import Ledger, PausingTool, confirm, plan, tool_step

pytestmark = pytest.mark.anyio

INBOX = "http://127.0.0.1:4711/inbox"
SENT = plan(tool_step("a", "send", {"to": "ann"}))
NO_ANSWERS: list[Any] = [None, [], "x", 7, {f"key-{number}": None for number in range(101)}]
LEGACY: Document = {"tasks": {"requests": {"tools": {"call": {}}}}}
APPROVED: Document = {"action": "accept", "content": {"decision": "approve"}}


async def start_question_over(wire: Wire) -> tuple[Document, Document]:
    """A question that waits, as arguments that approve it, and what was returned to the client that asks for it."""
    asked = await wire.call("execute_plan", arguments={"plan": SENT})
    arguments: Document = {**ids_of(asked["structuredContent"]), "decision": {"approved": True}}
    returned = await wire.declaring(FORMS).call("resume_execution", arguments=arguments)
    assert returned["resultType"] == "input_required"
    return arguments, returned


async def start_question(found: Served, steps: JsonValue) -> Document:
    """A plan that waits for a person, as arguments that approve its question."""
    view = await found.warden.service.execute_plan(steps, wait_seconds=60, requester=Requester("local"))
    [question] = view.suspensions
    return {
        "threadId": view.thread_id,
        "suspensionId": question.suspension_id,
        "decision": {"approved": True},
    }


async def is_still_open(found: Served) -> bool:
    return (await found.warden.service.list_suspensions(principal="local")).total == 1


@requirement("clients:lying")
@pytest.mark.parametrize(
    "responses",
    [
        {"decision": "approve"},
        {"decision": True},
        {"decision": None},
        {"decision": []},
        {"decision": {}},
        {"decision": {"action": "approve"}},
        {"decision": {"action": "accept", "content": "approve"}},
        {"decision": {"action": "accept", "content": {"decision": {"approve": True}}}},
        {"decision": {"roots": []}},
        {"decision": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "approve"}}},
        {"another": APPROVED},
        {},
        [],
        "approve",
    ],
    ids=str,
)
async def test_a_client_that_declares_forms_and_answers_garbage_decides_nothing(
    tmp_path: Path, responses: JsonValue
) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, wired(found.server) as wire:
        arguments, returned = await start_question_over(wire)
        answer = await wire.declaring(FORMS).send(
            "tools/call",
            {
                "name": "resume_execution",
                "arguments": arguments,
                "inputResponses": responses,
                "requestState": returned["requestState"],
            },
            "resume_execution",
        )
        if "error" in answer:
            assert answer["error"]["code"] == INVALID_PARAMS
        else:
            result = answer["result"]
            assert result["resultType"] == "input_required" or result["structuredContent"]["awaiting"] == "human"
        assert await is_still_open(found) and ledger.lines == []
        done = await wire.declaring(FORMS).call(
            "resume_execution",
            arguments=arguments,
            inputResponses={"decision": APPROVED},
            requestState=returned["requestState"],
        )
        assert (done["structuredContent"]["status"], ledger.lines) == ("completed", ["send ann 1 False"])


@requirement("clients:lying")
async def test_the_answer_of_a_client_that_declares_no_forms_does_not_count(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, wired(found.server) as wire:
        arguments, returned = await start_question_over(wire)
        for capabilities in ({}, LINKS, TAKES):
            for state in ({}, {"requestState": returned["requestState"]}):
                answer = await wire.declaring(capabilities).call(
                    "resume_execution", arguments=arguments, inputResponses={"decision": APPROVED}, **state
                )
                assert answer["resultType"] == "complete", answer
                assert answer["structuredContent"].get("awaiting") == "human" or answer["isError"]
        assert await is_still_open(found) and ledger.lines == []


@requirement("clients:lying")
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_an_address_is_decided_by_no_answer_of_a_client(tmp_path: Path, action: str) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, wired(found.server) as wire:
        found.warden.service.inbox_url = INBOX
        asked = await wire.call("execute_plan", arguments={"plan": plan(tool_step("a", "erase", {"ids": [1]}))})
        arguments: Document = {**ids_of(asked["structuredContent"]), "decision": {"approved": True}, "waitSeconds": 0}
        returned = await wire.declaring(LINKS).call("resume_execution", arguments=arguments)
        for _ in range(3):
            answer = await wire.declaring(LINKS).call(
                "resume_execution",
                arguments=arguments,
                inputResponses={"decision": {**APPROVED, "action": action}},
                requestState=returned["requestState"],
            )
            assert answer["structuredContent"]["awaiting"] == "human"
        assert await is_still_open(found) and ledger.lines == []


@requirement("clients:malformed")
@pytest.mark.parametrize("task_id", [None, 7, [], {}, True, "x" * 201, "x" * 10_000], ids=lambda value: str(value)[:9])
async def test_a_task_id_that_is_none_is_an_invalid_parameter(tmp_path: Path, task_id: JsonValue) -> None:
    async with served(tmp_path) as found, wired(found.server) as wire:
        client = wire.declaring(TAKES)
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            answer = await client.task(method, task_id, inputResponses={})
            assert answer["error"]["code"] == INVALID_PARAMS, method
        assert (await client.send("tasks/get", {}, ""))["error"]["code"] == INVALID_PARAMS


@requirement("clients:malformed")
@pytest.mark.parametrize("responses", NO_ANSWERS, ids=lambda value: str(value)[:9])
async def test_answers_that_are_none_leave_the_task_as_it_is(tmp_path: Path, responses: JsonValue) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, wired(found.server) as wire:
        client = wire.declaring(TAKES, FORMS)
        task_id = (await client.call("execute_plan", arguments={"plan": SENT}))["taskId"]
        before = (await client.task("tasks/get", task_id))["result"]
        answer = await client.task("tasks/update", task_id, inputResponses=responses)
        assert answer["error"]["code"] == INVALID_PARAMS
        assert (await client.task("tasks/update", task_id))["error"]["code"] == INVALID_PARAMS
        assert (await client.task("tasks/get", task_id))["result"] == before and ledger.lines == []


@requirement("clients:revisions")
async def test_what_earlier_drafts_had_is_not_there(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, wired(found.server) as wire:
        noted = plan(tool_step("a", "note", {"text": "x"}))
        for capabilities in (TAKES, LEGACY):
            client = wire.declaring(capabilities)
            for method in ("tasks/result", "tasks/list"):
                assert (await client.task(method, "x"))["error"]["code"] == METHOD_NOT_FOUND
        legacy: Document = {"arguments": {"plan": noted}, "task": {"ttl": 60_000}}
        done = await wire.declaring(LEGACY).call("execute_plan", **legacy)
        assert (done["resultType"], done["structuredContent"]["status"]) == ("complete", "completed")
        answer = await wire.task("tasks/get", done["structuredContent"]["executionId"])
        assert answer["error"]["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
        assert TAKES["extensions"].keys() == answer["error"]["data"]["requiredCapabilities"]["extensions"].keys()


@requirement("clients:revisions")
@pytest.mark.parametrize("version", ["1999-01-01", "2027-01-01", "latest"])
async def test_a_revision_that_is_not_spoken_is_refused_with_those_that_are(tmp_path: Path, version: str) -> None:
    async with served(tmp_path) as found, wired(found.server) as wire:
        stranger = Wire(wire.http, TAKES, version)
        answer = await stranger.send("tools/list", {})
        assert answer["error"]["code"] == UNSUPPORTED_PROTOCOL_VERSION
        assert LATEST_MODERN_VERSION in answer["error"]["data"]["supported"]


@requirement("clients:hurrying")
async def test_a_client_that_polls_too_fast_is_answered_and_slows_nothing_down(tmp_path: Path) -> None:
    ledger, gate = Ledger(), PausingTool()
    steps = plan(tool_step("a", "gate"), tool_step("b", "note", {"text": "x"}), confirm("c"))
    async with (
        served(tmp_path, tools=[*ledger.tools(), gate.tool()], on_disk=True) as found,
        Client(found.server, mode="auto", extensions=[TakesTasks()]) as client,
    ):
        task_id = (await start(client, "execute_plan", plan=steps))["taskId"]
        seen = list[Document]()

        async def look() -> None:
            seen.append(await get(client, task_id))

        for _ in range(2):
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for _ in range(250):
                        tasks.start_soon(look)
                gate.opened.set()
                await until(client, task_id, *TERMINAL)
        assert [task["status"] for task in seen] == ["working"] * 250 + ["completed"] * 250
        assert ledger.lines == ["note x"]
        page = await found.warden.service.audit.read_page(execution_id=task_id, limit=500)
        assert [row.kind for row in page.rows].count("task_ended") == 1


@requirement("clients:vanishing")
async def test_the_answer_of_a_client_that_vanishes_counts_once_or_not_at_all(tmp_path: Path) -> None:
    ledger = Ledger()
    arrived = set[int]()
    async with served(tmp_path, tools=[sender(ledger)], on_disk=True) as found:
        for number in range(12):
            before = len(ledger.lines)
            async with Client(
                found.server, mode="auto", extensions=[TakesTasks()], elicitation_callback=nobody
            ) as client:
                task_id = (await start(client, "execute_plan", plan=SENT))["taskId"]
                key = await key_of(client, task_id)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda c=client, t=task_id, k=key: update(c, t, **{k: APPROVED}))
                    for _ in range(number * 4):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            async with Client(
                found.server, mode="auto", extensions=[TakesTasks()], elicitation_callback=nobody
            ) as again:
                arrived.add(len(ledger.lines) - before)
                await update(again, task_id, **{key: APPROVED})
                await until(again, task_id, *TERMINAL)
            assert len(ledger.lines) == before + 1
    assert arrived <= {0, 1}


@requirement("clients:vanishing")
async def test_a_client_that_vanishes_with_the_form_open_leaves_the_question(tmp_path: Path) -> None:
    ledger, opened = Ledger(), anyio.Event()

    async def slow(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        opened.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with served(tmp_path, tools=[sender(ledger)]) as found:
        arguments = await start_question(found, SENT)
        async with (
            Client(found.server, mode="legacy", elicitation_callback=slow) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(client.call_tool, "resume_execution", arguments)
            with anyio.fail_after(60):
                await opened.wait()
            tasks.cancel_scope.cancel()
        assert await is_still_open(found) and ledger.lines == []
        person = Person(content={"decision": "approve"})
        async with Client(found.server, mode="legacy", elicitation_callback=person) as again:
            done = await ok(again, "resume_execution", **arguments)
        assert (done["status"], ledger.lines) == ("completed", ["send ann 1 False"])


@requirement("clients:vanishing")
async def test_a_client_that_vanishes_during_the_effect_reads_its_result_later(tmp_path: Path) -> None:
    ledger, gate = Ledger(), PausingTool()
    steps = plan(confirm("a"), tool_step("b", "gate"), tool_step("c", "note", {"text": "x"}))
    async with served(tmp_path, tools=[*ledger.tools(), gate.tool()]) as found:
        arguments = await start_question(found, steps)
        async with (
            Client(found.server, mode="auto", elicitation_callback=Person(content={"decision": "approve"})) as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(client.call_tool, "resume_execution", arguments)
            with anyio.fail_after(60):
                await gate.started.wait()
            tasks.cancel_scope.cancel()
        gate.opened.set()
        async with Client(found.server, mode="auto") as again:
            with anyio.fail_after(60):
                while (done := await ok(again, "get_execution", threadId=arguments["threadId"]))["status"] == "running":
                    await anyio.lowlevel.checkpoint()
        assert (done["status"], ledger.lines) == ("completed", ["note x"])


@requirement("clients:repeating")
async def test_one_answer_sent_at_once_to_two_servers_has_one_effect(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as one,
        served(tmp_path, tools=[sender(ledger)], on_disk=True) as other,
        wired(one.server) as first,
        wired(other.server) as second,
    ):
        arguments, returned = await start_question_over(first)
        ends = list[Any]()

        async def send(wire: Wire, verdict: str) -> None:
            answer = await wire.declaring(FORMS).call(
                "resume_execution",
                arguments=arguments,
                inputResponses={"decision": {"action": "accept", "content": {"decision": verdict}}},
                requestState=returned["requestState"],
            )
            ends.append(CallToolResult.model_validate(answer).structured_content)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(send, (first, second)[number % 2], "reject" if number % 10 == 3 else "approve")
        shown = await one.warden.service.get_execution(arguments["threadId"], principal="local")
        assert ledger.lines == (["send ann 1 False"] if shown.status == "completed" else [])
        refused = {end["error"]["code"] for end in ends if "threadId" not in end}
        assert refused == {"already_decided"} and len(ends) == 40


@requirement("clients:repeating")
async def test_a_task_and_a_call_that_answer_the_same_question_have_one_effect(tmp_path: Path) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[sender(ledger)]) as found, wired(found.server) as wire:
        client = wire.declaring(TAKES, FORMS)
        task_id = (await client.call("execute_plan", arguments={"plan": SENT}))["taskId"]
        task = (await client.task("tasks/get", task_id))["result"]
        [question] = (await found.warden.service.list_suspensions(principal="local")).suspensions
        arguments: Document = {
            "threadId": question.thread_id,
            "suspensionId": question.suspension_id,
            "decision": {"approved": True},
        }
        returned = await client.call("resume_execution", arguments=arguments)
        answers = dict.fromkeys(task["inputRequests"], APPROVED)
        await client.task("tasks/update", task_id, inputResponses=answers)
        no: Document = {"decision": {"action": "accept", "content": {"decision": "reject"}}}
        late = await client.call(
            "resume_execution", arguments=arguments, inputResponses=no, requestState=returned["requestState"]
        )
        assert late["structuredContent"]["error"]["code"] == "already_decided"
        assert ledger.lines == ["send ann 1 False"]
