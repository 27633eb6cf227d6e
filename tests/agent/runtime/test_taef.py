"""TAEF: a step is completed only by recorded, successful calls of the tools it promised."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from tests.kit import Ledger, calls, confirm, model_step, plan, says, statuses, tool_step, warden
from tests.support.wardens import decide, run

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
NOTE = calls(("note", {"text": "x"}))
FIND = calls(("find", {"topic": "t"}))
MARKED = 'Sure.\n---JSON_OUTPUT_START---\n{"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}\n'


@pytest.mark.parametrize(
    ("tools", "script", "options", "status", "retries", "code"),
    [
        (["note"], [says("I have written the note.")] * 3, {}, "failed", 2, "tools_not_called"),
        (["note"], [says("I will write it."), NOTE], {}, "completed", 1, None),
        (["note"], [says(MARKED + "---JSON_OUTPUT_END---")], {}, "completed", 0, None),
        (["find", "note"], [FIND, NOTE], {}, "completed", 0, None),
        (["find", "note"], [FIND, *[says("done")] * 3], {}, "failed", 2, "tools_not_called"),
        (["broken"], [calls(("broken", {}))] * 5, {}, "failed", 0, "iterations_exhausted"),
        # Enforcement prompts are counted apart from iterations.
        (["note"], [says("soon"), says("soon"), NOTE], {"maxIterations": 1}, "completed", 2, None),
        (["note"], [says("no")], {"taefMaxRetries": 0}, "failed", 0, "tools_not_called"),
        (["note"], [], {}, "failed", 0, "model_error"),
    ],
    ids=[
        "prose",
        "prose first",
        "in text",
        "one after the other",
        "half",
        "failed calls",
        "counted apart",
        "no retry",
        "no reply",
    ],
)
async def test_a_step_is_completed_by_calls_and_never_by_words(
    tools: list[str], script: list[JsonValue], options: Json, status: str, retries: int, code: str | None
) -> None:
    done, lines = await run(model_step("a", *tools), script=script, options=options)
    [step] = done.steps
    assert (done.status, step.status, step.retries) == (status, status, retries)
    assert (step.validation_status == "passed") is (code is None)
    assert (step.error.code if step.error else None) == code and done.usage.model_calls == len(script)
    assert lines == (["note x"] if code is None else [])
    if code == "tools_not_called":
        proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
        missing = ", ".join(tool for tool in tools if tool not in proven)
        assert step.error is not None and missing in step.error.message and step.validation_status == "failed"
    kinds = [seen.type for seen in done.observations or ()]
    if retries and code is None:
        assert kinds.index("VALIDATION_FAILED") < kinds.index("ENFORCEMENT_SENT") < kinds.index("TOOL_CALLED")


async def test_an_advisory_step_goes_on_with_a_warning() -> None:
    steps = (model_step("a", "note", toolValidationMode="advisory"), model_step("b", "note"))
    done, lines = await run(*steps, script=[says("I would write it."), NOTE])
    found = [(step.status, step.validation_status) for step in done.steps]
    assert found == [("completed", "failed"), ("completed", "passed")] and lines == ["note x"]
    assert "VALIDATION_FAILED" in [seen.type for seen in done.observations or ()]
    assert "without the required calls" in (done.output or "")


async def test_required_tools_make_a_tool_step_and_without_tools_it_is_reasoning_whatever_the_plan_says() -> None:
    bare: Json = {"id": "b", "description": "y"}
    forged = tool_step("c", "note", {"text": "c"}, status="completed", result="done", validationStatus="passed")
    script = [says("thinking"), NOTE, says("second")]
    done, lines = await run(model_step("a", "note", stepType="reasoning"), bare, forged, script=script)
    first, second, _ = done.steps
    assert (first.step_type, first.retries) == ("tool", 1)
    assert (second.result, second.validation_status) == ("second", "skipped")
    # Fields of the engine in a plan complete nothing.
    assert done.status == "completed" and lines == ["note x", "note c"]


async def test_a_failed_step_skips_its_dependents_and_the_execution_claims_no_success() -> None:
    done, lines = await run(
        tool_step("a", "broken", dependencies=[]),
        tool_step("b", "note", {"text": "b"}, dependencies=["a"]),
        tool_step("c", "note", {"text": "c"}, dependencies=[]),
    )
    assert statuses(done) == {"a": "failed", "b": "skipped", "c": "completed"}
    assert done.status == "failed" and lines == ["note c"]
    assert done.error is not None and "broken" in done.error.message


@pytest.mark.parametrize(
    ("tool", "arguments", "why", "right"),
    [
        ("note", {"text": "<the id>"}, "/text", {"text": "x"}),
        ("erase", {"ids": []}, "empty", None),
        ("find", {"topic": 7, "extra": 1}, "extra", {"topic": "t"}),
    ],
    ids=["placeholder", "empty list while an earlier step has data", "schema"],
)
async def test_a_call_with_wrong_arguments_never_reaches_the_tool(
    tool: str, arguments: Json, why: str, right: Json | None
) -> None:
    rest = [says("cannot")] * 3 if right is None else [calls((tool, right))]
    script = [calls((tool, arguments)), *rest]
    done, lines = await run(tool_step("a", "find", {"topic": "t"}), model_step("b", tool), script=script)
    first, *more = done.steps[1].actual_tool_calls
    assert first.status == "failed" and first.error is not None and why in first.error.message
    assert [call.status for call in more] == ([] if right is None else ["succeeded"])
    assert lines == (["note x"] if tool == "note" else [])


@pytest.mark.parametrize(("mode", "expected"), [("strict", []), ("flexible", ["note aside"])])
async def test_strict_mode_refuses_tools_that_the_step_does_not_name_and_flexible_mode_runs_them(
    mode: str, expected: list[str]
) -> None:
    script = [calls(("note", {"text": "aside"}), ("find", {"topic": "t"}))]
    done, lines = await run(model_step("a", "find"), script=script, options={"toolMode": mode})
    assert done.status == "completed" and lines == expected


async def test_values_flow_between_steps_by_reference_and_a_pointer_to_nothing_fails_the_step() -> None:
    def take(name: str, pointer: str) -> Json:
        return tool_step(name, "note", {"text": {"$from": "a", "pointer": pointer}}, dependencies=["a"])

    done, lines = await run(tool_step("a", "find", {"topic": "~/€"}), take("b", "/topic"), take("c", "/nope/0"))
    assert lines == ["note ~/€"] and statuses(done)["b"] == "completed"
    error = done.steps[2].error
    assert error is not None and "'/nope/0'" in error.message


async def test_a_goal_is_planned_executed_and_synthesized() -> None:
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan(model_step("a", "find"))}},
        FIND,
        says("Found three.", "synthesize"),
    ]
    async with warden(Ledger(), script=script) as w:
        done = await w.run_goal("find things")
        # The script has run out.
        planless = await w.run_goal("anything")
    assert (done.status, done.output, done.usage.model_calls) == ("completed", "Found three.", 3)
    assert planless.error is not None and planless.error.code == "model_error"


async def test_a_bad_plan_of_the_model_gets_one_precise_repair_prompt() -> None:
    good, broken = plan(tool_step("a", "note", {"text": "x"})), plan(model_step("a", "teleport"))
    replies: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": it}} for it in (broken, good)]
    async with warden(Ledger(), script=[*replies, replies[0], replies[0]]) as w:
        rescued = await w.run_goal("write", options={"synthesize": False})
        refused = await w.run_goal("write")
    assert rescued.status == "completed"
    assert refused.status == "failed" and refused.error is not None and refused.error.code == "invalid_plan"
    assert "teleport" in refused.error.message


async def test_an_exhausted_budget_is_incomplete_and_goes_on_with_a_larger_one() -> None:
    steps = plan(*(tool_step(name, "note", {"text": name}) for name in "abc"))
    ledger = Ledger()
    async with warden(ledger) as w:
        execution = await w.execute_plan(steps, options={"budgets": {"toolCalls": 2}})
        assert (execution.status, ledger.lines) == ("incomplete", ["note a", "note b"])
        assert statuses(execution) == {"a": "completed", "b": "completed", "c": "pending"}
        with pytest.raises(InvalidArguments, match="toolCalls is used up"):
            await w.execute_plan(thread_id=execution.thread_id)
        more = await w.execute_plan(thread_id=execution.thread_id, options={"budgets": {"toolCalls": 3}})
    assert (more.status, ledger.lines) == ("completed", ["note a", "note b", "note c"])


async def test_a_question_outlives_a_spent_budget() -> None:
    steps = plan(
        confirm("a", dependencies=[]),
        tool_step("b", "note", {"text": "b"}, dependencies=[]),
        tool_step("c", "note", {"text": "c"}),
    )
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(steps, options={"budgets": {"toolCalls": 1}})
        assert asked.status == "suspended" and len(asked.suspensions) == 1
        ended = await decide(w, asked)
        assert ended.status == "incomplete" and statuses(ended)["c"] == "pending"
        done = await w.execute_plan(thread_id=asked.thread_id, options={"budgets": {"toolCalls": 2}})
    assert done.status == "completed"
