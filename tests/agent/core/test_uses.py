"""Plans within plans: what stands in the place of a step that uses one, and what is refused."""

import json
from collections.abc import Callable

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidPlan, LimitExceeded, UnknownPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core.decide import decide
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, ToolFacts, plan_to_json
from planwarden.agent.core.plan_input import MAX_ID_CHARS
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.references import AbsentValue, list_sources, resolve
from planwarden.agent.core.replies import Reply, build_reply_events
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.core.uses import MAX_USE_DEPTH, ExpandedPlan, expand_uses, may_use_plans
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step

Json = dict[str, JsonValue]

TOOLS = {name: ToolFacts(is_blocking=False) for name in ("find", "write", "send")}
CUSTOMER: Json = {"$from": "inputs", "pointer": "/customer"}
REMIND: Json = {
    "inputs": {
        "properties": {"customer": {"type": "string"}, "days": {"type": "integer", "default": 14}, "note": {}},
        "required": ["customer"],
    },
    "todoList": [
        tool_step("look", "find", {"who": CUSTOMER, "days": {"$from": "inputs", "pointer": "/days"}}),
        tool_step("write", "write", {"x": {"$from": "look", "pointer": "/a"}}),
        {
            **tool_step("each", "send", {"to": {"$from": "item"}}),
            "forEach": {"$from": "look"},
            "when": {"value": CUSTOMER, "matches": {}},
            "dependencies": [],
        },
    ],
}


def use(step_id: str, name: str, inputs: Json | None = None, **more: JsonValue) -> Json:
    """A step in whose place a saved plan is put."""
    return {"id": step_id, "use": name, **({} if inputs is None else {"inputs": inputs}), **more}


def with_keys(step: Json, **more: JsonValue) -> Json:
    return {**step, **more}


def finder(saved: Json) -> Callable[[str], JsonValue]:
    def find(name: str) -> JsonValue:
        if name not in saved:
            raise UnknownPlan(f"there is no saved plan {name!r}; did you mean 'remind'? The plans are remind")
        return saved[name]

    return find


def expand(document: JsonValue, saved: Json | None = None, *, max_steps: int = 50) -> ExpandedPlan:
    return expand_uses(document, finder({"remind": REMIND} if saved is None else saved), max_steps=max_steps)


def parse(document: JsonValue, saved: Json | None = None) -> Plan:
    return parse_plan(expand(document, saved).document, author="caller", tools=TOOLS)[0]


def refusal(document: JsonValue, saved: Json | None = None) -> str:
    with pytest.raises(InvalidPlan) as caught:
        parse(document, saved)
    return caught.value.message


def started(parsed: Plan, inputs: Json | None = None) -> ExecutionState:
    execution = new_execution("e", "t", "ann")
    for event in (ev.ExecutionCreated(), ev.PlanAccepted(plan=parsed, inputs=inputs or {})):
        execution = apply(execution, event, 1.0)
    return execution


def returned(execution: ExecutionState, step_id: str, value: JsonValue) -> ExecutionState:
    """The execution after the step's one call returned the value."""
    call_id = execution.steps[step_id].calls[0].call_id if execution.steps[step_id].calls else f"{step_id}:1"
    for event in (
        ev.StepStarted(step_id=step_id),
        ev.ToolCallIntended(call_id=call_id, arguments={}),
        ev.ToolReturned(call_id=call_id, value=value),
        ev.StepCompleted(step_id=step_id),
    ):
        execution = apply(execution, event, 2.0)
    return execution


def arguments(execution: ExecutionState, step_id: str) -> JsonValue:
    """What the step's first call is made with now."""
    [call] = execution.steps[step_id].step.tool_calls
    return resolve(dict(call.arguments), list_sources(execution))


