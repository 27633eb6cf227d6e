"""When a step runs, how often its calls are tried, and what completes it: TAEF, only recorded, successful calls."""

from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, ToolError
from planwarden.agent.common.schema_cost import ValueSize, measure_value
from planwarden.agent.core.binding.conditions import Matcher
from planwarden.agent.core.tool import Effect, Risk
from tests import kit
from tests.kit import Json, plan
from tests.support.wardens import pass_time, run

NOTE = kit.calls(("note", {"text": "x"}))
FIND = kit.calls(("find", {"topic": "t"}))
ERASE = kit.model_step("b", "erase")
MARKED = 'Sure.\n---JSON_OUTPUT_START---\n{"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}\n'


@pytest.mark.parametrize(
    ("tools", "script", "options", "status", "retries", "code"),
    [
        (["note"], [kit.says("I have written the note.")] * 3, {}, "failed", 2, "tools_not_called"),
        (["note"], [kit.says("I will write it."), NOTE], {}, "completed", 1, None),
        (["note"], [kit.says(MARKED + "---JSON_OUTPUT_END---")], {}, "completed", 0, None),
        (["find", "note"], [FIND, NOTE], {}, "completed", 0, None),
        (["find", "note"], [FIND, *[kit.says("done")] * 3], {}, "failed", 2, "tools_not_called"),
        (["broken"], [kit.calls(("broken", {}))] * 5, {}, "failed", 0, "iterations_exhausted"),
        (["broken"], [kit.calls(("broken", {})), *[kit.says("done")] * 3], {}, "failed", 2, "tools_not_called"),
        # Enforcement prompts are counted apart from iterations.
        (["note"], [kit.says("soon"), kit.says("soon"), NOTE], {"maxIterations": 1}, "completed", 2, None),
        (["note"], [kit.says("no")], {"taefMaxRetries": 0}, "failed", 0, "tools_not_called"),
        (["note"], [], {}, "failed", 0, "model_error"),
    ],
    ids=[
        "prose",
        "prose first",
        "in text",
        "in turn",
        "half",
        "failed",
        "failed once",
        "counted apart",
        "no retry",
        "no reply",
    ],
)
async def test_a_step_is_completed_by_calls_and_never_by_words(
    tools: list[str], script: list[JsonValue], options: Json, status: str, retries: int, code: str | None
) -> None:
    done, lines = await run(kit.model_step("a", *tools), script=script, options=options)
    [step] = done.steps
    assert (done.status, step.status, step.retries) == (status, status, retries)
    assert (step.validation_status == "passed") is (code is None)
    assert (step.error.code if step.error else None) == code and done.usage.model_calls == len(script)
    assert lines == (["note x"] if code is None else [])
    if code == "tools_not_called":
        proven = {call.tool_name for call in step.actual_tool_calls if call.status == "succeeded"}
        missing = ", ".join(tool for tool in tools if tool not in proven)
        assert step.error is not None and missing in step.error.message and step.validation_status == "failed"
        called = {call.tool_name for call in step.actual_tool_calls} - proven
        assert (
            ("no call of broken succeeded" in step.error.message) is ("it again" in step.error.message) is bool(called)
        )
    kinds = [seen.type for seen in done.observations or ()]
    if retries and code is None:
        assert kinds.index("VALIDATION_FAILED") < kinds.index("ENFORCEMENT_SENT") < kinds.index("TOOL_CALLED")


async def test_an_advisory_step_goes_on_with_a_warning() -> None:
    steps = (kit.model_step("a", "note", toolValidationMode="advisory"), kit.model_step("b", "note"))
    done, lines = await run(*steps, script=[kit.says("I would write it."), NOTE])
    found = [(step.status, step.validation_status) for step in done.steps]
    assert found == [("completed", "failed"), ("completed", "passed")] and lines == ["note x"]
    assert "VALIDATION_FAILED" in [seen.type for seen in done.observations or ()]
    assert "without the required calls" in (done.output or "")


async def test_required_tools_make_a_tool_step_and_without_tools_it_is_reasoning_whatever_the_plan_says() -> None:
    bare: Json = {"id": "b", "description": "y"}
    forged = kit.tool_step("c", "note", {"text": "c"}, status="completed", result="done", validationStatus="passed")
    script = [kit.says("thinking"), NOTE, kit.says("second")]
    done, lines = await run(kit.model_step("a", "note", stepType="reasoning"), bare, forged, script=script)
    first, second, _ = done.steps
    assert (first.step_type, first.retries) == ("tool", 1)
    assert (second.result, second.validation_status) == ("second", "skipped")
    # Fields of the engine in a plan complete nothing.
    assert done.status == "completed" and lines == ["note x", "note c"]


