"""Clients that lie, vanish, hurry or repeat themselves, and tools and stores that fail: a coded error, nothing lost."""

import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError, types
from mcp.types.version import LATEST_MODERN_VERSION
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan, StoreError
from planwarden.agent.ports.store import Header, Store
from planwarden.server.mcp.server import PlanwardenServer
from tests.kit import Client, MemoryStore, Settings, Warden, by, confirm, decide, plan, refused, requirement, tool_step
from tests.server.mcp.http_support import FORMS, LINKS, TAKES, Wire, wired
from tests.server.mcp.support import INBOX, Desk, Document, approving, ids_of, nobody, open_desk
from tests.server.mcp.tasks_support import TERMINAL, TakesTasks, start
from tests.support.wardens import open_service

SENT = plan(tool_step("a", "send", {"to": "ann"}))
NOTED = plan(tool_step("a", "note", {"text": "x"}))
APPROVED: Document = {"action": "accept", "content": {"decision": "approve"}}
MANY: Document = {"action": "accept", "content": {"decision": "approve", "arg_copies": "many"}}
HALF = "a\udfffb"
ODD = "a\0b"


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
        {"decision": True},
        {"decision": {"action": "approve"}},
        {"decision": {"action": "accept", "content": {"decision": {"approve": True}}}},
        {"decision": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "approve"}}},
        {"another": APPROVED},
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
        assert answer["error"]["code"] == types.INVALID_PARAMS
    else:
        result = answer["result"]
        assert result["resultType"] == "input_required" or result["structuredContent"]["awaiting"] == "human"
    assert await is_still_open(desk)
    right: Document = {**sent, "inputResponses": {"decision": APPROVED}}
    done = (await wire.declaring(FORMS).send("tools/call", right, "resume_execution"))["result"]
    assert (done["structuredContent"]["status"], desk.ledger.lines) == ("completed", ["send ann 1 False"])


@requirement("clients:lying")
async def test_only_a_client_that_shows_forms_is_given_one_and_only_its_answer_counts(desk: Desk, wire: Wire) -> None:
    arguments, _ = await start_question(wire)
    bare: Document = {"elicitation": {}}
    shapes: tuple[tuple[Document, list[str]], ...] = (({}, []), (LINKS, ["url"]), (TAKES, []), (bare, ["form"]))
    for capabilities, modes in shapes:
        again = await wire.declaring(capabilities).call("resume_execution", arguments=arguments)
        assert [each["params"].get("mode", "form") for each in again.get("inputRequests", {}).values()] == modes
    arguments, returned = await start_question(wire)
    desk.warden.service.inbox_url = None
    for capabilities in ({}, LINKS, TAKES):
        for state in ({}, {"requestState": returned["requestState"]}):
            answer = await wire.declaring(capabilities).call(
                "resume_execution", arguments=arguments, inputResponses={"decision": APPROVED}, **state
            )
            assert answer["resultType"] == "complete", answer
            assert answer["isError"] or answer["structuredContent"].get("awaiting") == "human"
    assert (await desk.warden.list_suspensions()).total == 2 and desk.ledger.lines == []


@requirement("clients:malformed")
async def test_a_task_id_or_answers_of_another_type_are_invalid_and_change_nothing(desk: Desk, wire: Wire) -> None:
    client = wire.declaring(TAKES, FORMS)
    no_ids: list[Any] = [None, 7, [], {}, True, "x" * 201, "x" * 10_000]
    no_answers: list[Any] = [None, [], "x", 7, {f"key-{number}": None for number in range(101)}]
    for task_id in no_ids:
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            answer = await client.task(method, task_id, inputResponses={})
            assert answer["error"]["code"] == types.INVALID_PARAMS, (method, task_id)
    assert (await client.send("tasks/get", {}, ""))["error"]["code"] == types.INVALID_PARAMS
    task_id = (await client.call("execute_plan", arguments={"plan": SENT}))["taskId"]
    before = (await client.task("tasks/get", task_id))["result"]
    [key] = before["inputRequests"]
    no_decisions: list[Any] = ["yes", 7, None, [], {}, {"action": "approve"}, {**APPROVED, "content": "approve"}, MANY]
    for responses in [*no_answers, *({key: response} for response in no_decisions)]:
        answer = await client.task("tasks/update", task_id, inputResponses=responses)
        assert answer["error"]["code"] == types.INVALID_PARAMS, responses
    assert (await client.task("tasks/update", task_id))["error"]["code"] == types.INVALID_PARAMS
    assert (await client.task("tasks/get", task_id))["result"] == before and await is_still_open(desk)