@requirement("plans:use")
def test_the_steps_of_a_used_plan_stand_in_the_place_of_its_step_under_names_of_their_own() -> None:
    """spec: plans, use; children are STEP.CHILD, depending on STEP means all of them"""
    parsed = parse(
        plan(
            tool_step("first", "find"),
            use("ann", "remind", {"customer": "Ann"}),
            tool_step("after", "write"),
            with_keys(tool_step("last", "write"), dependencies=["first", "ann"]),
        )
    )
    needed = {step.step_id: step.dependencies for step in parsed.steps}
    children = ("ann.look", "ann.write", "ann.each")
    assert list(needed) == ["first", *children, "after", "last"]
    assert needed["ann.look"] == ("first",)
    assert needed["ann.write"] == ("ann.look",)
    assert needed["ann.each"] == ("first", "ann.look")
    assert needed["after"] == children
    assert needed["last"] == ("first", *children)
    assert parsed.scopes == {"ann.inputs": {"customer": "Ann", "days": 14}}
    assert parsed.step("ann.write").tool_calls[0].arguments == {"x": {"$from": "ann.look", "pointer": "/a"}}
    assert parsed.step("ann.each").tool_calls[0].arguments == {"to": {"$from": "item"}}
    assert parse_plan(plan_to_json(parsed), author="model", tools=TOOLS)[0] == parsed


@requirement("plans:use")
def test_a_plan_without_uses_is_not_changed() -> None:
    """ours"""
    document = plan(tool_step("a", "find"))
    assert expand(document) == ExpandedPlan(document, ())
    assert not may_use_plans(document) and not may_use_plans(7) and not may_use_plans({"todoList": {}})
    assert expand({"todoList": json.dumps([use("a", "remind", {"customer": "Ann"})])}).used == ("remind",)


@requirement("plans:use")
def test_conditions_and_confirmations_of_a_use_hold_for_each_of_its_steps() -> None:
    """spec: plans, use"""
    tools = TOOLS | {"displayConfirmation": ToolFacts(is_blocking=True)}
    document = expand(
        plan(
            tool_step("first", "find"),
            with_keys(tool_step("ask", "displayConfirmation", {"message": "All of it?"}), confirms=["ann"]),
            use("ann", "remind", {"customer": "Ann"}, when={"value": {"$from": "first"}, "matches": {"minItems": 1}}),
        )
    ).document
    parsed, _ = parse_plan(document, author="caller", tools=tools)
    assert parsed.step("ask").confirms == ("ann.look", "ann.write", "ann.each")
    assert [len(step.when) for step in parsed.steps] == [0, 0, 1, 1, 2]
    assert parsed.step("ann.each").when[1].value == {"$from": "ann.inputs", "pointer": "/customer"}
    assert parsed.step("ann.write").dependencies == ("ann.look", "first", "ask")


@requirement("plans:use")
def test_inputs_are_taken_through_every_plan_around_as_far_as_their_pointers_lead() -> None:
    """spec: plans, use; inputs are resolved in the enclosing scope, and only when they are needed"""
    inner: Json = {
        "inputs": {"properties": {"who": {}, "text": {}, "fixed": {}, "list": {}}},
        "todoList": [
            tool_step("who", "write", {"x": {"$from": "inputs", "pointer": "/who/name"}}),
            tool_step("all", "write", {"x": {"$from": "inputs"}}) | {"dependencies": []},
            tool_step("fixed", "write", {"x": {"$from": "inputs", "pointer": "/fixed/1"}}) | {"dependencies": []},
            tool_step("none", "write", {"x": {"$from": "inputs", "pointer": "/none", "default": 7}})
            | {"dependencies": []},
        ],
    }
    outer: Json = {
        "inputs": {"properties": {"person": {}}},
        "todoList": [
            use(
                "deep",
                "inner",
                {
                    "who": {"$from": "inputs", "pointer": "/person"},
                    "text": {
                        "$text": "Dear {name}",
                        "with": {"name": {"$from": "inputs", "pointer": "/person/name"}},
                    },
                    "fixed": [1, 2],
                    "list": [{"$from": "inputs", "pointer": "/person/name"}, "x"],
                },
            )
        ],
    }
    given: Json = {"properties": {"n": {"type": "integer"}}}
    document = plan(
        tool_step("a", "find"),
        tool_step("b", "find") | {"dependencies": []},
        use("o", "outer", {"person": {"$from": "a", "pointer": "/p"}}, dependencies=["b"]),
    )
    parsed = parse(with_keys(document, inputs=given), {"inner": inner, "outer": outer})
    needed = {step.step_id: step.dependencies for step in parsed.steps}
    assert needed["o.deep.who"] == needed["o.deep.all"] == ("b", "a")
    assert needed["o.deep.fixed"] == needed["o.deep.none"] == ("b",)
    execution = returned(started(parsed), "a", {"p": {"name": "Ann"}})
    assert arguments(execution, "o.deep.who") == {"x": "Ann"}
    assert arguments(execution, "o.deep.fixed") == {"x": 2}
    assert arguments(execution, "o.deep.none") == {"x": 7}
    everything: Json = {"who": {"name": "Ann"}, "text": "Dear Ann", "fixed": [1, 2], "list": ["Ann", "x"]}
    assert arguments(execution, "o.deep.all") == {"x": everything}


