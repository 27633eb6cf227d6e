"""What answers leave out, and that nothing which a model needs is lost by it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.conversation import LIMITS, execute_plan, run_goal, serve
from mcp import Client
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.schema import Schema
from planwarden.server.mcp.tools import TOOLS
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Document, Era, ids_of, ok, question_of, served, text_of
from tests.support.wardens import Ledger, confirm, model_step, plan, tool_step

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ERAS)
NOTED: Document = {"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}
THOUGHT: dict[str, JsonValue] = {"id": "b", "description": "think", "stepType": "reasoning"}


@requirement("mcp:cheap")
@pytest.mark.parametrize("steps", LIMITS)
async def test_a_goal_whose_steps_the_caller_does_itself_stays_within_its_bytes(tmp_path: Path, steps: int) -> None:
    async with serve(tmp_path) as client:
        found = await run_goal(client, steps)
        assert found.total == max(found.structured, found.text) <= LIMITS[steps]
        assert len(found.messages) == steps + 3
        assert (await execute_plan(client, steps)).total < found.total / 2


@eras
async def test_no_answer_has_a_null_and_each_fits_the_output_schema_of_its_tool(tmp_path: Path, era: Era) -> None:
    forms = {tool.name: Schema(tool.output) for tool in TOOLS}
    steps = plan(tool_step("a", "find", {"topic": "x"}), model_step("b", "note"), tool_step("c", "erase", {"ids": [1]}))
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:

        async def call(name: str, **arguments: Any) -> Document:
            result = await client.call_tool(name, arguments)
            document: Document = result.structured_content
            assert forms[name].find_faults(document) == ()
            assert not [path for path in _find_nulls(document) if "/data/" not in path], text_of(result)
            return document

        await call("run_goal", goal="x")
        asked = await call("execute_plan", plan=steps)
        await call("get_execution", threadId=asked["threadId"])
        asked = await call("submit_answer", **ids_of(asked), content=NOTED)
        await call("list_suspensions")
        await call("resume_execution", **ids_of(asked), decision={"approved": True})
        await call("resume_execution", **ids_of(asked), decision={"approved": False})
        await call("get_execution", threadId=asked["threadId"], observationsAfter=0)
        await call("search_tools")
        await call("get_tool_schemas", names=["find", "nope"])
        await call("get_execution", threadId="nope")
        await call("cancel_execution", threadId=asked["threadId"])


@eras
async def test_instructions_and_schemas_are_said_once_and_results_when_they_are_new(tmp_path: Path, era: Era) -> None:
    steps = plan(tool_step("a", "find", {"topic": "x"}), model_step("b", "note"), model_step("c", "note"))
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        first = await ok(client, "execute_plan", plan=steps, goal="note it twice")
        assert [step["id"] for step in first["steps"]] == ["a"]
        assert first["steps"][0]["result"] == {"ids": [1, 2, 3], "topic": "x"}
        question = question_of(first)
        assert "TOOL STEP" in question["instructions"]
        assert [tool.keys() for tool in question["tools"]] == [{"name", "description", "inputSchema"}]

        second = await ok(client, "submit_answer", **ids_of(first), content=NOTED)
        assert second["steps"] == [{"id": "b", "status": "completed", "result": {"written": "x"}}]
        assert question_of(second).keys() == {"suspensionId", "stepId", "addressee", "kind", "prompt"}


@eras
async def test_another_kind_of_step_comes_with_its_own_instructions(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        first = await ok(client, "execute_plan", plan=plan(model_step("a", "note"), THOUGHT))
        second = await ok(client, "submit_answer", **ids_of(first), content=NOTED)
        assert "REASONING STEP" in question_of(second)["instructions"]


@requirement("mcp:cheap")
@eras
async def test_get_execution_has_all_that_answers_leave_out(tmp_path: Path, era: Era) -> None:
    steps = plan(tool_step("a", "find", {"topic": "x"}), model_step("b", "note"), model_step("c", "note"))
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=steps, goal="note it twice")
        asked = await ok(client, "submit_answer", **ids_of(asked), content=NOTED)
        result = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        whole: Document = result.structured_content
        question = question_of(whole)
        assert whole["goal"] == question["goal"] == "note it twice"
        assert [step["status"] for step in whole["steps"]] == ["completed", "completed", "suspended"]
        assert '{"written": "x"}' in question["results"] and "REQUIRED TOOLS" in question["instructions"]
        assert question["tools"][0]["inputSchema"]["required"] == ["text"] and "anyOf" in question["answerSchema"]
        for needed in (question["instructions"], question["prompt"], question["results"], json.dumps("note it twice")):
            assert needed in text_of(result)


@eras
async def test_who_answers_again_because_the_answer_was_lost_is_told_everything(tmp_path: Path, era: Era) -> None:
    steps = plan(model_step("a", "note"), model_step("b", "note"))
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=steps)
        lost = await ok(client, "submit_answer", **ids_of(asked), content=NOTED)
        again = await ok(client, "submit_answer", **ids_of(asked), content=NOTED)
        assert "instructions" not in question_of(lost) and "tools" not in question_of(lost)
        assert "instructions" in question_of(again) and "tools" in question_of(again)
        assert again["steps"] == lost["steps"] and ids_of(again) == ids_of(lost)


@eras
async def test_what_happened_while_the_caller_thought_is_in_its_next_answer(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    steps = plan(confirm("a", dependencies=[]), model_step("b", "note", dependencies=[]), {**THOUGHT, "id": "c"})
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=steps)
        theirs, mine = asked["suspensions"]
        assert (theirs["addressee"], mine["addressee"]) == ("human", "caller")
        thread_id = asked["threadId"]
        await found.warden.resume_execution(thread_id, theirs["suspensionId"], planwarden.Decision(approved=True))
        after = await ok(client, "submit_answer", threadId=thread_id, suspensionId=mine["suspensionId"], content=NOTED)
        assert [(step["id"], step["status"]) for step in after["steps"]] == [("a", "completed"), ("b", "completed")]
        assert after["steps"][0]["result"]["approved"] is True


@eras
async def test_questions_that_the_caller_has_seen_are_only_named(tmp_path: Path, era: Era) -> None:
    steps = plan(*(model_step(name, "note", dependencies=[]) for name in "abc"))
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=steps)
        assert ["instructions" in question for question in asked["suspensions"]] == [True, False, False]
        assert all("prompt" in question for question in asked["suspensions"])
        first = asked["suspensions"][0]["suspensionId"]
        left = await ok(client, "submit_answer", threadId=asked["threadId"], suspensionId=first, content=NOTED)
        assert [question.keys() for question in left["suspensions"]] == 2 * [
            {"suspensionId", "stepId", "addressee", "kind"}
        ]


@eras
async def test_a_failed_call_is_shown_with_its_arguments_and_why(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server, mode=era) as client:
        failed = await ok(
            client, "execute_plan", plan=plan(tool_step("a", "broken"), tool_step("b", "find", {"topic": "x"}))
        )
        first, second = failed["steps"]
        assert (first["status"], second["status"]) == ("failed", "skipped")
        assert "on fire" in first["actualToolCalls"][0]["error"]["message"]


def _find_nulls(value: JsonValue, path: str = "") -> Iterator[str]:
    if value is None:
        yield path
    elif isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_nulls(part, f"{path}/{key}")