@kit.requirement("conditions:dependents")
async def test_a_failed_step_skips_its_dependents_and_the_execution_claims_no_success() -> None:
    done, lines = await run(
        kit.tool_step("a", "broken", dependencies=[]),
        kit.tool_step("b", "note", {"text": "b"}, dependencies=["a"]),
        kit.tool_step("c", "note", {"text": "c"}, dependencies=[]),
        kit.tool_step("d", "note", {"text": "d"}, dependencies=["b"]),
    )
    assert kit.statuses(done) == {"a": "failed", "b": "skipped", "c": "completed", "d": "skipped"}
    assert done.status == "failed" and lines == ["note c"]
    assert done.error is not None and "broken" in done.error.message


@pytest.mark.parametrize(
    ("tool", "arguments", "why", "right"),
    [
        ("note", {"text": "<the id>"}, "/text", {"text": "x"}),
        ("erase", {"ids": []}, "empty", None),
        ("find", {"topic": 7, "extra": 1}, "extra", {"topic": "t"}),
        ("find", {"topic": {"$text": "{a} {b}", "with": {"a": {"$from": "a"}}}}, "'b'", {"topic": "t"}),
        ("find", {"topic": {"$text": 7, "with": {"a": {"$from": "a"}}}}, "$text", {"topic": "t"}),
    ],
    ids=["placeholder", "empty list while an earlier step has data", "schema", "gap", "no template"],
)
async def test_a_call_with_wrong_arguments_never_reaches_the_tool(
    tool: str, arguments: Json, why: str, right: Json | None
) -> None:
    rest = [kit.says("cannot")] * 3 if right is None else [kit.calls((tool, right))]
    script = [kit.calls((tool, arguments)), *rest]
    done, lines = await run(kit.tool_step("a", "find", {"topic": "t"}), kit.model_step("b", tool), script=script)
    first, *more = done.steps[1].actual_tool_calls
    assert first.status == "failed" and first.error is not None and why in first.error.message
    assert [call.status for call in more] == ([] if right is None else ["succeeded"])
    assert lines == (["note x"] if tool == "note" else [])


def counting(topic: str) -> Json:
    return {"toolName": "calculator", "arguments": {"expression": topic}}


@kit.requirement("plan:placeholders")
@pytest.mark.parametrize(
    ("steps", "is_refused"),
    [
        ([kit.model_step("b", "find", "erase")], True),
        ([kit.tool_step("a", "find", {"topic": "t"}), kit.tool_step("c", "note", {"text": "x"}), ERASE], True),
        ([kit.tool_step("a", "find", {"topic": "t"}, dependencies=[]), {**ERASE, "dependencies": []}], False),
        ([kit.tool_step("a", "calculator", toolCalls=[counting("1+1"), counting("2+2")]), ERASE], False),
    ],
    ids=["same step", "two steps before", "another branch", "two numbers"],
)
async def test_an_empty_list_is_refused_where_the_step_can_see_data(steps: list[Json], is_refused: bool) -> None:
    script = [kit.calls(("erase", {"ids": []})), *[kit.says("cannot")] * 3]
    if len(steps) == 1:
        script = [FIND, *script]
    done, _ = await run(*steps, script=script)
    [erase] = [call for call in done.steps[-1].actual_tool_calls if call.tool_name == "erase"]
    assert erase.status == ("failed" if is_refused else "suspended")


@kit.requirement("plan:placeholders")
@pytest.mark.parametrize(("goal", "expected"), [("Note: TODO: call Ann", ["note TODO: call Ann"]), ("Call Ann", [])])
async def test_a_models_plan_may_say_what_the_goal_says(goal: str, expected: list[str]) -> None:
    reply: JsonValue = {"plan": plan(kit.tool_step("a", "note", {"text": "TODO: call Ann"}))}
    script: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": reply}] * 3
    ledger = kit.Ledger()
    async with kit.warden(ledger, script=script) as w:
        done = await w.run_goal(goal, options={"synthesize": False})
    assert (done.status, ledger.lines) == ("completed" if expected else "failed", expected)


@pytest.mark.parametrize(("mode", "expected"), [("strict", []), ("flexible", ["note aside"])])
async def test_strict_mode_refuses_tools_that_the_step_does_not_name_and_flexible_mode_runs_them(
    mode: str, expected: list[str]
) -> None:
    script = [kit.calls(("note", {"text": "aside"}), ("find", {"topic": "t"}))]
    done, lines = await run(kit.model_step("a", "find"), script=script, options={"toolMode": mode})
    assert done.status == "completed" and lines == expected


