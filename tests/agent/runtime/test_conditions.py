"""Conditions: a step runs only if its values fit, and others go on without it."""

import pytest
from pydantic import JsonValue

from tests.requirements import requirement
from tests.support.wardens import run, statuses, tool_step

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
FIND = tool_step("find", "find", {"topic": "t"})
ORDERS: list[JsonValue] = [{"amount": 70, "status": "open"}, {"amount": 9000, "status": "paid"}]


def when(pointer: str, matches: Json) -> Json:
    return {"value": {"$from": "find", "pointer": pointer}, "matches": matches}


def given(value: JsonValue, matches: Json) -> Json:
    return {"value": {"$from": "find", "pointer": "/nothing", "default": value}, "matches": matches}


def note(text: str, **extra: JsonValue) -> Json:
    return tool_step(text, "note", {"text": text}, **extra)


MISSPELT: Json = {"contains": {"properties": {"amuont": {"minimum": 1}}}}
LATE: Json = {"contains": {"required": ["amount"], "properties": {"status": {"const": "late"}}}}


@requirement("conditions:judged", "conditions:closed")
@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (when("/ids", {"minItems": 1}), None),
        (when("/ids", {"minItems": 4}), "the value is a list of 3, and minItems asks for 4"),
        ([when("/ids", {"minItems": 1}), when("/topic", {"const": "t"})], None),
        ([when("/ids", {"minItems": 1}), when("/topic", {"const": "u"})], "when[1]: "),
        (
            [when("/ids", {"minItems": 1}), when("/idz", {"minItems": 1})],
            "when[1]: the pointer '/idz' into the result of step 'find' has nothing there",
        ),
        (when("", {"minItems": 5, "type": "array"}), 'the value is an object, and type asks for "array"'),
        (given(5, {"minimum": 3}), None),
        (given("7000", {"minimum": 5000}), 'the value is the text "7000", and minimum is for numbers'),
        (given(True, {"minimum": 0}), "the value is true, and minimum is for numbers"),
        (given([6000], {"exclusiveMinimum": 5}), "the value is a list, and exclusiveMinimum is for numbers"),
        (given(70, {"minimum": 5000}), "the value is 70, and minimum asks for 5000"),
        (
            given({}, {"not": {"properties": {"status": {"const": "paid"}}}}),
            "the value has no 'status'; it has nothing",
        ),
        (given("7000", {"not": {"maximum": 5000}}), 'the value is the text "7000", and maximum is for numbers'),
        (given("7000", {"anyOf": [{"minimum": 5}, {"maximum": 5}]}), "minimum is for numbers"),
        (given(ORDERS, MISSPELT), "no entry of the value fits, of 2: the value at "),
        (given(ORDERS, MISSPELT), "has no 'amuont'; it has 'amount', 'status'"),
        (given(ORDERS, {"not": {"contains": {"properties": {"due": {"const": True}}}}}), "has no 'due'"),
        (given(ORDERS, {"items": {"properties": {"status": {"const": "paid"}}}}), "'/0/status' is the text \"open\""),
        (given(ORDERS, LATE), '"late"'),
        (given(ORDERS, {"contains": {"properties": {"amount": {"exclusiveMinimum": 5000}}}}), None),
        (given(ORDERS, {"not": {"contains": {"required": ["due"]}}}), None),
        (given("x", {"anyOf": [{"type": "number", "minimum": 5}, {"minLength": 1}]}), None),
        (given(7000, {"type": "number", "minimum": 5000, "not": {"const": 7001}}), None),
    ],
)
async def test_a_step_runs_only_if_its_conditions_hold_and_what_cannot_be_judged_does_not(
    conditions: JsonValue, reason: str | None
) -> None:
    done, lines = await run(FIND, note("a", when=conditions), note("b"))
    step = done.steps[1]
    skipped = [seen.data for seen in done.observations or () if seen.type == "STEP_SKIPPED"]
    if reason is None:
        assert (step.status, lines, skipped) == ("completed", ["note a", "note b"], [])
    else:
        assert (step.status, step.skipped_because, step.error) == ("skipped", "when", None)
        assert reason in (step.skipped_reason or "") and lines == ["note b"]
        assert skipped == [{"because": "when", "reason": step.skipped_reason}]
    assert done.status == "completed"


@requirement("conditions:dependents")
async def test_what_binds_from_a_skipped_step_is_skipped_unless_it_has_a_default() -> None:
    bound: Json = {"$from": "a", "pointer": "/topic"}
    done, lines = await run(
        FIND,
        tool_step("a", "find", {"topic": "u"}, when=when("/ids", {"maxItems": 0})),
        tool_step("bound", "note", {"text": bound}),
        note("after", dependencies=["bound"]),
        tool_step("default", "note", {"text": {**bound, "default": "none"}}, dependencies=[]),
        note("judged", when={"value": bound, "matches": {}}, dependencies=[]),
    )
    skipped = {name for name, status in statuses(done).items() if status == "skipped"}
    assert (done.status, skipped) == ("completed", {"a", "bound", "judged"})
    assert sorted(lines) == ["note after", "note none"]


@requirement("conditions:dependents")
async def test_a_step_that_was_skipped_for_want_of_a_failed_one_still_stops_its_dependents() -> None:
    done, lines = await run(tool_step("broken", "broken"), note("b"), note("c"))
    assert (statuses(done)["c"], done.status, lines) == ("skipped", "failed", [])