@requirement("plans:use")
def test_what_a_skipped_step_would_have_given_stops_only_the_steps_that_take_it() -> None:
    """spec: plans, default; a skipped step stops those that bind from it"""
    child: Json = {
        "inputs": {"properties": {"x": {}, "y": {}}},
        "todoList": [
            tool_step("needs", "write", {"x": {"$from": "inputs", "pointer": "/x"}}),
            tool_step("other", "write", {"x": {"$from": "inputs", "pointer": "/y"}}) | {"dependencies": []},
            tool_step("default", "write", {"x": {"$from": "inputs", "pointer": "/x", "default": 1}})
            | {"dependencies": []},
            with_keys(tool_step("judge", "write"), dependencies=[], when={"value": {"$from": "inputs"}, "matches": {}}),
        ],
    }
    skipped = with_keys(tool_step("maybe", "find"), when={"value": {"$from": "a"}, "matches": {"type": "null"}})
    outer = plan(tool_step("a", "find"), skipped, use("c", "child", {"x": {"$from": "maybe"}, "y": 2}))
    execution = returned(started(parse(outer, {"child": child})), "a", 5)
    execution = apply(execution, ev.StepSkipped(step_id="maybe", because="when"), 3.0)
    found = {str(action) for action in decide(execution)}
    assert any("StepSkipped" in text and "'c.needs'" in text for text in found)
    for name in ("c.other", "c.default", "c.judge"):
        assert any("StepSkipped" not in text and f"'{name}'" in text for text in found), name
    assert arguments(execution, "c.default") == {"x": 1}
    with pytest.raises(AbsentValue):
        arguments(execution, "c.needs")


@requirement("plans:use")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "required"),
        ({"customer": 5}, "customer"),
        ({"customer": "Ann", "dayz": 3}, "dayz"),
        ({"customer": {"$from": "first"}, "days": "x"}, "days"),
        ({"customer": {"$from": "first", "point": 1}}, "unknown key"),
        ({"$from": "first"}, "not a binding"),
        ({"customer": {"$from": "gone"}}, "'gone'"),
        ({"customer": {"$from": "item"}}, "only the calls of a loop"),
    ],
)
def test_inputs_that_do_not_fit_the_used_plan_are_refused_when_the_plan_is_accepted(given: Json, said: str) -> None:
    """spec: plans, use; literal inputs are checked, required ones given, undeclared ones refused"""
    assert said in refusal(plan(tool_step("first", "find"), use("ann", "remind", given)))


@requirement("plans:use")
def test_faults_of_a_use_are_named_with_what_is_right() -> None:
    """spec: plans, use; every fault is named"""
    fitting: Json = {"customer": "Ann"}
    step = use("ann", "remind", fitting)
    takes = tool_step("b", "write", {"x": {"$from": "ann"}})
    assert "take it from 'ann.look'" in refusal(plan(step, takes))
    assert "did you mean 'remind'?" in refusal(plan(use("ann", "remnd", fitting)))
    assert "has no key 'retry'" in refusal(plan(with_keys(step, retry={"attempts": 2})))
    assert "called as a step of the plan that 'ann' uses" in refusal(plan(step, tool_step("ann.look", "find")))
    assert "two steps are called 'ann'" in refusal(plan(step, tool_step("ann", "find")))
    assert f"more than {MAX_ID_CHARS} characters" in refusal(plan(use("a" * 62, "remind", fitting)))
    assert "takes no inputs" in refusal(plan(use("a", "b", {"x": 1})), {"b": plan(tool_step("c", "find"))})
    assert "something that is no step" in refusal({"todoList": [step, 7]})
    assert "no 'todoList'" in refusal(plan(use("a", "b")), {"b": []})
    foreign = plan(tool_step("c", "write", {"x": {"$from": "first"}}))
    assert "no step of its plan" in refusal(plan(tool_step("first", "find"), use("a", "b")), {"b": foreign})