@requirement("clients:revisions")
async def test_methods_that_earlier_drafts_had_are_not_there(wire: Wire) -> None:
    for method in ("tasks/result", "tasks/list"):
        assert (await wire.declaring(TAKES).task(method, "x"))["error"]["code"] == types.METHOD_NOT_FOUND


@requirement("clients:revisions")
@pytest.mark.parametrize("version", ["1999-01-01", "2027-01-01", "latest"])
async def test_a_revision_that_is_not_spoken_is_refused_with_those_that_are(wire: Wire, version: str) -> None:
    answer = await Wire(wire.http, TAKES, version).send("tools/list", {})
    assert answer["error"]["code"] == types.UNSUPPORTED_PROTOCOL_VERSION
    assert LATEST_MODERN_VERSION in answer["error"]["data"]["supported"]


@requirement("clients:vanishing")
async def test_the_answer_of_a_client_that_vanishes_counts_once_or_not_at_all(desk: Desk) -> None:
    def connect() -> Client:
        return Client(desk.server, mode="auto", extensions=[TakesTasks()], elicitation_callback=nobody)

    for number in range(8):
        async with connect() as client:
            task = await start(client, "execute_plan", plan=SENT)
            key = await task.key()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda t=task, k=key: t.update(**{k: APPROVED}))
                for _ in range(number * 6):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        async with connect() as again:
            assert len(desk.ledger.lines) in (number, number + 1)
            task = task.seen_by(again)
            await task.update(**{key: APPROVED})
            await task.until(*TERMINAL)
        assert len(desk.ledger.lines) == number + 1


@requirement("clients:repeating")
async def test_one_answer_sent_to_two_servers_and_given_on_the_page_has_one_effect(desk: Desk, tmp_path: Path) -> None:
    async with open_desk(tmp_path, on_disk=True) as other, wired(desk.server) as first, wired(other.server) as second:
        arguments, returned = await start_question(first)
        [question] = (await desk.warden.list_suspensions()).suspensions
        ends = list[Document]()

        async def approve_on_page() -> None:
            with suppress(planwarden.PlanwardenError):
                await decide(desk.warden, question, authority=by(channel="inbox", digest=question.digest))

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
                for number in range(20):
                    if number == 10:
                        tasks.start_soon(approve_on_page)
                    tasks.start_soon(send, (first, second)[number % 2], "reject" if number % 10 == 3 else "approve")
        shown = await desk.warden.get_execution(arguments["threadId"])
        effects = desk.ledger.lines + other.ledger.lines
        assert effects == (["send ann 1 False"] if shown.status == "completed" else [])
        refused = {end["error"]["code"] for end in ends if "threadId" not in end}
        assert refused == {"already_decided"} and len(ends) == 20


