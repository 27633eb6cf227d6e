"""Retry and fork over MCP: what the answer says, what is refused, and that a task is the new execution."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from pydantic import JsonValue

import planwarden
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, ids_of, ok, question_of, refused, served
from tests.server.mcp.tasks_support import TakesTasks, start, until
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("era", ERAS)

STEPS = plan(
    tool_step("find", "find", {"topic": "owls"}),
    tool_step("mend", "mend", {"text": {"$from": "find", "pointer": "/topic"}}),
)


class Machine:
    """`mend` works once `is_mended`."""

    def __init__(self) -> None:
        self.ledger, self.is_mended = Ledger(), False

    def tools(self) -> list[object]:
        @planwarden.tool(name="mend", risk="read", effect="effect")
        async def mend(text: str) -> dict[str, JsonValue]:
            """Works once it is mended."""
            if not self.is_mended:
                raise planwarden.ToolError("it is broken")
            self.ledger.lines.append(f"mend {text}")
            return {"mended": text}

        return [*self.ledger.tools(), mend]


@requirement("retry:rest")
@both
async def test_the_failure_names_the_tool_that_goes_on_and_that_does(tmp_path: Path, era: Era) -> None:
    machine = Machine()
    async with served(tmp_path, tools=machine.tools()) as found, Client(found.server, mode=era) as client:
        failed = await ok(client, "execute_plan", plan=STEPS)
        assert failed["status"] == "failed" and "retry_execution" in failed["nextAction"]
        machine.is_mended = True
        done = await ok(client, "retry_execution", threadId=failed["threadId"])
        assert done["status"] == "completed" and done["executionId"] != failed["executionId"]
        whole = await ok(client, "get_execution", threadId=failed["threadId"], observationsAfter=0)
    assert whole["retryOf"] == failed["executionId"]
    assert [step.get("takenFrom") for step in whole["steps"]] == [failed["executionId"], None]
    [taken] = [seen for seen in whole["observations"] if seen["type"] == "STEPS_TAKEN_OVER"]
    assert taken["data"] == {"steps": ["find"], "calls": 0}
    assert machine.ledger.lines == ["mend owls"]


@requirement("retry:fork", "retry:refused")
@both
async def test_a_fork_takes_a_step_inputs_and_a_plan(tmp_path: Path, era: Era) -> None:
    machine = Machine()
    machine.is_mended = True
    who: JsonValue = {"$from": "inputs", "pointer": "/who"}
    steps: dict[str, Any] = {
        "inputs": {"type": "object", "properties": {"who": {"type": "string"}}},
        **plan(tool_step("find", "find", {"topic": "owls"}), tool_step("mend", "mend", {"text": who})),
    }
    async with served(tmp_path, tools=machine.tools()) as found, Client(found.server, mode=era) as client:
        done = await ok(client, "execute_plan", plan=steps, inputs={"who": "Ann"})
        thread = {"threadId": done["threadId"]}
        cases: tuple[tuple[dict[str, Any], str, str], ...] = (
            ({}, "not_retryable", "is completed; fromStep"),
            ({"fromStep": "z"}, "invalid_arguments", "has no step 'z'"),
            ({"fromStep": ""}, "invalid_arguments", "'fromStep' is empty"),
            ({"fromStep": "x" * 65}, "limit_exceeded", "the limit is 64"),
            ({"fromStep": "mend", "inputs": {"whom": "Bob"}}, "invalid_arguments", "whom"),
            ({"fromStep": "mend", "plan": {"todoList": []}}, "invalid_plan", "no steps"),
            ({"fromStep": "mend", "plan": {"todoList": [{"id": "mend"}]}}, "invalid_plan", "description"),
            ({"fromStep": "mend", "key": " "}, "invalid_arguments", "'key' is empty"),
            ({"fromStep": "mend", "from": "x"}, "invalid_arguments", "from"),
            ({"fromStep": 7}, "invalid_arguments", "must be text"),
        )
        for arguments, code, said in cases:
            error = await refused(client, "retry_execution", **thread, **arguments)
            assert error["code"] == code and said in error["message"], error
        forked = await ok(client, "retry_execution", **thread, fromStep="mend", inputs={"who": "Bob"})
        assert forked["status"] == "completed"
        changed = {
            **steps,
            **plan(tool_step("find", "find", {"topic": "owls"}), tool_step("mend", "mend", {"text": "x"})),
        }
        assert (await ok(client, "retry_execution", **thread, fromStep="mend", plan=changed))["status"] == "completed"
    assert machine.ledger.lines == ["mend Ann", "mend Bob", "mend x"]


@requirement("retry:refused")
@both
async def test_a_waiting_a_foreign_and_an_unknown_thread_are_refused(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=plan(confirm("ask")))
        error = await refused(client, "retry_execution", threadId=asked["threadId"])
        assert error["code"] == "thread_busy"
        error = await refused(client, "retry_execution", threadId=question_of(asked)["suspensionId"])
        assert error["code"] == "unknown_thread" and asked["threadId"] in error["message"]
        assert (await refused(client, "retry_execution", threadId="x"))["code"] == "unknown_thread"


@requirement("retry:gated")
@both
async def test_a_model_that_retries_cannot_approve_what_a_person_rejected(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    steps = plan(tool_step("erase", "erase", {"ids": [1]}))
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=steps)
        await ok(client, "resume_execution", **ids_of(asked), decision={"approved": False})
        again = await ok(client, "retry_execution", threadId=asked["threadId"])
        claimed = await ok(client, "resume_execution", **ids_of(again), decision={"approved": True})
        assert claimed["status"] == "suspended" and claimed["awaiting"] == "human"
    assert ledger.lines == []


@requirement("retry:once")
async def test_a_retry_as_a_task_is_the_new_execution_and_its_key_finds_it(tmp_path: Path) -> None:
    machine = Machine()
    async with (
        served(tmp_path, tools=machine.tools(), script=[]) as found,
        Client(found.server, mode="auto", extensions=[TakesTasks()]) as client,
    ):
        failed = await start(client, "execute_plan", plan=STEPS)
        await until(client, failed["taskId"], "completed")
        execution = await found.warden.service.engine.find(failed["taskId"])
        machine.is_mended = True
        first = await start(client, "retry_execution", threadId=execution.thread_id, key="k")
        await until(client, first["taskId"], "completed")
        again = await start(client, "retry_execution", threadId=execution.thread_id, key="k")
        assert again["taskId"] == first["taskId"] != failed["taskId"]
    assert machine.ledger.lines == ["mend owls"]


@requirement("retry:once")
@both
async def test_many_retries_at_once_do_the_rest_once(tmp_path: Path, era: Era) -> None:
    machine = Machine()
    async with served(tmp_path, tools=machine.tools()) as found, Client(found.server, mode=era) as client:
        failed = await ok(client, "execute_plan", plan=STEPS)
        machine.is_mended = True
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(client.call_tool, "retry_execution", {"threadId": failed["threadId"]})
    assert machine.ledger.lines == ["mend owls"]