async def test_an_exhausted_budget_is_incomplete_after_the_open_questions_and_goes_on_with_a_larger_one() -> None:
    steps = plan(*(kit.tool_step(name, "note", {"text": name}) for name in "abc"), kit.confirm("d", dependencies=[]))
    ledger = kit.Ledger()
    async with kit.warden(ledger) as w:
        asked = await w.execute_plan(steps, options={"budgets": {"toolCalls": 2}})
        assert (asked.status, ledger.lines) == ("suspended", ["note a", "note b"])
        execution = await kit.decide(w, asked)
        assert (execution.status, ledger.lines) == ("incomplete", ["note a", "note b"])
        assert kit.statuses(execution) == {"a": "completed", "b": "completed", "c": "pending", "d": "in_progress"}
        with pytest.raises(InvalidArguments, match="toolCalls is used up"):
            await w.execute_plan(thread_id=execution.thread_id)
        more = await w.execute_plan(thread_id=execution.thread_id, options={"budgets": {"toolCalls": 4}})
    assert (more.status, ledger.lines) == ("completed", ["note a", "note b", "note c"])


@kit.requirement("rehearsal:nothing-done")
async def test_a_rehearsal_judges_the_conditions_whose_values_it_knows() -> None:
    wrong: Json = {"value": {"$from": "find", "pointer": "/ids"}, "matches": {"maxItems": 0}}
    unknown: Json = {"value": {"$from": "a"}, "matches": {}}
    done, _ = await run(
        kit.tool_step("find", "find", {"topic": "t"}),
        kit.tool_step("a", "note", {"text": "a"}),
        kit.tool_step("wrong", "note", {"text": "b"}, when=[unknown, wrong]),
        kit.tool_step("unknown", "note", {"text": "c"}, when=unknown, dependencies=["a"]),
        options={"rehearse": True},
    )
    assert [step.skipped_because for step in done.steps] == [None, None, "when", "a"]
    assert done.steps[2].skipped_reason == "when[1]: the value is a list of 3, and maxItems asks for 0"


FLAKY_STEPS = plan(kit.tool_step("a", "flaky", retry={"attempts": 3, "delayS": 10, "factor": 3}))


@dataclass
class Flaky:
    failures: int
    effect: Effect = "read"
    risk: Risk = "read"
    retryable: bool = False
    error: Exception | None = None
    keys: list[str] = field(default_factory=list[str])

    def tool(self) -> object:
        @planwarden.tool(name="flaky", risk=self.risk, effect=self.effect)
        async def flaky(context: planwarden.CallContext, number: int = 0) -> int:
            """Fails for a while."""
            self.keys.append(context.idempotency_key)
            if len(self.keys) <= self.failures:
                raise self.error or ToolError("come back later", retryable=self.retryable)
            return number

        return flaky


@kit.requirement("attempts:wait")
async def test_a_call_that_failed_is_made_again_after_longer_and_longer_waits() -> None:
    clock, flaky = kit.ManualClock(), Flaky(failures=2)
    async with kit.warden(tools=[flaky.tool()], store=kit.MemoryStore(clock)) as w:
        now = await w.execute_plan(FLAKY_STEPS)
        assert now.suspensions == () and now.next_action.startswith("Waiting until")
        for seconds, made in ((9, 1), (1, 2), (29, 2), (1, 3)):
            assert now.status == "suspended"
            now = await pass_time(w, clock, now, seconds)
            assert len(flaky.keys) == made
        seen = await w.get_execution(now.thread_id, observations_after=0)
    assert (now.status, now.usage.tool_calls) == ("completed", 3)
    # The tool sees the same key, so that a server can tell an attempt from another call.
    assert len({*flaky.keys}) == 1
    failed = [found.data for found in seen.observations or () if found.data.get("status") == "attempt_failed"]
    assert [found["message"] for found in failed] == ["come back later"] * 2


@kit.requirement("attempts:wait")
async def test_one_attempt_is_a_call_that_is_not_made_again() -> None:
    flaky = Flaky(failures=1)
    async with kit.warden(tools=[flaky.tool()]) as w:
        now = await w.execute_plan(plan(kit.tool_step("a", "flaky", retry={"attempts": 1})))
    assert (now.status, len(flaky.keys)) == ("failed", 1)


