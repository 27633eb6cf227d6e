"""Starting, asking without a plan and retrying over MCP: a key finds what was begun, and refusals say why."""

from pathlib import Path

import anyio
import pytest
from mcp.types import ElicitResult, InputRequiredResult, InputResponses
from pydantic import JsonValue

import planwarden
from tests.kit import confirm, plan, requirement, tool_step
from tests.server.mcp.support import (
    Desk,
    Document,
    Era,
    approving,
    decide_on_page,
    ids_of,
    nobody,
    open_desk,
    question_of,
    text_of,
)
from tests.server.mcp.tasks_support import TakesTasks, start

pytestmark = pytest.mark.anyio

PLAN = plan(tool_step("a", "gate"))
STEPS = plan(
    tool_step("find", "find", {"topic": "owls"}),
    tool_step("mend", "mend", {"text": {"$from": "find", "pointer": "/topic"}}),
)


class Machine:
    """`mend` works once `is_mended`."""

    def __init__(self) -> None:
        self.is_mended, self.lines = False, list[str]()

    def tool(self) -> object:
        @planwarden.tool(name="mend", risk="read", effect="effect")
        async def mend(text: str) -> dict[str, JsonValue]:
            """Works once it is mended."""
            if not self.is_mended:
                raise planwarden.ToolError("it is broken")
            self.lines.append(f"mend {text}")
            return {"mended": text}

        return mend


@requirement("key:warning")
async def test_a_plan_sent_again_without_a_key_warns_in_text_and_structure(desk: Desk) -> None:
    first = await desk.ok("execute_plan", plan=plan(confirm("ask")))
    again = await desk.call("execute_plan", plan=plan(confirm("ask")))
    [warning] = again.structured_content["warnings"]
    assert "warnings" not in first and first["executionId"] in warning
    assert "Warning: " in text_of(again) and first["executionId"] in text_of(again)


@requirement("ask_person:answer")
async def test_a_form_of_the_host_answers_a_question_without_a_plan_in_the_same_call(tmp_path: Path, era: Era) -> None:
    person, form = approving(seat="7A"), {"type": "object", "properties": {"seat": {"type": "string"}}}
    async with open_desk(tmp_path, era, asks=person) as desk:
        done = await desk.ok("ask_person", message="Which seat?", form=form, addressee="Ann", details={"row": 7})
        [step] = done["steps"]
        assert done["status"] == "completed" and step["result"]["content"] == {"seat": "7A"}
    [shown] = person.shown
    assert "Which seat?" in shown.message and '"Ann"' in shown.message and '{"row": 7}' in shown.message


@requirement("ask_person:answer")
async def test_a_client_without_forms_waits_for_the_answer_of_another_channel(desk: Desk) -> None:
    results = list[Document]()

    async def ask() -> None:
        results.append(await desk.ok("ask_person", message="Send it?", waitSeconds=300))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not (await desk.ok("list_suspensions"))["total"]:
                pass
            await decide_on_page(desk)
    assert results[0]["status"] == "completed"


@requirement("ask_person:once")
async def test_a_question_survives_the_server_and_its_key_finds_it_again(tmp_path: Path, era: Era) -> None:
    asking: Document = {"message": "Send it?", "key": "k"}
    async with open_desk(tmp_path, era, on_disk=True) as desk:
        first = await desk.ok("ask_person", **asking, waitSeconds=0)
        error = await desk.refused("ask_person", message="Send another?", key="k")
        assert (first["awaiting"], error["code"]) == ("human", "key_conflict")
    async with open_desk(tmp_path, era, on_disk=True) as desk:
        assert ids_of(await desk.ok("ask_person", **asking, waitSeconds=0)) == ids_of(first)
        await decide_on_page(desk)
        done = await desk.ok("ask_person", **asking)
        assert (done["status"], done["steps"][0]["result"]["approved"]) == ("completed", True)