class Panic(BaseException):
    """An error without a text, of the kind that an extension in Rust raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({1, 2}, [1, 2]),
        ({"text": "a\ud83db"}, {"text": "a?b"}),
        (float("nan"), None),
        (json.loads("[" * 500 + "]" * 500), None),
        (10**5_000, None),
        ({"a": object()}, None),
        (SystemExit(3), None),
        (Panic(), None),
    ],
    ids=["set", "half a surrogate pair", "nan", "deep", "huge integer", "object", "ends the process", "panic"],
)
async def test_a_result_that_is_not_json_fails_its_step_and_not_the_connection(
    tmp_path: Path, value: object, shown: JsonValue
) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def strange() -> object:
        """Something else."""
        if isinstance(value, BaseException):
            raise value
        return value

    async with open_desk(tmp_path, "auto", strange) as desk:
        done = await desk.ok("execute_plan", plan=plan(tool_step("a", "strange")))
        step = done["steps"][0]
        # Some values have an obvious JSON form.
        assert (step["status"], step.get("result")) == ("failed" if shown is None else "completed", shown)
        assert len(json.dumps(done)) < 20_000
        assert (await desk.ok("execute_plan", plan=NOTED))["status"] == "completed"


async def test_text_that_is_no_unicode_is_refused_in_arguments_and_fails_no_server(desk: Desk) -> None:
    for tool, arguments in (
        ("get_execution", {"threadId": {"a": HALF}}),
        ("search_tools", {"query": [{HALF: 1}]}),
        ("get_tool_schemas", {"names": [HALF, 7]}),
    ):
        # The SDK's client cannot send it.
        result = await desk.server.call_tool(tool, arguments)
        assert isinstance(result, types.CallToolResult) and result.structured_content is not None
        assert result.structured_content["error"]["code"] == "invalid_arguments"
    steps = plan(tool_step("a", "find", {"topic": HALF, "limit": HALF}))
    with pytest.raises(InvalidPlan, match="half of a surrogate pair"):
        await desk.warden.execute_plan(steps, wait_seconds=60)


async def test_nul_and_half_of_a_surrogate_pair_are_refused_in_ids_and_nul_is_kept_in_values(
    store: Store, tmp_path: Path
) -> None:
    note = tool_step("act", "note", {"text": ODD})
    async with open_desk(tmp_path, asks=approving(), store=store) as desk, wired(desk.server) as wire:
        asked = await desk.ok("execute_plan", plan=plan(confirm("ask", ODD), note))
        for bad in (ODD, HALF):
            odd: Document = {**ids_of(asked), "suspensionId": bad, "decision": {"approved": True}}
            for code, name, arguments in (
                ("unknown_thread", "get_execution", {"threadId": bad}),
                ("unknown_thread", "execute_plan", {"threadId": bad, "plan": plan(note)}),
                ("unknown_thread", "cancel_execution", {"threadId": bad}),
                ("unknown_thread", "list_suspensions", {"threadId": bad}),
                ("invalid_arguments", "list_suspensions", {"cursor": bad}),
                ("invalid_arguments", "execute_plan", {"key": bad, "plan": plan(note)}),
                ("unknown_suspension", "resume_execution", odd),
            ):
                result = await wire.call(name, arguments=arguments)
                assert result["structuredContent"]["error"]["code"] == code, (name, arguments)
        decision = {"approved": True, "reason": ODD}
        with anyio.fail_after(60):
            done = await desk.ok("resume_execution", **ids_of(asked), decision=decision)
        assert (done["status"], desk.ledger.lines) == ("completed", [f"note {ODD}"])


class FailingStore(MemoryStore):
    """Fails when told to, as a full disk or a bug would."""

    failure: Exception | None = None

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        if self.failure is not None:
            raise self.failure
        return await super().thread(thread_id)


async def test_a_failing_store_and_a_defect_of_ours_are_said_and_the_server_goes_on(tmp_path: Path) -> None:
    store = FailingStore()
    async with open_desk(tmp_path, store=store) as desk:
        store.failure = StoreError("the disk is full")
        error = await desk.refused("get_execution", threadId="x")
        assert (error["code"], error["message"]) == ("storage_error", "the disk is full")
        store.failure = RuntimeError("password=hunter2")
        error = await desk.refused("get_execution", threadId="x")
        assert error["code"] == "internal_error" and "hunter2" not in error["message"]
        store.failure = None
        assert (await desk.refused("get_execution", threadId="x"))["code"] == "unknown_thread"
        assert (await desk.ok("run_goal", goal="x"))["status"] == "suspended"


@requirement("start:failure")
@pytest.mark.parametrize("is_file", [True, False], ids=["a file in its place", "a file of another program"])
async def test_a_store_that_cannot_open_is_said_with_every_call(tmp_path: Path, is_file: bool) -> None:
    home = tmp_path / "home"
    diary = home if is_file else home / "planwarden.db"
    diary.parent.mkdir(exist_ok=True)
    diary.write_bytes(b"this is somebody's diary, not a database" * 100)
    async with Client(PlanwardenServer(lambda: open_service(Warden(settings=Settings(home=home))))) as client:
        assert (await client.list_tools()).tools
        error = await refused(client, "run_goal", goal="x")
        assert error["code"] == "storage_error" and str(home) in error["message"]
        with pytest.raises(MCPError, match="storage_error"):
            await client.read_resource("planwarden://suspensions")
    assert diary.read_bytes().startswith(b"this is somebody's diary")
