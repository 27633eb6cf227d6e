"""What the calling model is told while it plans, calls and waits: enough to go on, and nothing that it said is lost."""

from pathlib import Path

import pytest
from mcp import Client
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.mcp.support import Document, ids_of, ok, question_of, refused, served, text_of
from tests.support.wardens import Ledger, confirm, model_step, plan, tool_step

pytestmark = pytest.mark.anyio

NOTED: Document = {"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}
THOUGHT: dict[str, JsonValue] = {"id": "b", "description": "think", "stepType": "reasoning"}


@requirement("caller:already-answered")
async def test_another_answer_to_a_closed_question_is_refused_and_names_the_open_one(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        first = await ok(client, "execute_plan", plan=plan(model_step("a", "note"), model_step("b", "note")))
        second = await ok(client, "submit_answer", **ids_of(first), content=NOTED)
        error = await refused(client, "submit_answer", **ids_of(first), content={"content": "something else"})
        assert error["code"] == "already_answered" and question_of(second)["suspensionId"] in error["message"]
        again = await ok(client, "submit_answer", **ids_of(first), content=NOTED)
        assert ids_of(again) == ids_of(second)


@requirement("caller:told-again")
async def test_a_second_question_about_a_step_has_instructions_schema_and_form_again(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        asked = await ok(client, "execute_plan", plan=plan(model_step("a", "note")), goal="note it")
        enforced = question_of(await ok(client, "submit_answer", **ids_of(asked), content={"content": "I noted it."}))
        assert "toolCalls" in enforced["instructions"] and enforced["tools"][0]["name"] == "note"
        for words in ('Goal: "note it"', "did not count", "Call note now", "You have 2 attempts left"):
            assert words in enforced["prompt"]


@requirement("caller:last-attempt")
async def test_a_refused_plan_is_told_why_and_that_the_next_attempt_is_the_last(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        asked = await ok(client, "run_goal", goal="note it")
        wrong: Document = plan({"id": "a", "description": "x", "requiredTools": ["teleport"]})
        again = await ok(client, "submit_answer", **ids_of(asked), content=wrong)
        question = question_of(again)
        assert "teleport" in question["prompt"] and "This is your last attempt" in question["prompt"]
        assert "TOOL" in question["instructions"].upper() and "todoList" in question["instructions"]
        failed = await ok(client, "submit_answer", **ids_of(again), content=wrong)
        assert failed["status"] == "failed"


@requirement("caller:revision-acknowledged")
async def test_an_answer_that_revises_the_plan_is_told_what_was_changed(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        steps = plan({**THOUGHT, "id": "a"}, model_step("b", "note"), model_step("c", "note"))
        asked = await ok(client, "execute_plan", plan=steps)
        revise: list[Document] = [
            {"op": "remove", "id": "c"},
            {"op": "add", "step": {"id": "d", "description": "more", "requiredTools": ["note"]}},
        ]
        result = await client.call_tool(
            "submit_answer", {**ids_of(asked), "content": {"content": "thought", "revise": revise}}
        )
        assert result.structured_content["revised"] == {"added": ["d"], "removed": ["c"]}
        assert "The plan was revised: added d; removed c" in text_of(result)


@requirement("caller:resolved-arguments")
async def test_a_call_whose_arguments_came_from_a_binding_is_shown_with_them(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        bound: JsonValue = {"$text": "ids of {topic}", "with": {"topic": {"$from": "a", "pointer": "/topic"}}}
        done = await ok(
            client,
            "execute_plan",
            plan=plan(tool_step("a", "find", {"topic": "x"}), tool_step("b", "note", {"text": bound})),
        )
        first, second = done["steps"]
        assert "actualToolCalls" not in first
        assert second["actualToolCalls"] == [
            {"toolName": "note", "arguments": {"text": "ids of x"}, "status": "succeeded"}
        ]


@requirement("caller:no-idle-synthesis")
async def test_the_text_of_a_last_reasoning_step_is_the_output_without_another_question(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        asked = await ok(client, "run_goal", goal="find and think")
        steps = plan(tool_step("a", "find", {"topic": "x"}), THOUGHT)
        asked = await ok(client, "submit_answer", **ids_of(asked), content=steps)
        done = await ok(client, "submit_answer", **ids_of(asked), content={"content": "They are 1, 2 and 3."})
        assert (done["status"], done["output"]) == ("completed", "They are 1, 2 and 3.")


@requirement("caller:no-idle-synthesis")
async def test_a_final_text_that_rests_on_only_some_steps_is_asked_for(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        asked = await ok(client, "run_goal", goal="find and think")
        steps = plan(tool_step("a", "find", {"topic": "x"}), {**THOUGHT, "dependencies": []})
        asked = await ok(client, "submit_answer", **ids_of(asked), content=steps)
        asked = await ok(client, "submit_answer", **ids_of(asked), content={"content": "I thought."})
        assert question_of(asked)["kind"] == "synthesis"


@requirement("caller:ways-at-once")
async def test_a_client_that_cannot_ask_gets_the_persons_ways_in_the_first_answer(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        asked = await ok(client, "execute_plan", plan=plan(confirm("a")))
        assert f"planwarden approve {question_of(asked)['suspensionId']}" in asked["nextAction"]
        assert "resume_execution" not in asked["nextAction"] and asked["awaiting"] == "human"


@requirement("caller:results-known")
async def test_get_tool_schemas_shows_the_shape_of_a_result_that_was_seen_and_who_is_asked(tmp_path: Path) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, Client(found.server) as client:
        [before] = (await ok(client, "get_tool_schemas", names=["find"]))["tools"]
        assert before["seenResult"].startswith("not known") and before["asks"] == "runs at once; asks nobody"
        await ok(client, "execute_plan", plan=plan(tool_step("a", "find", {"topic": "x"})))
        after, erase = (await ok(client, "get_tool_schemas", names=["find", "erase"]))["tools"]
        assert after["seenResult"] == {"ids": ["number"], "topic": "text"}
        assert erase["asks"].startswith("a person is asked before it runs")
