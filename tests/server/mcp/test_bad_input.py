"""Bad input over MCP: a coded error or a bounded result, nothing lost, and the server continues."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import MAX_MESSAGE_CHARS, InvalidPlan, StoreError
from planwarden.agent.core.requester import Requester
from planwarden.agent.ports.store import Append, Header, Lease
from planwarden.server.api.warden import Warden
from planwarden.server.mcp.lazy_service import build_service_opener
from planwarden.server.mcp.server import build_server
from planwarden.server.mcp.tools import TOOLS
from planwarden.server.settings.configuration import Settings
from planwarden.storage.memory.store import MemoryStore
from tests.server.mcp.support import ERAS, Document, Era, Served, ids_of, ok, refused, served, text_of
from tests.support.loop_time import pass_time
from tests.support.wardens import Ledger, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]


@asynccontextmanager
async def _client(home: Path, era: Era, *tools: object) -> AsyncGenerator[tuple[Client, Served]]:
    async with served(home, tools=tools) as found, Client(found.server, mode=era) as client:
        yield client, found
        # Whatever was sent, the server still works.
        assert (await ok(client, "execute_plan", plan=plan(tool_step("a", "calculator", {"expression": "6*7"}))))[
            "status"
        ] == "completed"


def _steps(*ids: str, **extra: JsonValue) -> list[JsonValue]:
    return [{"id": step_id, "description": step_id, **extra} for step_id in ids]


@pytest.mark.parametrize(
    ("document", "code", "word"),
    [
        ({"todoList": []}, "invalid_plan", "no steps"),
        ({}, "invalid_plan", "todoList"),
        ([], "invalid_plan", "not an object"),
        ("run it", "invalid_plan", "not an object"),
        ({"todoList": "a"}, "invalid_plan", "todoList"),
        ({"todoList": [1]}, "invalid_plan", "todoList[0]"),
        ({"todoList": _steps("a"), "steps": _steps("a")}, "invalid_plan", "both"),
        ({"todoList": _steps("a", dependencies=["a"])}, "invalid_plan", "circle"),
        (
            {"todoList": [*_steps("a", dependencies=["b"]), *_steps("b", dependencies=["a"])]},
            "invalid_plan",
            "circle",
        ),
        ({"todoList": _steps("a", "a")}, "invalid_plan", "duplicate"),
        ({"todoList": _steps("a", dependencies=["z"])}, "invalid_plan", "'z'"),
        ({"todoList": _steps("a", requiredTools=["nope"])}, "invalid_plan", "calculator"),
        ({"todoList": _steps("a", requiredTools="calculator")}, "invalid_plan", "requiredTools"),
        ({"todoList": _steps("a", colour="red")}, "invalid_plan", "'colour'"),
        ({"todoList": _steps(*(f"s{n}" for n in range(51)))}, "limit_exceeded", "51 steps"),
        ({"todoList": [{"id": 7.5, "description": None}]}, "invalid_plan", "todoList[0].id must be text, not 7.5"),
    ],
)
async def test_a_bad_plan_is_refused_precisely_and_nothing_is_stored(
    tmp_path: Path, era: Era, document: JsonValue, code: str, word: str
) -> None:
    async with _client(tmp_path, era) as (client, _):
        error = await refused(client, "execute_plan", plan=document)
        assert error["code"] == code
        assert word in error["message"]
        assert (await ok(client, "list_suspensions"))["total"] == 0


async def test_unknown_tools_are_listed_with_what_there_is(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era) as (client, _):
        result = await client.call_tool("execute_plan", {"plan": {"todoList": _steps("a", requiredTools=["nope"])}})
        details = result.structured_content["error"]["details"]
        assert details["unknownTools"] == ["nope"] and "calculator" in details["availableTools"]
        assert "; available: calculator, " in text_of(result) and "Details" not in text_of(result)


async def test_a_plan_of_a_hundred_thousand_steps_is_refused_by_its_number(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era) as (client, _):
        document: JsonValue = {"todoList": _steps(*(f"s{n}" for n in range(100_000)))}
        error = await refused(client, "execute_plan", plan=document)
        assert error["code"] == "limit_exceeded"
        assert error["details"] == {"steps": 100_000, "maxSteps": 50}


async def test_a_plan_nested_too_deeply_is_refused(tmp_path: Path, era: Era) -> None:
    deep: JsonValue = 1
    for _ in range(150):
        deep = [deep]
    async with _client(tmp_path, era) as (client, _):
        steps = plan(tool_step("a", "calculator", {"expression": deep}))
        assert (await refused(client, "execute_plan", plan=steps))["code"] == "limit_exceeded"
        answer: JsonValue = {"content": deep}
        asked = await ok(client, "run_goal", goal="x")
        assert (await refused(client, "submit_answer", **ids_of(asked), content=answer))["code"] == "limit_exceeded"
        await ok(client, "cancel_execution", threadId=asked["threadId"])


async def test_unknown_and_foreign_ids_look_the_same(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era) as (client, found):
        service = found.warden.service
        foreign = await service.run_goal("secret", requester=Requester("somebody else"))
        thread, suspension = foreign.thread_id, foreign.suspensions[0].suspension_id
        mine = await ok(client, "run_goal", goal="x")

        async def answers(thread_id: str, suspension_id: str) -> list[Document]:
            ids = {"threadId": thread_id, "suspensionId": suspension_id}
            return [
                await refused(client, "get_execution", threadId=thread_id),
                await refused(client, "cancel_execution", threadId=thread_id),
                await refused(client, "list_suspensions", threadId=thread_id),
                await refused(client, "run_goal", goal="x", threadId=thread_id),
                await refused(client, "execute_plan", threadId=thread_id),
                await refused(client, "submit_answer", **ids, content={"todoList": []}),
                await refused(client, "resume_execution", **ids, decision={"approved": True}),
                await refused(client, "resume_execution", **ids, decision={"approved": False}),
            ]

        theirs = await answers(thread, suspension)
        nobodys = await answers("no-such-thread", "no-such-suspension")
        for foreign_error, unknown_error in zip(theirs, nobodys, strict=True):
            message = (
                foreign_error["message"].replace(thread, "no-such-thread").replace(suspension, "no-such-suspension")
            )
            assert {**foreign_error, "message": message} == unknown_error
        # The right suspension in the wrong thread is no suspension either.
        mixed = {"threadId": mine["threadId"], "suspensionId": suspension}
        assert (await refused(client, "submit_answer", **mixed, content={}))["code"] == "unknown_suspension"
        assert (await service.get_execution(thread, principal="somebody else")).status == "suspended"
        assert (await ok(client, "list_suspensions"))["total"] == 1
        await ok(client, "cancel_execution", threadId=mine["threadId"])


async def test_a_busy_thread_names_what_is_pending(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era) as (client, _):
        asked = await ok(client, "run_goal", goal="x")
        for name, arguments in (
            ("run_goal", {"goal": "y"}),
            ("create_plan", {"goal": "y"}),
            ("execute_plan", {"plan": {"todoList": _steps("a")}}),
        ):
            error = await refused(client, name, threadId=asked["threadId"], **arguments)
            assert error["code"] == "thread_busy"
            [pending] = error["details"]["pending"]
            assert pending["suspensionId"] == ids_of(asked)["suspensionId"]
        await ok(client, "cancel_execution", threadId=asked["threadId"])


async def test_an_answer_in_the_wrong_shape_leaves_the_question_open(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era) as (client, _):
        asked = await ok(client, "execute_plan", plan={"todoList": _steps("a")})
        for content in ({}, {"answer": "x"}, {"toolCalls": "x"}, {"toolCalls": [{"name": "x"}]}, {"content": 3}):
            error = await refused(client, "submit_answer", **ids_of(asked), content=content)
            assert error["code"] == "invalid_arguments"
        assert ids_of(await ok(client, "get_execution", threadId=asked["threadId"])) == ids_of(asked)
        done = await ok(client, "submit_answer", **ids_of(asked), content={"content": "thought"})
        assert done["status"] == "completed"


async def test_submit_answer_never_answers_for_a_person(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with _client(tmp_path, era, *ledger.tools()) as (client, _):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        error = await refused(client, "submit_answer", **ids_of(asked), content={"approved": True})
        assert error["code"] == "invalid_arguments" and "resume_execution" in error["message"]
        assert ledger.lines == []


async def test_a_tool_that_raises_fails_its_step_and_nothing_else(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era, *Ledger().tools()) as (client, _):
        failed = await ok(
            client, "execute_plan", plan=plan(tool_step("a", "broken"), tool_step("b", "find", {"topic": "t"}))
        )
        assert (failed["status"], failed["error"]["code"]) == ("failed", "tool_error")
        assert [step["status"] for step in failed["steps"]] == ["failed", "skipped"]
        assert "the machine is on fire" in failed["error"]["message"]


async def test_a_tool_that_hangs_is_given_up(tmp_path: Path, era: Era) -> None:
    @planwarden.tool(risk="read", effect="read", timeout_s=5.0)
    async def hang() -> str:
        """Never returns."""
        pass_time(5.0)
        await anyio.sleep_forever()
        return ""

    async with _client(tmp_path, era, hang) as (client, _):
        failed = await ok(client, "execute_plan", plan=plan(tool_step("a", "hang")))
        assert (failed["status"], failed["error"]["code"]) == ("failed", "timeout")


async def test_an_effect_that_hangs_becomes_a_question(tmp_path: Path, era: Era) -> None:
    @planwarden.tool(risk="read", effect="effect", timeout_s=5.0)
    async def send() -> str:
        """Never returns."""
        pass_time(5.0)
        await anyio.sleep_forever()
        return ""

    async with _client(tmp_path, era, send) as (client, _):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send")))
        [question] = asked["suspensions"]
        assert (asked["status"], question["kind"]) == ("suspended", "reconcile")
        done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": False})
        assert (done["status"], done["error"]["code"]) == ("failed", "outcome_unknown")


async def test_a_result_of_a_hundred_megabytes_is_a_preview(tmp_path: Path, era: Era) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def flood() -> str:
        """A lot."""
        return "x" * 100_000_000

    async with _client(tmp_path, era, flood) as (client, _):
        result = await client.call_tool("execute_plan", {"plan": plan(tool_step("a", "flood"))})
        step = result.structured_content["steps"][0]
        assert (step["status"], step["result"]["truncated"]) == ("completed", True)
        assert len(json.dumps(result.structured_content)) + len(text_of(result)) < 20_000


@pytest.mark.parametrize("what", ["set", "nan", "object", "deep", "bytes", "huge integer"])
async def test_a_result_that_is_not_json_fails_the_step(tmp_path: Path, era: Era, what: str) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def strange() -> object:
        """Something else."""
        deep: JsonValue = 1
        for _ in range(500):
            deep = [deep]
        found = {
            "set": {1, 2},
            "nan": float("nan"),
            "object": object(),
            "deep": deep,
            "bytes": b"\xff\xfe",
            "huge integer": 10**5_000,
        }
        return found[what]

    async with _client(tmp_path, era, strange) as (client, _):
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "strange")))
        step = done["steps"][0]
        # A set has an obvious JSON form; nothing else here has one.
        assert step["status"] == ("completed" if what == "set" else "failed")
        assert len(json.dumps(done)) < 20_000


async def test_half_a_surrogate_pair_does_not_end_the_connection(tmp_path: Path, era: Era) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def half() -> dict[str, str]:
        """Half a character."""
        return {"text": "a\ud83db"}

    async with _client(tmp_path, era, half) as (client, _):
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "half")))
        assert done["steps"][0]["result"] == {"text": "a?b"}


HALF = "a\udfffb"
LONG = "x" * 20_000


async def test_text_that_is_no_unicode_is_refused_in_arguments_and_fails_no_server(tmp_path: Path, era: Era) -> None:
    async with _client(tmp_path, era, *Ledger().tools()) as (_, found):
        for tool, arguments in (
            ("get_execution", {"threadId": {"a": HALF}}),
            ("search_tools", {"query": [{HALF: 1}]}),
            ("get_tool_schemas", {"names": [HALF, 7]}),
        ):
            # The SDK's client cannot send it.
            result = await found.server.call_tool(tool, arguments)
            assert isinstance(result, CallToolResult) and result.structured_content is not None
            assert result.structured_content["error"]["code"] == "invalid_arguments"
        steps = plan(tool_step("a", "find", {"topic": HALF, "limit": HALF}))
        with pytest.raises(InvalidPlan, match="half of a surrogate pair"):
            await found.warden.execute_plan(steps, wait_seconds=60)


@pytest.mark.parametrize("options", ["20", 5, [], True, 0.5], ids=str)
async def test_options_that_are_no_object_are_refused(tmp_path: Path, era: Era, options: JsonValue) -> None:
    async with _client(tmp_path, era) as (client, _):
        for tool, arguments in (("execute_plan", {"plan": plan()}), ("run_goal", {"goal": "x"})):
            error = await refused(client, tool, **arguments, options=options)
            assert error["code"] == "invalid_arguments" and "waitSeconds" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"plan": plan(tool_step("a", "calculator", {"expression": {"$from": "a", "pointer": LONG}}))},
        {"plan": {"todoList": _steps("a", dependencies=[f"z{number}" for number in range(5_000)])}},
        {"plan": {"todoList": _steps("a")}, "options": {LONG: 1, "budgets": {LONG: 2}}},
        {"plan": {"todoList": _steps("a")}, "threadId": LONG},
    ],
    ids=["pointer", "dependencies", "options", "thread"],
)
async def test_a_refusal_quotes_little_of_what_was_sent(
    tmp_path: Path, era: Era, arguments: dict[str, JsonValue]
) -> None:
    async with _client(tmp_path, era) as (client, _):
        error = await refused(client, "execute_plan", **arguments)
        assert len(error["message"]) <= MAX_MESSAGE_CHARS and len(json.dumps(error)) < 20_000


async def test_a_tool_that_ends_the_process_by_mistake_fails_its_step(tmp_path: Path, era: Era) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def leave() -> str:
        """Leaves."""
        raise SystemExit(3)

    async with _client(tmp_path, era, leave) as (client, _):
        failed = await ok(client, "execute_plan", plan=plan(tool_step("a", "leave")))
        assert (failed["status"], failed["error"]["code"]) == ("failed", "tool_error")


class FailingStore(MemoryStore):
    """Fails when told to, as a full disk or a bug would."""

    failure: Exception | None = None

    async def append(self, append: Append) -> Lease | None:
        if self.failure is not None:
            raise self.failure
        return await super().append(append)

    async def thread(self, thread_id: str) -> tuple[Header, ...]:
        if self.failure is not None:
            raise self.failure
        return await super().thread(thread_id)


async def test_a_store_that_fails_is_said_and_the_server_goes_on(tmp_path: Path, era: Era) -> None:
    store = FailingStore()
    async with served(tmp_path, store=store) as found, Client(found.server, mode=era) as client:
        store.failure = StoreError("the disk is full")
        error = await refused(client, "run_goal", goal="x")
        assert (error["code"], error["message"]) == ("storage_error", "the disk is full")
        store.failure = None
        assert (await ok(client, "run_goal", goal="x"))["status"] == "suspended"


async def test_a_defect_of_ours_is_a_result_without_its_details(tmp_path: Path, era: Era) -> None:
    store = FailingStore()
    async with served(tmp_path, store=store) as found, Client(found.server, mode=era) as client:
        store.failure = RuntimeError("password=hunter2")
        error = await refused(client, "get_execution", threadId="x")
        assert error["code"] == "internal_error" and "hunter2" not in error["message"]
        store.failure = None
        assert (await refused(client, "get_execution", threadId="x"))["code"] == "unknown_thread"


@pytest.mark.parametrize("where", ["a file in its place", "somebody else's file"])
async def test_a_store_that_cannot_open_is_said_with_every_call(tmp_path: Path, era: Era, where: str) -> None:
    home = tmp_path / "home"
    if where == "a file in its place":
        home.write_text("not a folder")
    else:
        home.mkdir()
        (home / "planwarden.db").write_bytes(b"this is somebody's diary, not a database" * 100)
    warden = Warden(settings=Settings(home=home))
    async with Client(build_server(build_service_opener(warden)), mode=era) as client:
        assert len((await client.list_tools()).tools) == len(TOOLS)
        error = await refused(client, "run_goal", goal="x")
        assert error["code"] == "storage_error" and str(home) in error["message"]
        with pytest.raises(MCPError, match="storage_error"):
            await client.read_resource("planwarden://suspensions")
    if home.is_dir():
        assert (home / "planwarden.db").read_bytes().startswith(b"this is somebody's diary")
