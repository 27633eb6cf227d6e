"""Conditions: a step runs only if its values fit, and others go on without it."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
FIND = tool_step("find", "find", {"topic": "t"})
IDS: Json = {"$from": "find", "pointer": "/ids"}


def when(pointer: str, matches: Json) -> Json:
    return {"value": {"$from": "find", "pointer": pointer}, "matches": matches}


@requirement("conditions:judged")
@pytest.mark.parametrize(
    ("conditions", "runs"),
    [
        (when("/ids", {"minItems": 1}), True),
        (when("/ids", {"minItems": 4}), False),
        ([when("/ids", {"minItems": 1}), when("/topic", {"const": "t"})], True),
        ([when("/ids", {"minItems": 1}), when("/topic", {"const": "u"})], False),
        (when("/nothing", {}), False),
        ({"value": {"$from": "find", "pointer": "/nothing", "default": 5}, "matches": {"minimum": 3}}, True),
        (when("", {"minItems": 5, "maxItems": 1, "type": "array"}), False),
    ],
    ids=["holds", "does not", "both hold", "one does not", "missing", "default", "never"],
)
async def test_a_step_runs_only_if_its_conditions_hold(conditions: JsonValue, runs: bool) -> None:
    ledger = Ledger()
    steps = plan(FIND, tool_step("a", "note", {"text": "a"}, when=conditions), tool_step("b", "note", {"text": "b"}))
    async with warden(ledger) as w:
        done = await w.execute_plan(steps)
        seen = await w.get_execution(done.thread_id, observations_after=0)
    assert (done.status, statuses(done)["a"]) == ("completed", "completed" if runs else "skipped")
    assert ledger.lines == (["note a", "note b"] if runs else ["note b"])
    reason = next(step for step in done.steps if step.id == "a").skipped_reason
    skipped = [found.data for found in seen.observations or () if found.type == "STEP_SKIPPED"]
    assert skipped == ([] if runs else [{"because": "when", "reason": reason}])


ORDERS: list[JsonValue] = [{"amount": 70, "status": "open"}, {"amount": 9000, "status": "paid"}]


@requirement("conditions:closed")
@pytest.mark.parametrize(
    ("value", "matches", "reason"),
    [
        ("7000", {"minimum": 5000}, 'the value is the text "7000", and minimum is for numbers'),
        (True, {"minimum": 0}, "the value is true, and minimum is for numbers"),
        ([6000], {"exclusiveMinimum": 5}, "the value is a list, and exclusiveMinimum is for numbers"),
        (70, {"minimum": 5000}, "the value is 70, and minimum asks for 5000"),
        ([], {"minItems": 1}, "the value is a list of 0, and minItems asks for 1"),
        ({}, {"not": {"properties": {"status": {"const": "paid"}}}}, "the value has no 'status'; it has nothing"),
        ("7000", {"not": {"maximum": 5000}}, 'the value is the text "7000", and maximum is for numbers'),
        ("7000", {"anyOf": [{"minimum": 5}, {"maximum": 5}]}, "minimum is for numbers"),
        (
            ORDERS,
            {"contains": {"properties": {"amuont": {"minimum": 1}}}},
            "no entry of the value fits, of 2: the value at ",
        ),
        (
            ORDERS,
            {"contains": {"properties": {"amuont": {"minimum": 1}}}},
            "has no 'amuont'; it has 'amount', 'status'",
        ),
        (ORDERS, {"not": {"contains": {"properties": {"overdue": {"const": True}}}}}, "has no 'overdue'"),
        (
            ORDERS,
            {"items": {"properties": {"status": {"const": "paid"}}}},
            "the value at '/0/status' is the text \"open\"",
        ),
        (ORDERS, {"contains": {"required": ["amount"], "properties": {"status": {"const": "late"}}}}, '"late"'),
        (ORDERS, {"contains": {"properties": {"amount": {"exclusiveMinimum": 5000}}}}, None),
        (ORDERS, {"not": {"contains": {"required": ["overdue"]}}}, None),
        ("x", {"anyOf": [{"type": "number", "minimum": 5}, {"minLength": 1}]}, None),
        (7000, {"type": "number", "minimum": 5000, "not": {"const": 7001}}, None),
    ],
)
async def test_what_a_condition_cannot_judge_does_not_match_and_the_step_says_why(
    value: JsonValue, matches: Json, reason: str | None
) -> None:
    ledger = Ledger()
    given: Json = {"$from": "inputs", "pointer": "/value"}
    step = tool_step("a", "note", {"text": "a"}, when={"value": given, "matches": matches})
    async with warden(ledger) as w:
        done = await w.execute_plan({**plan(step), "inputs": {"properties": {"value": {}}}}, inputs={"value": value})
    [found] = done.steps
    assert ledger.lines == (["note a"] if reason is None else [])
    assert (found.skipped_because, found.error) == (None if reason is None else "when", None)
    assert reason is None if found.skipped_reason is None else reason is not None and reason in found.skipped_reason


@requirement("conditions:closed")
async def test_a_skipped_step_names_which_condition_and_the_pointer_to_nothing() -> None:
    steps = plan(
        FIND,
        tool_step("a", "note", {"text": "a"}, when=[when("/ids", {"minItems": 1}), when("/idz", {"minItems": 1})]),
    )
    async with warden(Ledger()) as w:
        done = await w.execute_plan(steps)
    assert (
        done.steps[1].skipped_reason == "when[1]: the pointer '/idz' into the result of step 'find' has nothing there"
    )


@requirement("conditions:dependents")
async def test_what_binds_from_a_skipped_step_is_skipped_unless_it_has_a_default() -> None:
    ledger = Ledger()
    skipped = tool_step("a", "find", {"topic": "u"}, when=when("/ids", {"maxItems": 0}))
    bound: Json = {"$from": "a", "pointer": "/topic"}
    steps = plan(
        FIND,
        skipped,
        tool_step("bound", "note", {"text": bound}),
        tool_step("after", "note", {"text": "after"}, dependencies=["bound"]),
        tool_step("default", "note", {"text": {**bound, "default": "none"}}, dependencies=[]),
        tool_step("judged", "note", {"text": "x"}, when={"value": bound, "matches": {}}, dependencies=[]),
    )
    async with warden(ledger) as w:
        done = await w.execute_plan(steps)
    assert statuses(done) == {
        "find": "completed",
        "a": "skipped",
        "bound": "skipped",
        "after": "completed",
        "default": "completed",
        "judged": "skipped",
    }
    assert (done.status, sorted(ledger.lines)) == ("completed", ["note after", "note none"])


@requirement("conditions:dependents")
async def test_a_step_that_was_skipped_for_want_of_a_failed_one_still_stops_its_dependents() -> None:
    ledger = Ledger()
    steps = plan(
        tool_step("broken", "broken"), tool_step("b", "note", {"text": "b"}), tool_step("c", "note", {"text": "c"})
    )
    async with warden(ledger) as w:
        done = await w.execute_plan(steps)
    assert (statuses(done)["c"], done.status, ledger.lines) == ("skipped", "failed", [])


@requirement("conditions:faults")
@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("yes", "when"),
        ({"value": 3, "matches": {}}, "when"),
        ({"value": {"$from": "find"}}, "matches"),
        ({"value": {"$from": "find"}, "matches": {"type": "text"}}, "'matches' is not a usable JSON Schema"),
        ({"value": {"$from": "find"}, "matches": {"$ref": "file:///etc/passwd"}}, "'matches' has no key '$ref'"),
        ({"value": {"$from": "find"}, "matches": {"pattern": "(a{1,999}){1,999}"}}, "not a usable JSON Schema"),
        ({"value": {"text": "x"}, "matches": {}}, "'value' must be a binding"),
        ({"value": {"$from": "nowhere"}, "matches": {}}, "unknown step"),
        ({"value": {"$from": "find"}, "matches": {}, "is": 1}, "has no key 'is'"),
        ([when("/ids", {})] * 21, "when"),
        (when("/ids", {"$gt": 5}), "when[0]: 'matches' has no key '$gt' (write 'exclusiveMinimum')"),
        (when("/ids", {">": 5}), "(write 'exclusiveMinimum')"),
        (when("/topic", {"equals": "t"}), "(write 'const')"),
        (when("/ids", {"contains": {"not": {"greaterThan": 5}}}), "'not' of 'contains' of 'matches' has no key"),
        (when("/ids", {"anyOf": [{"minItems": 1}, {"oneOf": []}]}), "'anyOf' of 'matches' has no key 'oneOf'"),
        (when("", {"properties": {"ids": {"format": "date"}}}), "property 'ids' of 'matches' has no key 'format'"),
        (when("/ids", {"items": True}), "'items' of 'matches' must be a schema in an object, not true"),
        (when("/ids", {"minItems": 1, "minimum": 5}), "minItems is for lists and minimum is for numbers"),
        (
            when("/ids", {"type": "array", "exclusiveMinimum": 5}),
            "exclusiveMinimum is for numbers, and its type is array",
        ),
    ],
)
async def test_a_condition_that_cannot_be_judged_is_a_fault_of_the_plan(condition: JsonValue, why: str) -> None:
    async with warden(Ledger()) as w:
        with pytest.raises(InvalidPlan) as refused:
            await w.execute_plan(plan(FIND, tool_step("a", "note", {"text": "x"}, when=condition)))
    assert why in refused.value.message