@requirement("plans:use")
def test_plans_that_use_each_other_in_a_circle_or_too_deeply_are_refused_with_the_chain() -> None:
    """spec: plans, use; cycles and depth over 5 refused"""
    circle: Json = {"a": plan(use("x", "b")), "b": plan(use("y", "c")), "c": plan(use("z", "a"))}
    assert "a -> b -> c -> a" in refusal(plan(use("s", "a")), circle)
    with pytest.raises(InvalidPlan, match="a -> b -> c -> a"):
        expand_uses(circle["a"], finder(circle), name="a")
    chain: Json = {f"p{n}": plan(use("s", f"p{n + 1}")) for n in range(MAX_USE_DEPTH + 1)}
    chain[f"p{MAX_USE_DEPTH + 1}"] = plan(tool_step("end", "find"))
    said = refusal(plan(use("s", "p0"), use("t", "p1")), chain)
    assert "the plan -> p0 -> p1 -> p2 -> p3 -> p4 -> p5" in said
    assert [step.step_id for step in parse(plan(use("s", "p2")), chain).steps] == ["s.s.s.s.s.end"]


@requirement("plans:use")
def test_a_million_fold_expansion_is_refused_without_building_it() -> None:
    """ours: hostile plans; each of five levels uses the next one fifty times"""
    looked: list[str] = []
    levels: Json = {f"l{n}": plan(*(use(f"s{m}", f"l{n + 1}") for m in range(50))) for n in range(4)}
    levels["l4"] = plan(tool_step("end", "find"))

    def find(name: str) -> JsonValue:
        looked.append(name)
        return levels[name]

    with pytest.raises(LimitExceeded, match="more than 50 steps"):
        expand_uses(plan(use("s", "l0")), find, max_steps=50)
    assert looked == ["l0", "l1", "l2", "l3", "l4"]
    large = plan(tool_step("end", "find", {"x": "y" * 400_000}))
    with pytest.raises(LimitExceeded, match="bytes"):
        expand_uses(plan(*(use(f"s{m}", "large") for m in range(40))), finder({"large": large}))


@requirement("plans:use")
@pytest.mark.parametrize(
    ("scopes", "said"),
    [
        ([], "not an object"),
        ({"a": {}}, "ends in"),
        ({"a.inputs": 5}, "ends in"),
        ({"a.inputs": {"x": {"$from": "a.inputs"}}}, "does not enclose it"),
        ({"a.inputs": {"x": {"$from": "b.inputs"}}, "b.inputs": {"x": {"$from": "a.inputs"}}}, "does not enclose it"),
        ({"a.inputs": {"x": {"$from": "item"}}}, "only the calls of a loop"),
        ({"a.inputs": {"x": [{"$from": "first"}] * 1_001}}, "more than 1000 bindings"),
        ({"a.inputs": {"x": "y" * 300_000}}, "larger than"),
        ({"a.inputs": {"x": {"$from": "first", "y": 1}}}, "unknown key"),
    ],
)
def test_scopes_that_somebody_else_wrote_are_checked(scopes: JsonValue, said: str) -> None:
    """ours: hostile input; a client may send back what it was shown"""
    document: Json = plan(tool_step("first", "find"), tool_step("b", "write", {"x": {"$from": "a.inputs"}}))
    with pytest.raises(InvalidPlan) as caught:
        parse_plan(document | {"scopes": scopes}, author="caller", tools=TOOLS)
    assert said in caught.value.message


@requirement("plans:use")
def test_a_plan_of_a_model_cannot_use_saved_plans() -> None:
    """ours: replies"""
    reply = Reply(plan=plan(use("ann", "remind", {"customer": "Ann"})))
    _, refused = build_reply_events(reply, purpose="plan", step_id=None, tools=TOOLS)
    assert isinstance(refused, ev.PlanRefused) and "the plan of a model cannot do" in refused.message
