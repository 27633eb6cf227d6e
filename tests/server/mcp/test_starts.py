"""Starting, asking without a plan and retrying over MCP: a key finds what was begun, and refusals say why."""

from pathlib import Path

import pytest
from mcp.types import ElicitResult, InputRequiredResult, InputResponses

from tests.kit import confirm, plan, requirement, tool_step
from tests.server.mcp import support

PLAN = plan(tool_step("a", "gate"))


@requirement("key:warning")
async def test_a_plan_sent_again_without_a_key_warns_in_text_and_structure(desk: support.Desk) -> None:
    first = await desk.ok("execute_plan", plan=plan(confirm("ask")))
    again = await desk.call("execute_plan", plan=plan(confirm("ask")))
    [warning] = again.structured_content["warnings"]
    assert "warnings" not in first and first["executionId"] in warning
    assert "Warning: " in support.text_of(again) and first["executionId"] in support.text_of(again)


@requirement("ask_person:answer")
async def test_a_form_of_the_host_answers_a_planless_question_in_one_call(tmp_path: Path, era: support.Era) -> None:
    person, form = support.approving(seat="7A"), {"type": "object", "properties": {"seat": {"type": "string"}}}
    async with support.open_desk(tmp_path, era, asks=person) as desk:
        done = await desk.ok("ask_person", message="Which seat?", form=form, addressee="Ann", details={"row": 7})
        [step] = done["steps"]
        assert done["status"] == "completed" and step["result"]["content"] == {"seat": "7A"}
    [shown] = person.shown
    assert "Which seat?" in shown.message and '"Ann"' in shown.message and '{"row": 7}' in shown.message


@requirement("ask_person:answer")
@pytest.mark.parametrize(
    ("form", "answer", "said"),
    [
        ({"properties": {"seat": {"type": "string"}}, "required": ["seat"]}, {}, '"seat" is a required property'),
        (None, {"reason": "x" * 3_000}, "the reason has 3000 characters, the limit is 2000"),
    ],
)
async def test_an_answer_that_cannot_be_recorded_leaves_the_question_open_and_names_its_thread(
    tmp_path: Path, era: support.Era, form: support.Document | None, answer: dict[str, str], said: str
) -> None:
    asking = {"message": "Which seat?", **({} if form is None else {"form": {"type": "object", **form}})}
    async with support.open_desk(tmp_path, era, asks=support.approving(**answer)) as desk:
        still = await desk.ok("ask_person", **asking)
        [waiting] = (await desk.ok("list_suspensions"))["suspensions"]
    assert (still["status"], still["threadId"]) == ("suspended", waiting["threadId"])
    assert "cannot be recorded" in still["nextAction"] and said in still["nextAction"]


@requirement("ask_person:once")
async def test_a_question_survives_the_server_and_its_key_finds_it_again(tmp_path: Path, era: support.Era) -> None:
    asking: support.Document = {"message": "Send it?", "key": "k"}
    async with support.open_desk(tmp_path, era, on_disk=True) as desk:
        first = await desk.ok("ask_person", **asking, waitSeconds=0)
        error = await desk.refused("ask_person", message="Send another?", key="k")
        assert (first["awaiting"], error["code"]) == ("human", "key_conflict")
    async with support.open_desk(tmp_path, era, on_disk=True) as desk:
        assert support.ids_of(await desk.ok("ask_person", **asking, waitSeconds=0)) == support.ids_of(first)
        await support.decide_on_page(desk)
        done = await desk.ok("ask_person", **asking)
        assert (done["status"], done["steps"][0]["result"]["approved"]) == ("completed", True)


@requirement("ask_person:once")
async def test_a_question_without_a_plan_is_asked_once_however_often_its_call_is_repeated(tmp_path: Path) -> None:
    asking: support.Document = {"message": "Send it?"}
    yes: InputResponses = {"decision": ElicitResult(action="accept", content={"decision": "approve"})}
    async with support.open_desk(tmp_path, asks=support.nobody, on_disk=True) as desk:
        question = await desk.client.session.call_tool("ask_person", asking, allow_input_required=True)
        assert isinstance(question, InputRequiredResult)
        state = question.request_state
        silent = await desk.client.session.call_tool("ask_person", asking, request_state=state)
        assert silent.structured_content["status"] == "suspended"
    async with support.open_desk(tmp_path, asks=support.nobody, on_disk=True) as desk:
        call = desk.client.session.call_tool
        for _ in range(5):
            result = await call("ask_person", asking, input_responses=yes, request_state=state)
            assert result.structured_content["status"] == "completed"
        assert (await desk.ok("list_suspensions"))["total"] == 0
        assert len(await desk.warden.service.store.executions(None, 10)) == 1


@requirement("retry:gated", "retry:refused")
async def test_no_retry_lets_a_model_approve_what_was_rejected_and_a_waiting_thread_is_busy(desk: support.Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan(tool_step("erase", "erase", {"ids": [1]})))
    assert (await desk.refused("retry_execution", threadId=asked["threadId"]))["code"] == "thread_busy"
    error = await desk.refused("retry_execution", threadId=support.question_of(asked)["suspensionId"])
    assert error["code"] == "unknown_thread" and asked["threadId"] in error["message"]
    await desk.ok("resume_execution", **support.ids_of(asked), decision={"approved": False})
    again = await desk.ok("retry_execution", threadId=asked["threadId"])
    claimed = await desk.ok("resume_execution", **support.ids_of(again), decision={"approved": True})
    assert (claimed["status"], claimed["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