@kit.requirement("attempts:wait", "attempts:harmless")
@pytest.mark.parametrize(
    ("flaky", "attempts"),
    [
        (Flaky(9), 3),
        (Flaky(9, effect="effect"), 1),
        (Flaky(9, effect="effect", retryable=True), 3),
        (Flaky(9, effect="idempotent"), 3),
        (Flaky(9, error=RuntimeError("bug")), 3),
        (Flaky(9, effect="effect", error=RuntimeError("bug")), 1),
    ],
    ids=["read", "effect", "nothing happened", "idempotent", "any error of a read", "any error of an effect"],
)
async def test_an_effect_is_tried_again_only_if_its_tool_says_that_none_happened(flaky: Flaky, attempts: int) -> None:
    clock = kit.ManualClock()
    async with kit.warden(tools=[flaky.tool()], store=kit.MemoryStore(clock)) as w:
        now = await w.execute_plan(FLAKY_STEPS)
        for _ in range(3):
            now = await pass_time(w, clock, now, 100)
    assert (now.status, len(flaky.keys)) == ("failed", attempts)


@kit.requirement("attempts:covered")
async def test_an_approval_shows_and_covers_the_attempts() -> None:
    clock, flaky = kit.ManualClock(), Flaky(failures=2, effect="effect", risk="dangerous", retryable=True)
    async with kit.warden(tools=[flaky.tool()], store=kit.MemoryStore(clock)) as w:
        now = await w.execute_plan(FLAKY_STEPS)
        assert any("at most 3 calls in all" in sentence for sentence in now.suspensions[0].found)
        now = await kit.decide(w, now)
        for _ in range(2):
            now = await pass_time(w, clock, now, 100)
    assert (now.status, len(flaky.keys)) == ("completed", 3)


FOUND = kit.tool_step("find", "find", {"topic": "t"})
ORDERS: list[JsonValue] = [{"amount": 70, "status": "open"}, {"amount": 9000, "status": "paid"}]


def when(pointer: str, matches: Json) -> Json:
    return {"value": {"$from": "find", "pointer": pointer}, "matches": matches}


def given(value: JsonValue, matches: Json) -> Json:
    return {"value": {"$from": "find", "pointer": "/nothing", "default": value}, "matches": matches}


def note(text: str, **extra: JsonValue) -> Json:
    return kit.tool_step(text, "note", {"text": text}, **extra)


MISSPELT: Json = {"contains": {"properties": {"amuont": {"minimum": 1}}}}


@kit.requirement("conditions:judged", "conditions:closed")
@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (when("/ids", {"minItems": 4}), "the value is a list of 3, and minItems asks for 4"),
        ([when("/ids", {"minItems": 1}), when("/topic", {"const": "u"})], "when[1]: "),
        (
            [when("/ids", {"minItems": 1}), when("/idz", {"minItems": 1})],
            "when[1]: the pointer '/idz' into the result of step 'find' has nothing there",
        ),
        (when("/topic/length", {"minimum": 1}), "leads into text"),
        (when("", {"minItems": 5, "type": "array"}), 'the value is an object, and type asks for "array"'),
        (given(5, {"minimum": 3}), None),
        (given("7000", {"minimum": 5000}), 'the value is the text "7000", and minimum is for numbers'),
        (
            given({}, {"not": {"properties": {"status": {"const": "paid"}}}}),
            "the value has no 'status'; it has nothing",
        ),
        (given("7000", {"not": {"maximum": 5000}}), 'the value is the text "7000", and maximum is for numbers'),
        (given([], {"contains": {}}), "the value is an empty list, and contains asks for an entry"),
        (given(5, {"anyOf": [{"minItems": 1}, {"minimum": 9}]}), "the value is 5, and minItems is for lists"),
        (given(5, {"anyOf": [{"const": 4}, {"minimum": 3}], "allOf": [{"maximum": 5}]}), None),
        (given(5, {"allOf": [{"minimum": 3}, {"const": 4}]}), "the value is 5, and const asks for 4"),
        (given(ORDERS, MISSPELT), "has no 'amuont'; it has 'amount', 'status'"),
        (given(ORDERS, {"items": {"properties": {"status": {"const": "paid"}}}}), "'/0/status' is the text \"open\""),
        (given(ORDERS, {"contains": {"properties": {"amount": {"exclusiveMinimum": 5000}}}}), None),
        (given(ORDERS, {"not": {"contains": {"required": ["due"]}}}), None),
    ],
)
async def test_a_step_runs_only_if_its_conditions_hold_and_what_cannot_be_judged_does_not(
    conditions: JsonValue, reason: str | None
) -> None:
    done, lines = await run(FOUND, note("a", when=conditions), note("b"))
    step = done.steps[1]
    skipped = [seen.data for seen in done.observations or () if seen.type == "STEP_SKIPPED"]
    if reason is None:
        assert (step.status, lines, skipped) == ("completed", ["note a", "note b"], [])
    else:
        assert (step.status, step.skipped_because, step.error) == ("skipped", "when", None)
        assert reason in (step.skipped_reason or "") and lines == ["note b"]
        assert skipped == [{"because": "when", "reason": step.skipped_reason}]
    assert done.status == "completed"