@requirement("ask_person:once")
async def test_a_question_without_a_plan_is_asked_once_however_often_its_call_is_repeated(tmp_path: Path) -> None:
    asking: Document = {"message": "Send it?"}
    yes: InputResponses = {"decision": ElicitResult(action="accept", content={"decision": "approve"})}
    async with open_desk(tmp_path, asks=nobody, on_disk=True) as desk:
        question = await desk.client.session.call_tool("ask_person", asking, allow_input_required=True)
        assert isinstance(question, InputRequiredResult)
        state = question.request_state
        silent = await desk.client.session.call_tool("ask_person", asking, request_state=state)
        assert silent.structured_content["status"] == "suspended"
    async with open_desk(tmp_path, asks=nobody, on_disk=True) as desk:
        call = desk.client.session.call_tool
        for _ in range(5):
            result = await call("ask_person", asking, input_responses=yes, request_state=state)
            assert result.structured_content["status"] == "completed"
        assert (await desk.ok("list_suspensions"))["total"] == 0
        assert len(await desk.warden.service.engine.store.executions(None, 10)) == 1


@requirement("key:once", "retry:once")
async def test_a_task_started_or_retried_again_with_its_key_is_the_same_task(tmp_path: Path) -> None:
    machine = Machine()
    async with open_desk(tmp_path, "auto", machine.tool(), script=[], extensions=[TakesTasks()]) as desk:
        failed = await start(desk.client, "execute_plan", plan=STEPS, key="k")
        await failed.until("completed")
        again = await start(desk.client, "execute_plan", plan=STEPS, key="k")
        assert (again.task_id, again.created["status"]) == (failed.task_id, "completed")
        execution = await desk.warden.service.engine.find(failed.task_id)
        machine.is_mended = True
        first = await start(desk.client, "retry_execution", threadId=execution.thread_id, key="k2")
        await first.until("completed")
        again = await start(desk.client, "retry_execution", threadId=execution.thread_id, key="k2")
        assert again.task_id == first.task_id != failed.task_id
    assert machine.lines == ["mend owls"]


@requirement("retry:rest")
async def test_the_failure_names_the_tool_that_goes_on_and_that_does(tmp_path: Path) -> None:
    machine = Machine()
    async with open_desk(tmp_path, "auto", machine.tool()) as desk:
        failed = await desk.ok("execute_plan", plan=STEPS)
        assert failed["status"] == "failed" and "retry_execution" in failed["nextAction"]
        machine.is_mended = True
        done = await desk.ok("retry_execution", threadId=failed["threadId"])
        assert done["status"] == "completed" and done["executionId"] != failed["executionId"]
        whole = await desk.ok("get_execution", threadId=failed["threadId"])
        await desk.ok("retry_execution", threadId=failed["threadId"], fromStep="mend")
    assert whole["retryOf"] == failed["executionId"]
    assert [step.get("takenFrom") for step in whole["steps"]] == [failed["executionId"], None]
    assert machine.lines == ["mend owls", "mend owls"]


@requirement("retry:gated", "retry:refused")
async def test_a_model_that_retries_cannot_approve_what_a_person_rejected_and_a_waiting_thread_is_busy(
    desk: Desk,
) -> None:
    asked = await desk.ok("execute_plan", plan=plan(tool_step("erase", "erase", {"ids": [1]})))
    assert (await desk.refused("retry_execution", threadId=asked["threadId"]))["code"] == "thread_busy"
    error = await desk.refused("retry_execution", threadId=question_of(asked)["suspensionId"])
    assert error["code"] == "unknown_thread" and asked["threadId"] in error["message"]
    await desk.ok("resume_execution", **ids_of(asked), decision={"approved": False})
    again = await desk.ok("retry_execution", threadId=asked["threadId"])
    claimed = await desk.ok("resume_execution", **ids_of(again), decision={"approved": True})
    assert (claimed["status"], claimed["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
