"""What bindings bring to a used plan is checked by its inputs, before the first step that takes it does anything."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core import scope_checks
from planwarden.agent.core.beginning import begin_step
from planwarden.agent.core.decide import decide
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import plan_to_json
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.state import ExecutionState
from tests.agent.core.test_uses import TOOLS, Json, parse, returned, started, use
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step


def taking(name: str) -> Json:
    return {"$from": "inputs", "pointer": f"/{name}"}


def found(pointer: str, **more: JsonValue) -> Json:
    return {"$from": "find", "pointer": pointer, **more}


INNER: Json = {
    "inputs": {
        "properties": {
            "customer": {
                "type": "object",
                "properties": {"email": {"type": "string", "pattern": "@"}, "age": {"type": "integer"}},
                "required": ["email"],
            },
            "days": {"type": "integer", "maximum": 30},
            "subject": {"type": "string", "maxLength": 20},
        },
        "required": ["customer"],
    },
    "todoList": [
        {
            "id": "write",
            "description": "Write",
            "toolCalls": [
                {"toolName": "write", "arguments": {"x": 1}},
                {"toolName": "write", "arguments": {"to": {"$from": "inputs", "pointer": "/customer/email"}}},
            ],
            "dependencies": [],
        },
        {**tool_step("wait", "find", {"days": taking("days")}), "dependencies": []},
        {**tool_step("head", "find", {"text": taking("subject")}), "dependencies": []},
        {
            **tool_step("grown", "send"),
            "when": {"value": taking("customer"), "matches": {"required": ["age"]}},
            "dependencies": [],
        },
        {
            **tool_step("each", "send", {"to": {"$from": "item"}}),
            "forEach": taking("days"),
            "dependencies": [],
        },
    ],
}
OUTER: Json = {
    "inputs": {"properties": {"who": {"type": "object"}, "days": {}}},
    "todoList": [use("in", "inner", {"customer": taking("who"), "days": taking("days")})],
}
SAVED: Json = {"inner": INNER, "outer": OUTER}


def ready(value: JsonValue, *, name: str = "inner", **given: JsonValue) -> ExecutionState:
    """A run whose `find` returned the value, so that the steps of the used plan may begin."""
    document = plan(tool_step("find", "find"), use("ann", name, given))
    return returned(started(parse(document, SAVED)), "find", value)


def begin(execution: ExecutionState, step_id: str) -> tuple[ev.Event, ...]:
    wanted = {getattr(action, "step_id", None) for action in decide(execution)}
    assert step_id in wanted, "the step is judged before it begins"
    return begin_step(execution, step_id, {})


def fault(execution: ExecutionState, step_id: str) -> str:
    started_, failed = begin(execution, step_id)
    assert isinstance(started_, ev.StepStarted) and isinstance(failed, ev.StepFailed)
    for event in (started_, failed):
        execution = apply(execution, event, 3.0)
    assert execution.steps[step_id].status == "failed" and failed.code in ("invalid_arguments", "limit_exceeded")
    return failed.message


GOOD: Json = {"email": "a@b", "age": 3}


@requirement("plans:use-checked")
@pytest.mark.parametrize(
    ("customer", "said"),
    [
        ({"email": 7}, "/customer/email: 7 is not of type"),
        ({"email": "nobody"}, "does not match"),
        ({"age": 3}, '"email" is a required property'),
        ("a@b", "is not of type"),
        (None, "is not of type"),
    ],
)
def test_a_bound_value_that_does_not_fit_fails_the_step_that_takes_a_part_of_it(customer: JsonValue, said: str) -> None:
    """spec: plans, use; named input and fault, before the first call of the step"""
    execution = ready({"best": customer}, customer=found("/best"))
    message = fault(execution, "ann.write")
    assert message.startswith("the inputs of the plan that 'ann' uses do not fit: inputs: ") and said in message
    assert begin(ready({"best": GOOD}, customer=found("/best")), "ann.write") == (ev.StepStarted(step_id="ann.write"),)


@requirement("plans:use-checked")
def test_only_what_a_step_takes_is_checked_and_what_is_absent_is_left_to_the_call() -> None:
    """ours: a step does not wait for values that it does not take"""
    execution = ready({"best": GOOD, "days": 99}, customer=found("/best"), days=found("/days"))
    assert begin(execution, "ann.write") == (ev.StepStarted(step_id="ann.write"),)
    assert "/days: 99 is greater than the maximum of 30" in fault(execution, "ann.wait")
    absent = ready({"best": GOOD}, customer=found("/best"), days=found("/days"))
    assert begin(absent, "ann.wait") == (ev.StepStarted(step_id="ann.wait"),)
    standing_in = ready({}, customer=found("/best", default={"email": 1}), days=found("/days", default=3))
    assert "/customer/email: 1 is not of type" in fault(standing_in, "ann.write")


@requirement("plans:use-checked")
def test_parts_templates_conditions_and_loops_are_checked_too() -> None:
    """spec: plans, use; every way on which a value comes"""
    parts: Json = {"email": found("/mail"), "age": 3}
    assert "/customer/email: 7 is not of type" in fault(ready({"mail": 7}, customer=parts), "ann.write")
    text: Json = {"$text": "Dear {name}", "with": {"name": found("/name")}}
    long = ready({"name": "x" * 30}, customer=GOOD, subject=text)
    assert "longer than 20 characters" in fault(long, "ann.head")
    assert begin(ready({"name": "x"}, customer=GOOD, subject=text), "ann.head")
    # Its condition would say no; a value of the wrong kind is no answer.
    assert "/customer/email: 7" in fault(ready({"best": {"email": 7}}, customer=found("/best")), "ann.grown")
    assert "is not of type" in fault(ready({"days": ["x"]}, customer=GOOD, days=found("/days")), "ann.each")


@requirement("plans:use-checked")
def test_the_inputs_of_a_plan_around_a_used_one_are_checked_first() -> None:
    """spec: plans, use; plans within plans"""
    right = ready({"who": GOOD, "days": 3}, name="outer", who=found("/who"), days=found("/days"))
    assert begin(right, "ann.in.write") == (ev.StepStarted(step_id="ann.in.write"),)
    outer = ready({"who": 7}, name="outer", who=found("/who"))
    assert "the plan that 'ann' uses do not fit: inputs: /who: 7" in fault(outer, "ann.in.write")
    inner = ready({"who": {"email": 7}}, name="outer", who=found("/who"))
    assert "the plan that 'ann.in' uses do not fit" in fault(inner, "ann.in.write")


@requirement("plans:use-checked")
def test_values_that_are_too_large_to_check_fail_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """ours: the process waits while it checks"""
    execution = ready({"best": GOOD}, customer=found("/best"))
    monkeypatch.setattr(scope_checks, "MAX_CHECKED_BYTES", 10)
    assert "more than 10 bytes of the inputs" in fault(execution, "ann.write")
    monkeypatch.undo()
    monkeypatch.setattr(scope_checks, "CHECK_LIMIT", 1)
    assert "too much work to check" in fault(execution, "ann.write")


@requirement("plans:use-checked")
def test_the_accepted_plan_holds_the_schemas_of_bound_inputs_and_wrong_ones_are_refused() -> None:
    """ours: a client may send the plan back, or anything else"""
    parsed = parse(plan(tool_step("find", "find"), use("ann", "inner", {"customer": found("/best")})), SAVED)
    assert parsed.schemas == {"ann.inputs": INNER["inputs"]}
    literal = parse(plan(use("ann", "inner", {"customer": GOOD})), SAVED)
    assert literal.schemas is None
    document = plan_to_json(parsed)
    assert parse_plan(document, author="caller", tools=TOOLS)[0] == parsed
    wrong: list[tuple[JsonValue, str]] = [
        (7, "'scopeSchemas' is not an object"),
        ({"ann.inputs": 7}, "is not an object"),
        ({"ann.inputs": {"type": "array"}}, "must be the JSON Schema of an object"),
        ({"ann.inputs": {"properties": {"x": {"type": "nothing"}}}}, "not a usable JSON Schema"),
        ({f"x{n}.inputs": {"title": "x" * 60_000} for n in range(40)}, "larger than"),
    ]
    for schemas, said in wrong:
        with pytest.raises(InvalidPlan, match=said):
            parse_plan({**document, "scopeSchemas": schemas}, author="caller", tools=TOOLS)
    unknown: Json = {**document, "scopeSchemas": {"other.inputs": {}}}
    assert parse_plan(unknown, author="caller", tools=TOOLS)[0].schemas is None