@kit.requirement("conditions:judged")
async def test_a_value_that_cannot_be_checked_fails_its_step_and_holds_nothing_up() -> None:
    done, lines = await run(FOUND, note("a", when=given("\ud800", {"minLength": 1})), note("b", dependencies=["find"]))
    error = done.steps[1].error
    assert (done.steps[1].status, lines) == ("failed", ["note b"])
    assert error is not None and "could not be judged" in error.message
    pattern: Json = {"items": {"items": {"pattern": "^(?:a?){60}(?:[ab]{1,60}c){1,4}$"}}}
    with pytest.raises(LimitExceeded, match="more than 100000 values"):
        Matcher(pattern).find_mismatch([["ab" * 20 for _ in range(26)] for _ in range(4_000)])


@kit.requirement("conditions:judged")
def test_a_long_list_is_judged_whole_and_a_reason_looks_at_only_a_few_parts_of_it() -> None:
    rows: list[JsonValue] = [{"id": index} for index in range(10_000)]
    assert Matcher({"contains": {"properties": {"id": {"const": 9_999}}}}).find_mismatch(rows) is None
    assert Matcher({"not": {"contains": {"properties": {"id": {"const": -1}}}}}).find_mismatch(rows) is None
    said = 'the value is a list of 10000, which does not fit {"contains": {"properties": {"id": {"const": -1}}}}'
    assert Matcher({"contains": {"properties": {"id": {"const": -1}}}}).find_mismatch(rows) == said
    least: list[JsonValue] = [{"minimum": 20_000}] * 1_500
    many = Matcher({"items": {"properties": {"id": {"anyOf": least}}}})
    assert "a list of 90, which does not fit" in str(many.find_mismatch(rows[:90]))


@kit.requirement("conditions:judged")
async def test_a_value_that_many_conditions_look_at_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[JsonValue] = []

    def measure(value: JsonValue) -> ValueSize:
        measured.append(value)
        return measure_value(value)

    for module in ("common.schema", "core.binding.conditions", "core.control.step_start"):
        monkeypatch.setattr(f"planwarden.agent.{module}.measure_value", measure, raising=False)
    matches: list[Json] = [{"minItems": 1}, {"contains": {"const": 2}}, {"maxItems": 9}]
    conditions: list[JsonValue] = [given([1, 2, 3], schema) for schema in matches]
    done, lines = await run(FOUND, note("a", when=conditions))
    assert (done.status, lines, measured.count([1, 2, 3])) == ("completed", ["note a"], 1)


@kit.requirement("conditions:dependents")
async def test_what_binds_from_a_skipped_step_is_skipped_unless_it_has_a_default() -> None:
    bound: Json = {"$from": "a", "pointer": "/topic"}
    done, lines = await run(
        FOUND,
        kit.tool_step("a", "find", {"topic": "u"}, when=when("/ids", {"maxItems": 0})),
        kit.tool_step("bound", "note", {"text": bound}),
        note("after", dependencies=["bound"]),
        kit.tool_step("default", "note", {"text": {**bound, "default": "none"}}, dependencies=[]),
        note("judged", when={"value": bound, "matches": {}}, dependencies=[]),
    )
    skipped = {name for name, status in kit.statuses(done).items() if status == "skipped"}
    assert (done.status, skipped) == ("completed", {"a", "bound", "judged"})
    assert sorted(lines) == ["note after", "note none"]


async def test_the_last_step_answers_the_goal_in_whatever_order_the_steps_before_it_are_listed() -> None:
    needs = {"report": ["totals"], "totals": ["orders"], "orders": [], "answer": ["report"]}
    steps: list[Json] = [{"id": name, "description": name, "dependencies": [*others]} for name, others in needs.items()]
    script = [kit.says(text) for text in ("3 orders", "60 EUR", "fine", "All is well.")]
    done, _ = await run(*steps, script=script)
    assert (done.status, done.output) == ("completed", "All is well.")


async def test_a_final_text_after_a_failure_comes_after_the_engines_own_sentence() -> None:
    script = [kit.says("All is done.", "synthesize")]
    done, _ = await run(kit.tool_step("a", "broken"), script=script, options={"synthesize": True})
    assert done.status == "failed" and done.output is not None
    assert done.output.startswith("The plan failed: ") and done.output.endswith(". A model wrote:\n\nAll is done.")
