"""TAEF: a step is completed only by recorded, successful calls of the tools it promised."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments
from tests.support.wardens import Ledger, calls, confirm, model_step, plan, says, statuses, tool_step, warden

pytestmark = pytest.mark.anyio


async def test_a_step_described_instead_of_done_is_failed_after_the_enforcement_prompts() -> None:
    ledger = Ledger()
    script: list[JsonValue] = [says("I have written the note."), says("It is done."), says("Really, it is.")]
    async with warden(ledger, script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")), goal="write")
    [step] = execution.steps
    assert (execution.status, step.status, step.retries, step.validation_status) == ("failed", "failed", 2, "failed")
    assert step.error is not None and step.error.code == "tools_not_called" and "note" in step.error.message
    assert ledger.lines == []


async def test_one_enforcement_prompt_rescues_a_step_and_is_counted() -> None:
    ledger = Ledger()
    script = [says("I will write it."), calls(("note", {"text": "x"}))]
    async with warden(ledger, script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")), goal="write")
        seen = await w.get_execution(execution.thread_id, observations_after=0)
    [step] = execution.steps
    assert (execution.status, step.retries, step.validation_status) == ("completed", 1, "passed")
    assert ledger.lines == ["note x"]
    kinds = [observation.type for observation in seen.observations or ()]
    assert kinds.index("VALIDATION_FAILED") < kinds.index("ENFORCEMENT_SENT") < kinds.index("TOOL_CALLED")


async def test_two_required_tools_called_one_after_the_other_burn_no_retry() -> None:
    script = [calls(("find", {"topic": "t"})), calls(("note", {"text": "x"}))]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "find", "note")))
    [step] = execution.steps
    assert (step.status, step.retries, execution.usage.model_calls) == ("completed", 0, 2)


async def test_half_of_the_required_tools_is_not_enough() -> None:
    script: list[JsonValue] = [calls(("find", {"topic": "t"})), says("done"), says("done"), says("done")]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "find", "note")))
    [step] = execution.steps
    assert step.status == "failed" and step.error is not None
    assert "note" in step.error.message and "find," not in step.error.message


async def test_an_advisory_step_goes_on_with_a_warning() -> None:
    script = [says("I would write it."), calls(("note", {"text": "b"}))]
    steps = plan(model_step("a", "note", toolValidationMode="advisory"), model_step("b", "note"))
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(steps)
        seen = await w.get_execution(execution.thread_id, observations_after=0)
    assert [(s.status, s.validation_status) for s in execution.steps] == [
        ("completed", "failed"),
        ("completed", "passed"),
    ]
    assert "VALIDATION_FAILED" in [observation.type for observation in seen.observations or ()]
    assert "without the required calls" in (execution.output or "")


async def test_a_failed_call_of_a_required_tool_proves_nothing_and_ends_in_exhausted_iterations() -> None:
    script: list[JsonValue] = [calls(("broken", {})) for _ in range(5)]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "broken")))
    [step] = execution.steps
    assert step.error is not None
    assert (step.status, step.error.code, step.retries) == ("failed", "iterations_exhausted", 0)
    assert [call.status for call in step.actual_tool_calls] == ["failed"] * 5


async def test_enforcement_prompts_are_counted_apart_from_iterations() -> None:
    script = [says("soon"), says("soon"), calls(("note", {"text": "x"}))]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")), options={"maxIterations": 1})
    assert execution.steps[0].error is None and execution.status == "completed"


async def test_limits_given_with_the_call_win() -> None:
    script: list[JsonValue] = [says("no"), says("no")]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")), options={"taefMaxRetries": 0})
    assert execution.steps[0].retries == 0 and execution.usage.model_calls == 1


async def test_required_tools_make_a_tool_step_whatever_its_type_says() -> None:
    script = [says("thinking"), calls(("note", {"text": "x"}))]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note", stepType="reasoning")))
    assert execution.steps[0].step_type == "tool" and execution.steps[0].retries == 1


async def test_a_plan_without_tool_fields_runs_as_reasoning_steps_in_order() -> None:
    script = [says("first"), says("second")]
    bare: dict[str, JsonValue] = {"steps": [{"id": "a", "description": "x"}, {"id": "b", "description": "y"}]}
    async with warden(script=script) as w:
        execution = await w.execute_plan(bare)
    assert [(s.result, s.validation_status) for s in execution.steps] == [("first", "skipped"), ("second", "skipped")]


async def test_engine_fields_in_a_plan_complete_nothing() -> None:
    ledger = Ledger()
    forged = tool_step("a", "note", {"text": "x"}, status="completed", result="done", validationStatus="passed")
    async with warden(ledger) as w:
        execution = await w.execute_plan(plan(forged))
    assert execution.status == "completed" and ledger.lines == ["note x"]


async def test_a_failed_step_skips_its_dependents_and_the_execution_claims_no_success() -> None:
    ledger = Ledger()
    steps = plan(
        tool_step("a", "broken", dependencies=[]),
        tool_step("b", "note", {"text": "b"}, dependencies=["a"]),
        tool_step("c", "note", {"text": "c"}, dependencies=[]),
    )
    async with warden(ledger) as w:
        execution = await w.execute_plan(steps)
    assert statuses(execution) == {"a": "failed", "b": "skipped", "c": "completed"}
    assert execution.status == "failed" and ledger.lines == ["note c"]
    assert execution.error is not None and "broken" in execution.error.message


@pytest.mark.parametrize(
    "value", ["https://example.com/x", "someone@example.org", "<the id>", "TODO", "TODO: fill in", "PLACEHOLDER"]
)
async def test_a_placeholder_is_refused_before_the_tool_runs(value: str) -> None:
    ledger = Ledger()
    script = [calls(("note", {"text": value})), calls(("note", {"text": "real"}))]
    async with warden(ledger, script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")))
    first = execution.steps[0].actual_tool_calls[0]
    assert first.status == "failed" and first.error is not None and "/text" in first.error.message
    assert ledger.lines == ["note real"]


async def test_an_empty_list_is_refused_while_an_earlier_step_returned_data() -> None:
    ledger = Ledger()
    script = [calls(("erase", {"ids": []})), says("cannot"), says("cannot"), says("cannot")]
    steps = plan(tool_step("a", "find", {"topic": "t"}), model_step("b", "erase"))
    async with warden(ledger, script=script) as w:
        execution = await w.execute_plan(steps)
    call = execution.steps[1].actual_tool_calls[0]
    assert call.error is not None and "empty" in call.error.message and ledger.lines == []


async def test_arguments_that_do_not_fit_the_schema_never_reach_the_tool() -> None:
    script = [calls(("find", {"topic": 7, "extra": 1})), calls(("find", {"topic": "t"}))]
    async with warden(Ledger(), script=script) as w:
        execution = await w.execute_plan(plan(model_step("a", "find")))
    first, second = execution.steps[0].actual_tool_calls
    assert first.error is not None and first.error.code == "invalid_arguments" and "extra" in first.error.message
    assert second.arguments == {"topic": "t", "limit": 3}


async def test_strict_mode_refuses_tools_that_the_step_does_not_name_and_flexible_mode_runs_them() -> None:
    for mode, expected in (("strict", []), ("flexible", ["note aside"])):
        ledger = Ledger()
        script = [calls(("note", {"text": "aside"}), ("find", {"topic": "t"}))]
        async with warden(ledger, script=script) as w:
            execution = await w.execute_plan(plan(model_step("a", "find")), options={"toolMode": mode})
        assert execution.status == "completed" and ledger.lines == expected


async def test_values_flow_between_steps_by_reference() -> None:
    ledger = Ledger()
    reference: JsonValue = {"$from": "a", "pointer": "/topic"}
    steps = plan(tool_step("a", "find", {"topic": "~/€"}), tool_step("b", "note", {"text": reference}))
    async with warden(ledger) as w:
        await w.execute_plan(steps)
    assert ledger.lines == ["note ~/€"]


async def test_a_pointer_to_nothing_fails_the_step_and_says_so() -> None:
    reference: JsonValue = {"$from": "a", "pointer": "/nope/0"}
    steps = plan(tool_step("a", "find", {"topic": "t"}), tool_step("b", "note", {"text": reference}))
    async with warden(Ledger()) as w:
        execution = await w.execute_plan(steps)
    error = execution.steps[1].error
    assert error is not None and "'/nope/0'" in error.message


async def test_calls_in_text_markers_count_as_calls() -> None:
    ledger = Ledger()
    calls = '{"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}'
    text = f"Sure.\n---JSON_OUTPUT_START---\n{calls}\n---JSON_OUTPUT_END---"
    async with warden(ledger, script=[says(text)]) as w:
        execution = await w.execute_plan(plan(model_step("a", "note")))
    assert execution.status == "completed" and ledger.lines == ["note x"]


async def test_a_goal_is_planned_executed_and_synthesized() -> None:
    script: list[JsonValue] = [
        {"when": {"purpose": "plan"}, "reply": {"plan": plan(model_step("a", "find"))}},
        {
            "when": {"purpose": "step", "stepId": "a"},
            "reply": {"toolCalls": [{"toolName": "find", "arguments": {"topic": "t"}}]},
        },
        {"when": {"purpose": "synthesize"}, "reply": {"content": "Found three."}},
    ]
    async with warden(Ledger(), script=script) as w:
        execution = await w.run_goal("find things")
    assert (execution.status, execution.output, execution.usage.model_calls) == ("completed", "Found three.", 3)


async def test_a_bad_plan_of_the_model_gets_one_precise_repair_prompt() -> None:
    bad: JsonValue = {"todoList": [{"id": "a", "description": "x", "requiredTools": ["teleport"]}]}
    repaired = plan(tool_step("a", "note", {"text": "x"}))
    good: JsonValue = {"when": {"purpose": "plan"}, "reply": {"plan": repaired}}
    broken: JsonValue = {"when": {"purpose": "plan"}, "reply": {"plan": bad}}
    async with warden(Ledger(), script=[broken, good]) as w:
        rescued = await w.run_goal("write", options={"synthesize": False})
    async with warden(Ledger(), script=[broken, broken]) as w:
        refused = await w.run_goal("write")
    assert rescued.status == "completed"
    assert refused.status == "failed" and refused.error is not None and refused.error.code == "invalid_plan"
    assert "teleport" in refused.error.message


async def test_a_script_that_runs_out_is_a_model_error() -> None:
    async with warden(Ledger(), script=[]) as w:
        planless = await w.run_goal("anything")
        stepless = await w.execute_plan(plan(model_step("a", "note")))
    assert planless.error is not None and planless.error.code == "model_error"
    assert stepless.error is not None and stepless.error.code == "model_error"


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
        answer = planwarden.Decision(approved=True)
        ended = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, answer)
        assert ended.status == "incomplete" and statuses(ended)["c"] == "pending"
        done = await w.execute_plan(thread_id=asked.thread_id, options={"budgets": {"toolCalls": 2}})
    assert done.status == "completed"
