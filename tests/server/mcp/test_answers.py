"""What the calling model is told while it plans, calls and waits: what is new and what comes next, and nothing lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.tokens import LIMITS, execute_plan, run_goal, serve
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import LogUnreadable
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.mcp.tools.listing import TOOLS
from tests.kit import confirm, model_step, plan, requirement, tool_step
from tests.server.mcp.support import Desk, Document, ids_of, question_of, text_of

NOTED: Document = {"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}
THOUGHT: dict[str, JsonValue] = {"id": "b", "description": "think", "stepType": "reasoning"}
FIND = tool_step("a", "find", {"topic": "x"})


@requirement("mcp:cheap")
@pytest.mark.parametrize("steps", LIMITS)
async def test_a_goal_whose_steps_the_caller_does_itself_stays_within_its_bytes(tmp_path: Path, steps: int) -> None:
    async with serve(tmp_path) as client:
        goal, direct = await run_goal(client, steps), await execute_plan(client, steps)
        assert len(goal.messages) == steps + 3
        for form in ("structured", "text"):
            assert direct.sizes[form] * 2 < goal.sizes[form] <= LIMITS[steps]


async def test_no_answer_has_a_null_and_each_fits_the_output_schema_of_its_tool(desk: Desk) -> None:
    forms = {tool.name: Schema(tool.output) for tool in TOOLS}

    async def call(name: str, **arguments: Any) -> Document:
        result = await desk.call(name, **arguments)
        document: Document = result.structured_content
        assert forms[name].find_faults(document) == ()
        assert not [path for path in _find_nulls(document) if "/data/" not in path], text_of(result)
        return document

    await call("run_goal", goal="x")
    steps = plan(FIND, model_step("b", "note"), tool_step("c", "erase", {"ids": [1]}))
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


def _find_nulls(value: JsonValue, path: str = "") -> Iterator[str]:
    if value is None:
        yield path
    elif isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_nulls(part, f"{path}/{key}")


@requirement("mcp:cheap")
async def test_instructions_and_schemas_are_said_once_and_get_execution_has_what_answers_lack(desk: Desk) -> None:
    steps = plan(FIND, model_step("b", "note"), model_step("c", "note"), {**THOUGHT, "id": "d"})
    first = await desk.ok("execute_plan", plan=steps, goal="note it twice")
    assert first["steps"] == [{"id": "a", "status": "completed", "result": {"ids": [1, 2, 3], "topic": "x"}}]
    question = question_of(first)
    assert "TOOL STEP" in question["instructions"]
    assert [tool.keys() for tool in question["tools"]] == [{"name", "description", "inputSchema"}]

    second = await desk.ok("submit_answer", **ids_of(first), content=NOTED)
    assert second["steps"] == [{"id": "b", "status": "completed", "result": {"written": "x"}}]
    assert question_of(second).keys() == {"suspensionId", "stepId", "addressee", "kind", "prompt"}

    result = await desk.call("get_execution", threadId=first["threadId"])
    whole: Document = result.structured_content
    question = question_of(whole)
    assert whole["goal"] == question["goal"] == "note it twice"
    assert [step["status"] for step in whole["steps"]] == ["completed", "completed", "suspended", "pending"]
    assert '{"written": "x"}' in question["results"] and "REQUIRED TOOLS" in question["instructions"]
    assert question["tools"][0]["inputSchema"]["required"] == ["text"] and "anyOf" in question["answerSchema"]
    for needed in (question["instructions"], question["prompt"], question["results"], json.dumps("note it twice")):
        assert needed in text_of(result)

    third = await desk.ok("submit_answer", **ids_of(second), content=NOTED)
    assert "REASONING STEP" in question_of(third)["instructions"], "another kind of step"


@requirement("caller:already-answered")
async def test_who_answers_again_is_told_all_and_another_answer_is_refused_with_the_open_question(desk: Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan(model_step("a", "note"), model_step("b", "note")))
    lost = await desk.ok("submit_answer", **ids_of(asked), content=NOTED)
    again = await desk.ok("submit_answer", **ids_of(asked), content=NOTED)
    assert not {"instructions", "tools"} & question_of(lost).keys()
    assert {"instructions", "tools"} <= question_of(again).keys()
    assert again["steps"] == lost["steps"] and ids_of(again) == ids_of(lost)
    error = await desk.refused("submit_answer", **ids_of(asked), content={"content": "something else"})
    assert error["code"] == "already_answered" and question_of(lost)["suspensionId"] in error["message"]


@requirement("mcp:cheap")
async def test_what_happened_while_the_caller_thought_is_told_and_what_it_has_seen_is_only_named(desk: Desk) -> None:
    steps = (confirm("ask", dependencies=[]), *(model_step(name, "note", dependencies=[]) for name in "abc"))
    asked = await desk.ok("execute_plan", plan=plan(*steps))
    theirs, mine, *others = asked["suspensions"]
    assert (theirs["addressee"], mine["addressee"]) == ("human", "caller")
    assert ["instructions" in question for question in (mine, *others)] == [True, False, False]
    assert all("prompt" in question for question in (mine, *others))
    yes = planwarden.Decision(approved=True)
    await desk.warden.resume_execution(asked["threadId"], theirs["suspensionId"], yes)
    ids = {"threadId": asked["threadId"], "suspensionId": mine["suspensionId"]}
    after = await desk.ok("submit_answer", **ids, content=NOTED)
    assert [(step["id"], step["status"]) for step in after["steps"]] == [("ask", "completed"), ("a", "completed")]
    named = {"suspensionId", "stepId", "addressee", "kind"}
    assert [question.keys() for question in after["suspensions"]] == [named, named]
    last = await desk.call("submit_answer", **ids | {"suspensionId": others[0]["suspensionId"]}, content=NOTED)
    assert f"\nOpen: suspensionId {others[1]['suspensionId']} (step of c, for you)" in text_of(last)


@requirement("caller:told-again")
async def test_a_second_question_about_a_step_has_instructions_schema_and_form_again(desk: Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan(model_step("a", "note")), goal="note it")
    enforced = question_of(await desk.ok("submit_answer", **ids_of(asked), content={"content": "I noted it."}))
    assert "toolCalls" in enforced["instructions"] and enforced["tools"][0]["name"] == "note"
    for words in ('Goal: "note it"', "did not count", "Call note now", "You have 2 attempts left"):
        assert words in enforced["prompt"]


LAST = "This is your last attempt; after it the step fails."
ATTEMPTS: list[tuple[Document, Document | None, str]] = [
    ({"maxIterations": 1, "taefMaxRetries": 0}, None, LAST),
    ({"taefMaxRetries": 0}, None, "If your answer contains no tool call, the step fails."),
    ({"maxIterations": 1}, {"content": "I noted it."}, LAST),
    ({"maxIterations": 9}, {"toolCalls": [{"toolName": "note", "arguments": {}}]}, "You have 3 attempts left."),
    ({}, None, "REQUIRED TOOLS that still have to answer: note."),
]


@requirement("caller:last-attempt")
@pytest.mark.parametrize(("options", "answer", "told"), ATTEMPTS)
async def test_a_step_has_at_least_as_many_attempts_left_as_its_prompt_says(
    desk: Desk, options: Document, answer: Document | None, told: str
) -> None:
    asked = await desk.ok("execute_plan", plan=plan(model_step("a", "note")), options=options)
    if answer is not None:
        asked = await desk.ok("submit_answer", **ids_of(asked), content=answer)
    assert question_of(asked)["prompt"].endswith(told)


@requirement("caller:last-attempt")
async def test_a_refused_plan_is_told_why_and_that_the_next_attempt_is_the_last(desk: Desk) -> None:
    asked = await desk.ok("run_goal", goal="note it")
    wrong: Document = plan({"id": "a", "description": "x", "requiredTools": ["teleport"]})
    result = await desk.call("submit_answer", **ids_of(asked), content=wrong)
    again: Document = result.structured_content
    question = question_of(again)
    start = (
        "Goal: \"note it\"\n\nYour last plan was refused, and nothing has run: the plan names unknown tools: 'teleport'"
    )
    assert question["prompt"].startswith(start) and "This is your last attempt" in question["prompt"]
    assert text_of(result).index(start) < text_of(result).index("Two kinds of steps")
    assert "TOOL" in question["instructions"].upper() and "todoList" in question["instructions"]
    done = await desk.ok("submit_answer", **ids_of(again), content=wrong)
    assert (done["status"], done["error"]["code"]) == ("failed", "invalid_plan")


@requirement("caller:revision-acknowledged")
async def test_an_answer_that_revises_the_plan_is_told_what_was_changed(desk: Desk) -> None:
    steps = plan({**THOUGHT, "id": "a"}, model_step("b", "note"), model_step("c", "note"))
    asked = await desk.ok("execute_plan", plan=steps)
    added: Document = {"op": "add", "step": {"id": "d", "description": "more", "requiredTools": ["note"]}}
    content: Document = {"content": "thought", "revise": [{"op": "remove", "id": "c"}, added]}
    result = await desk.call("submit_answer", **ids_of(asked), content=content)
    assert result.structured_content["revised"] == {"added": ["d"], "removed": ["c"]}
    assert "The plan was revised: added d; removed c" in text_of(result)


async def test_a_new_session_finds_what_waits_for_nobody(desk: Desk) -> None:
    waits = plan(tool_step("a", "wait", {"seconds": 5_000}))
    waiting = await desk.ok("execute_plan", plan=waits, goal="Look later", options={"waitSeconds": 20})
    await desk.ok("execute_plan", plan=plan(model_step("a", "note")))
    result = await desk.call("list_suspensions")
    assert result.structured_content["total"] == 1
    [entry] = result.structured_content["unfinished"]
    assert entry == {"threadId": waiting["threadId"], "status": "suspended", "title": "Look later"}
    assert f'No question is open in threadId {waiting["threadId"]}, suspended: "Look later"' in text_of(result)


async def test_a_revision_that_only_gives_a_step_its_calls_is_told_as_a_change(desk: Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan({**THOUGHT, "id": "a"}, tool_step("b", "note", {"text": "old"})))
    calls: Document = {"toolCalls": [{"toolName": "note", "arguments": {"text": "new"}}]}
    content: Document = {"content": "thought", "revise": [{"op": "change", "id": "b", "set": calls}]}
    assert (await desk.ok("submit_answer", **ids_of(asked), content=content))["revised"] == {"changed": ["b"]}


async def test_a_refused_revision_is_reported_until_one_succeeds_and_even_when_its_step_completes(desk: Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan(model_step("a", "note"), model_step("b", "note")))
    bad: JsonValue = [{"op": "add"}]
    refused = await desk.ok("submit_answer", **ids_of(asked), content={"content": "Later.", "revise": bad})
    assert 'operation \'add\' has no object \'step\'; send [{"op": "add", "step": {' in question_of(refused)["prompt"]
    step: Document = {"id": "c", "description": "more", "requiredTools": ["note"]}
    good: Document = {"content": "Later.", "revise": [{"op": "add", "step": step}]}
    revised = await desk.ok("submit_answer", **ids_of(refused), content=good)
    assert revised["revised"] == {"added": ["c"]} and "revision" not in question_of(revised)["prompt"]
    result = await desk.call("submit_answer", **ids_of(revised), content={**NOTED, "revise": bad})
    [done] = result.structured_content["steps"]
    assert done["status"] == "completed" and "no object 'step'" in done["revisionRefused"]
    assert f"  its revision of the plan was refused: {json.dumps(done['revisionRefused'])}" in text_of(result)


async def test_no_later_step_begins_before_a_reasoning_step_has_heard_that_its_revision_was_refused(desk: Desk) -> None:
    asked = await desk.ok("execute_plan", plan=plan({**THOUGHT, "id": "a"}, tool_step("log", "note", {"text": "sent"})))
    bad: Document = {"content": "I removed the step log.", "revise": [{"op": "remove", "step": "log"}]}
    again = await desk.ok("submit_answer", **ids_of(asked), content=bad)
    assert desk.ledger.lines == []
    for words in (
        "was refused: operation 'remove' has no key 'step'; it takes id, op",
        "with a corrected revision or with none",
    ):
        assert words in question_of(again)["prompt"]
    good: Document = {**bad, "revise": [{"op": "remove", "id": "log"}]}
    assert (await desk.ok("submit_answer", **ids_of(again), content=good))["revised"] == {"removed": ["log"]}
    assert desk.ledger.lines == []


async def test_the_prompt_of_a_step_says_who_rejected_what_it_depends_on_and_what_was_skipped(desk: Desk) -> None:
    steps = plan(
        tool_step("a", "erase", {"ids": [1]}, onReject="continue"),
        tool_step("b", "erase", {"ids": [2]}, onReject="continue"),
        tool_step("small", "note", {"text": "x"}, when={"value": {"$from": "b"}, "matches": {"minimum": 1}}),
        {**THOUGHT, "id": "say", "dependencies": ["b", "small"]},
    )
    asked = await desk.ok("execute_plan", plan=steps)
    no = planwarden.Decision(approved=False, reason="not today")
    await desk.warden.resume_execution(asked["threadId"], question_of(asked)["suspensionId"], no)
    asked = await desk.ok("get_execution", threadId=asked["threadId"])
    thought = await desk.ok("resume_execution", **ids_of(asked), decision={"approved": False})
    lines = ("a rejected by a person: not today", "b rejected by the calling model; no person did", "small skipped: ")
    assert "\n".join(lines) in question_of(thought)["prompt"]
    done = await desk.ok("submit_answer", **ids_of(thought), content={"content": "Nothing was erased."})
    assert done["output"].startswith("a rejected by a person (erase rejected): not today - use erase\n")


@requirement("caller:resolved-arguments")
async def test_bound_arguments_are_shown_and_who_binds_a_number_to_text_is_told_what_to_write(desk: Desk) -> None:
    bound: JsonValue = {"$from": "a", "pointer": "/ids/0"}
    failed = await desk.ok("execute_plan", plan=plan(FIND, tool_step("b", "note", {"text": bound})))
    message = failed["steps"][1]["error"]["message"]
    right: JsonValue = {"$text": "{value}", "with": {"value": bound}}
    assert f'/text: 1 is not of type "string"; {json.dumps(right)} makes text of it' in message
    done = await desk.ok("execute_plan", plan=plan(FIND, tool_step("b", "note", {"text": right})))
    assert (done["status"], desk.ledger.lines) == ("completed", ["note 1"])
    first, second = done["steps"]
    assert "actualToolCalls" not in first
    assert second["actualToolCalls"] == [{"toolName": "note", "arguments": {"text": "1"}, "status": "succeeded"}]


@requirement("caller:no-idle-synthesis")
@pytest.mark.parametrize("is_last", [True, False])
async def test_the_text_of_a_last_step_that_rests_on_all_others_is_the_output_without_another_question(
    desk: Desk, is_last: bool
) -> None:
    asked = await desk.ok("run_goal", goal="find and think")
    thought = THOUGHT if is_last else {**THOUGHT, "dependencies": []}
    asked = await desk.ok("submit_answer", **ids_of(asked), content=plan(FIND, thought))
    done = await desk.ok("submit_answer", **ids_of(asked), content={"content": "They are 1, 2 and 3."})
    if is_last:
        assert (done["status"], done["output"]) == ("completed", "They are 1, 2 and 3.")
    else:
        assert question_of(done)["kind"] == "synthesis"


@requirement("caller:results-known")
async def test_get_tool_schemas_shows_the_shape_of_a_result_that_was_seen_and_who_is_asked(desk: Desk) -> None:
    [before] = (await desk.ok("get_tool_schemas", names=["find"]))["tools"]
    assert before["seenResult"].startswith("not known") and before["asks"] == "runs at once; asks nobody"
    await desk.ok("execute_plan", plan=plan(FIND))
    after, erase = (await desk.ok("get_tool_schemas", names=["find", "erase"]))["tools"]
    assert after["seenResult"] == {"ids": ["number"], "topic": "text"}
    assert erase["asks"].startswith("a person is asked before it runs")


async def test_get_tool_schemas_does_not_fail_over_a_log_that_cannot_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.ok("execute_plan", plan=plan(FIND))

    async def find(_: str) -> ExecutionState:
        raise LogUnreadable("its log is damaged")

    monkeypatch.setattr(desk.warden.service, "find", find)
    [tool] = (await desk.ok("get_tool_schemas", names=["find"]))["tools"]
    assert tool["seenResult"].startswith("not known")


async def test_text_and_structure_both_say_what_failed_what_was_skipped_and_what_was_done_before(desk: Desk) -> None:
    done = await desk.ok("execute_plan", plan=plan(tool_step("a", "note", {"text": "once"})))
    limit: JsonValue = {"value": {"$from": "find", "pointer": "/topic"}, "matches": {"minimum": 5000}}
    steps = (
        tool_step("find", "find", {"topic": "7000"}),
        tool_step("small", "note", {"text": "x"}, when=limit),
        tool_step("b", "broken"),
        tool_step("c", "find", {"topic": "x"}),
    )
    result = await desk.call("execute_plan", threadId=done["threadId"], plan=plan(*steps))
    failed: Document = result.structured_content
    text = text_of(result)
    statuses = {step["id"]: step["status"] for step in failed["steps"]}
    assert statuses == {"find": "completed", "small": "skipped", "b": "failed", "c": "skipped"}
    _, small, broken, _ = failed["steps"]
    assert "on fire" in broken["actualToolCalls"][0]["error"]["message"] and "on fire" in text
    why = 'the value is the text "7000", and minimum is for numbers'
    assert (small["skippedBecause"], small["skippedReason"]) == ("when", why)
    assert f"  skipped: {json.dumps(why)}" in text
    [effect] = failed["doneBefore"]
    assert (effect["toolName"], effect["arguments"], effect["stepId"]) == ("note", '{"text":"once"}', "a")
    assert failed["nextAction"].endswith("Completed by earlier plans of this thread, do not repeat: see doneBefore.")
    told = await desk.call("get_execution", threadId=done["threadId"])
    assert 'Done before: note "{\\"text\\":\\"once\\"}" in step "a" at ' in text_of(told)


@requirement("loops:pages")
async def test_a_client_reads_all_items_by_pages_and_is_told_that_there_are_more(desk: Desk) -> None:
    topics: list[JsonValue] = [str(number) for number in range(130)]
    step = tool_step("a", "find", {"topic": {"$from": "item"}}, forEach=topics, maxItems=130, maxConcurrent=32)
    done = await desk.ok("execute_plan", plan=plan(step), options={"waitSeconds": 60})
    [shown] = done["steps"]
    assert done["status"] == "completed" and len(shown["result"]) == 100 and shown["items"]["next"] == 100
    of_step: Document = {"threadId": done["threadId"], "stepId": "a"}
    text = text_of(await desk.call("get_execution", **of_step))
    assert "more of its 130 items: get_execution with stepId a and itemsFrom 100" in text
    [step_view] = (await desk.ok("get_execution", **of_step, itemsFrom=100))["steps"]
    assert [item["result"]["topic"] for item in step_view["itemResults"]] == topics[100:]
    assert "next" not in step_view["items"] and "result" not in step_view
    wrong = await desk.refused("get_execution", **of_step, itemsFrom=130)
    assert "items at index 0 to 129" in wrong["message"]
