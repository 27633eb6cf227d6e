"""What a client sees of bindings and of literal arguments: every refusal shows the right form, and nothing ran."""

import json
from pathlib import Path

import pytest
from mcp import Client
from pydantic import JsonValue

import planwarden
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, ids_of, ok, question_of, refused, served, text_of
from tests.support.wardens import Ledger, plan, tool_step

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@planwarden.tool(risk="read", effect="read")
async def crm() -> str:
    """Returns JSON as text."""
    return '{"customers": [{"name": "Ann"}]}'


def mail(**binding: JsonValue) -> dict[str, JsonValue]:
    return plan(tool_step("find", "crm"), tool_step("mail", "note", {"text": {"$from": "find", **binding}}))


@requirement("plan:literals")
async def test_every_literal_of_a_wrong_type_is_refused_at_once_and_nothing_runs(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        wrong = plan(
            tool_step("a", "note", {"text": "first"}),
            tool_step("b", "find", {"topic": 5, "limits": 2}),
            tool_step("c", "erase", {"ids": [1, "two", {"$from": "b", "pointer": "/ids/0"}]}),
        )
        error = await refused(client, "execute_plan", plan=wrong)
    assert error["code"] == "invalid_plan" and error["details"] == {}
    assert error["message"].removeprefix("nothing of the plan has run: ").split("; ") == [
        "step 'b', find: /topic: 5 is not of type \"string\"",
        "step 'b', find: Additional properties are not allowed ('limits' was unexpected)",
        "it takes 'topic', 'limit'",
        'step \'c\', erase: /ids/1: "two" is not of type "integer"',
        "get_tool_schemas shows what a tool takes",
    ]
    assert ledger.lines == []


@requirement("plan:literals")
async def test_a_planner_is_told_of_wrong_literals_and_corrects_them(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "run_goal", goal="note it", options={"synthesize": False})
        wrong = plan(tool_step("a", "note", {"text": 5}), tool_step("b", "note", {"text": "https://example.org"}))
        asked = await ok(client, "submit_answer", **ids_of(asked), content=wrong)
        prompt = question_of(asked)["prompt"]
        assert "step 'a', note: /text: 5 is not of type \"string\"" in prompt
        assert "step 'b', note: /text is 'https://example.org', an example address" in prompt
        right = plan(tool_step("a", "note", {"text": "x"}))
        done = await ok(client, "submit_answer", **ids_of(asked), content=right)
    assert done["status"] == "completed" and ledger.lines == ["note x"]


@requirement("plan:placeholders")
async def test_an_example_address_in_a_callers_plan_runs_with_a_warning(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        done = await ok(client, "execute_plan", plan=plan(tool_step("a", "note", {"text": "ann@example.org"})))
    assert done["status"] == "completed" and ledger.lines == ["note ann@example.org"]
    [warning] = done["warnings"]
    assert "step 'a', note: /text is 'ann@example.org', an example address" in warning


@requirement("references:text")
async def test_json_in_text_is_taken_with_parse_and_without_it_the_error_shows_the_key(
    tmp_path: Path, era: Era
) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=[*ledger.tools(), crm]) as found, Client(found.server, mode=era) as client:
        failed = await ok(client, "execute_plan", plan=mail(pointer="/customers/0/name"))
        assert failed["status"] == "failed"
        written = '{"$from": "find", "pointer": "/customers/0/name", "parse": "json"}'
        assert "leads into text" in failed["error"]["message"] and written in failed["error"]["message"]
        done = await ok(client, "execute_plan", plan=mail(pointer="/customers/0/name", parse="json"))
        assert done["status"] == "completed" and ledger.lines == ["note Ann"]
        error = await refused(client, "execute_plan", plan=mail(parse="yaml"))
    assert "'parse' is 'yaml', but the only value that it takes is \"json\"" in error["message"]


@requirement("thread:bindings", "failure:done")
async def test_a_failed_plan_is_continued_with_the_results_that_it_has(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        steps = [tool_step("found", "find", {"topic": "x"}), tool_step("told", "note", {"text": "once"})]
        failed = await ok(client, "execute_plan", plan=plan(*steps, tool_step("last", "broken")))
        assert "Completed, do not repeat: found, told; " in failed["nextAction"]
        assert '{"$from": "found"}' in failed["nextAction"]
        rest = plan(tool_step("last", "note", {"text": {"$from": "found", "pointer": "/topic"}}))
        done = await ok(client, "execute_plan", plan=rest, threadId=failed["threadId"])
        assert done["status"] == "completed" and ledger.lines == ["note once", "note x"]
        wrong = plan(tool_step("again", "note", {"text": {"$from": "broken"}}))
        error = await refused(client, "execute_plan", plan=wrong, threadId=failed["threadId"])
        assert "neither the plan nor an earlier execution of its thread has" in error["message"]
        error = await refused(client, "execute_plan", plan=rest)
    assert "run the plan on its thread" in error["message"]


@requirement("conditions:closed")
async def test_an_answer_says_which_condition_did_not_hold_and_why(tmp_path: Path, era: Era) -> None:
    value: JsonValue = {"$from": "find", "pointer": "/topic"}
    steps = [
        tool_step("find", "find", {"topic": "7000"}),
        tool_step("a", "note", {"text": "x"}, when={"value": value, "matches": {"minimum": 5000}}),
    ]
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool("execute_plan", {"plan": plan(*steps)})
    why = 'the value is the text "7000", and minimum is for numbers'
    step = next(step for step in result.structured_content["steps"] if step["id"] == "a")
    assert (step["skippedBecause"], step["skippedReason"], ledger.lines) == ("when", why, [])
    assert f"  skipped: {json.dumps(why)}" in text_of(result)
