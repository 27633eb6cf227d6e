"""Clients that lie, vanish, hurry or repeat themselves: the specified error, nothing lost, and one effect at most."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.client import ClientRequestContext
from mcp.types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
)
from mcp.types.version import LATEST_MODERN_VERSION
from pydantic import JsonValue

from tests.kit import Client, PausingTool, confirm, plan, requirement, tool_step
from tests.server.mcp.http_support import FORMS, LINKS, TAKES, Wire, wired
from tests.server.mcp.support import INBOX, Desk, Document, approving, ids_of, nobody, ok, open_desk
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, run, start, take_tasks

pytestmark = pytest.mark.anyio

SENT = plan(tool_step("a", "send", {"to": "ann"}))
LEGACY: Document = {"tasks": {"requests": {"tools": {"call": {}}}}}
APPROVED: Document = {"action": "accept", "content": {"decision": "approve"}}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncGenerator[Desk]:
    async with open_desk(tmp_path, inbox_url=INBOX, on_disk=True) as opened:
        yield opened


@pytest.fixture
async def wire(desk: Desk) -> AsyncGenerator[Wire]:
    async with wired(desk.server) as opened:
        yield opened


async def start_question(wire: Wire) -> tuple[Document, Document]:
    """A question that waits, as arguments that approve it, and what was returned to the client that asks for it."""
    asked = await wire.call("execute_plan", arguments={"plan": SENT})
    arguments: Document = {**ids_of(asked["structuredContent"]), "decision": {"approved": True}}
    returned = await wire.declaring(FORMS).call("resume_execution", arguments=arguments)
    assert returned["resultType"] == "input_required"
    return arguments, returned


async def is_still_open(desk: Desk) -> bool:
    return (await desk.warden.list_suspensions()).total == 1 and desk.ledger.lines == []


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
    desk: Desk, wire: Wire, responses: JsonValue
) -> None:
    arguments, returned = await start_question(wire)
    sent: Document = {"name": "resume_execution", "arguments": arguments, "requestState": returned["requestState"]}
    answer = await wire.declaring(FORMS).send("tools/call", {**sent, "inputResponses": responses}, "resume_execution")
    if "error" in answer:
        assert answer["error"]["code"] == INVALID_PARAMS
    else:
        result = answer["result"]
        assert result["resultType"] == "input_required" or result["structuredContent"]["awaiting"] == "human"
    assert await is_still_open(desk)
    right: Document = {**sent, "inputResponses": {"decision": APPROVED}}
    done = (await wire.declaring(FORMS).send("tools/call", right, "resume_execution"))["result"]
    assert (done["structuredContent"]["status"], desk.ledger.lines) == ("completed", ["send ann 1 False"])


@requirement("clients:lying")
async def test_only_a_client_that_shows_forms_is_given_one(desk: Desk, wire: Wire) -> None:
    asked = await wire.call("execute_plan", arguments={"plan": SENT})
    arguments: Document = {**ids_of(asked["structuredContent"]), "decision": {"approved": True}}
    shapes: list[tuple[Document, list[str]]] = [
        ({}, []),
        (LINKS, ["url"]),
        (TAKES, []),
        ({"elicitation": {}}, ["form"]),
    ]
    for capabilities, modes in (*shapes, (FORMS, ["form"])):
        returned = await wire.declaring(capabilities).call("resume_execution", arguments=arguments)
        assert [each["params"].get("mode", "form") for each in returned.get("inputRequests", {}).values()] == modes
    assert await is_still_open(desk)


@requirement("clients:lying")
async def test_the_answer_of_a_client_that_declares_no_forms_does_not_count(desk: Desk, wire: Wire) -> None:
    desk.warden.service.inbox_url = None
    arguments, returned = await start_question(wire)
    for capabilities in ({}, LINKS, TAKES):
        for state in ({}, {"requestState": returned["requestState"]}):
            answer = await wire.declaring(capabilities).call(
                "resume_execution", arguments=arguments, inputResponses={"decision": APPROVED}, **state
            )
            assert answer["resultType"] == "complete", answer
            assert answer["structuredContent"].get("awaiting") == "human" or answer["isError"]
    assert await is_still_open(desk)


@requirement("clients:malformed")
async def test_a_task_id_or_answers_that_are_none_are_invalid_parameters_and_change_nothing(
    desk: Desk, wire: Wire
) -> None:
    client = wire.declaring(TAKES, FORMS)
    no_ids: list[Any] = [None, 7, [], {}, True, "x" * 201, "x" * 10_000]
    no_answers: list[Any] = [None, [], "x", 7, {f"key-{number}": None for number in range(101)}]
    for task_id in no_ids:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            answer = await client.task(method, task_id, inputResponses={})
            assert answer["error"]["code"] == INVALID_PARAMS, (method, task_id)
    assert (await client.send("tasks/get", {}, ""))["error"]["code"] == INVALID_PARAMS
    task_id = (await client.call("execute_plan", arguments={"plan": SENT}))["taskId"]
    before = (await client.task("tasks/get", task_id))["result"]
    for responses in no_answers:
        answer = await client.task("tasks/update", task_id, inputResponses=responses)
        assert answer["error"]["code"] == INVALID_PARAMS, responses
    assert (await client.task("tasks/update", task_id))["error"]["code"] == INVALID_PARAMS
    assert (await client.task("tasks/get", task_id))["result"] == before and await is_still_open(desk)


@requirement("clients:revisions")
async def test_what_earlier_drafts_had_is_not_there(wire: Wire) -> None:
    noted = plan(tool_step("a", "note", {"text": "x"}))
    for capabilities in (TAKES, LEGACY):
        for method in ("tasks/result", "tasks/list"):
            assert (await wire.declaring(capabilities).task(method, "x"))["error"]["code"] == METHOD_NOT_FOUND
    legacy: Document = {"arguments": {"plan": noted}, "task": {"ttl": 60_000}}
    done = await wire.declaring(LEGACY).call("execute_plan", **legacy)
    assert (done["resultType"], done["structuredContent"]["status"]) == ("complete", "completed")
    answer = await wire.task("tasks/get", done["structuredContent"]["executionId"])
    assert answer["error"]["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert TAKES["extensions"].keys() == answer["error"]["data"]["requiredCapabilities"]["extensions"].keys()


@requirement("clients:revisions")
@pytest.mark.parametrize("version", ["1999-01-01", "2027-01-01", "latest"])
async def test_a_revision_that_is_not_spoken_is_refused_with_those_that_are(wire: Wire, version: str) -> None:
    answer = await Wire(wire.http, TAKES, version).send("tools/list", {})
    assert answer["error"]["code"] == UNSUPPORTED_PROTOCOL_VERSION
    assert LATEST_MODERN_VERSION in answer["error"]["data"]["supported"]


@requirement("clients:hurrying")
async def test_a_client_that_polls_too_fast_is_answered_and_slows_nothing_down(tmp_path: Path) -> None:
    gate = PausingTool()
    steps = plan(tool_step("a", "gate"), tool_step("b", "note", {"text": "x"}), confirm("c"))
    async with take_tasks(tmp_path, gate.tool(), asks=None, on_disk=True) as desk:
        task = await run(desk, steps)
        seen = list[Document]()

        async def look() -> None:
            seen.append(await task.get())

        for _ in range(2):
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(look)
                gate.opened.set()
                await task.until(*TERMINAL)
        assert [task["status"] for task in seen] == ["working"] * 100 + ["completed"] * 100
        assert desk.ledger.lines == ["note x"]
        page = await desk.warden.service.audit.read_page(execution_id=task.task_id, limit=500)
        assert [row.kind for row in page.rows].count("task_ended") == 1


@requirement("clients:vanishing")
async def test_the_answer_of_a_client_that_vanishes_counts_once_or_not_at_all(desk: Desk) -> None:
    def connect() -> Client:
        return Client(desk.server, mode="auto", extensions=[TakesTasks()], elicitation_callback=nobody)

    for number in range(12):
        async with connect() as client:
            task = await start(client, "execute_plan", plan=SENT)
            key = await task.key()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda t=task, k=key: t.update(**{k: APPROVED}))
                for _ in range(number * 4):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        async with connect() as again:
            assert len(desk.ledger.lines) in (number, number + 1)
            task = task.seen_by(again)
            await task.update(**{key: APPROVED})
            await task.until(*TERMINAL)
        assert len(desk.ledger.lines) == number + 1


@requirement("clients:vanishing")
async def test_a_client_that_vanishes_with_the_form_open_leaves_the_question(desk: Desk) -> None:
    opened = anyio.Event()

    async def slow(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        opened.set()
        await anyio.sleep_forever()
        raise AssertionError

    asked = await desk.ok("execute_plan", plan=SENT)
    arguments: Document = {**ids_of(asked), "decision": {"approved": True}}
    async with (
        Client(desk.server, mode="legacy", elicitation_callback=slow) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(client.call_tool, "resume_execution", arguments)
        with anyio.fail_after(60):
            await opened.wait()
        tasks.cancel_scope.cancel()
    assert await is_still_open(desk)
    async with Client(desk.server, mode="legacy", elicitation_callback=approving()) as again:
        done = await ok(again, "resume_execution", **arguments)
    assert (done["status"], desk.ledger.lines) == ("completed", ["send ann 1 False"])


@requirement("clients:repeating")
async def test_one_answer_sent_at_once_to_two_servers_has_one_effect(desk: Desk, tmp_path: Path) -> None:
    async with (
        open_desk(tmp_path, on_disk=True) as other,
        wired(desk.server) as first,
        wired(other.server) as second,
    ):
        arguments, returned = await start_question(first)
        ends = list[Document]()

        async def send(wire: Wire, verdict: str) -> None:
            answer = await wire.declaring(FORMS).call(
                "resume_execution",
                arguments=arguments,
                inputResponses={"decision": {"action": "accept", "content": {"decision": verdict}}},
                requestState=returned["requestState"],
            )
            ends.append(answer["structuredContent"])

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(send, (first, second)[number % 2], "reject" if number % 10 == 3 else "approve")
        shown = await desk.warden.get_execution(arguments["threadId"])
        effects = desk.ledger.lines + other.ledger.lines
        assert effects == (["send ann 1 False"] if shown.status == "completed" else [])
        refused = {end["error"]["code"] for end in ends if "threadId" not in end}
        assert refused == {"already_decided"} and len(ends) == 40


@requirement("clients:repeating")
async def test_a_task_and_a_call_that_answer_the_same_question_have_one_effect(desk: Desk, wire: Wire) -> None:
    client = wire.declaring(TAKES, FORMS)
    task_id = (await client.call("execute_plan", arguments={"plan": SENT}))["taskId"]
    task = (await client.task("tasks/get", task_id))["result"]
    [question] = (await desk.warden.list_suspensions()).suspensions
    arguments: Document = {"threadId": question.thread_id, "suspensionId": question.suspension_id}
    arguments["decision"] = {"approved": True}
    returned = await client.call("resume_execution", arguments=arguments)
    await client.task("tasks/update", task_id, inputResponses=dict.fromkeys(task["inputRequests"], APPROVED))
    no: Document = {"decision": {"action": "accept", "content": {"decision": "reject"}}}
    late = await client.call(
        "resume_execution", arguments=arguments, inputResponses=no, requestState=returned["requestState"]
    )
    assert late["structuredContent"]["error"]["code"] == "already_decided"
    assert desk.ledger.lines == ["send ann 1 False"]
