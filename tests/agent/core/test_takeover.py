"""What is taken over, as values: pure functions of a log and a plan, and the laws of the fold about them."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import IllegalTransition, InvalidPlan
from planwarden.agent.core import events as ev
from planwarden.agent.core.actions import RecordEvent
from planwarden.agent.core.decide import decide
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.plan_parsing import PlanParsing
from planwarden.agent.core.revision import revise
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.core.takeover import describe_earlier_runs, keep_version, take_over
from tests.kit import plan, requirement, tool_step

FACTS = {"t": ToolFacts(is_blocking=False), "ask": ToolFacts(is_blocking=True)}


def parsed(*steps: dict[str, JsonValue]) -> Plan:
    found, _ = parse_plan(plan(*steps), author="caller", tools=FACTS)
    return found


def run(
    given: Plan,
    *events: ev.Event,
    execution_id: str = "e1",
    retry_of: str | None = None,
    saved: ev.PlanVersion | None = None,
) -> ExecutionState:
    state = new_execution(execution_id, "thread", "ann")
    created = ev.ExecutionCreated(goal="go", retry_of=retry_of, saved_plan=saved)
    for event in (created, ev.PlanAccepted(plan=given), *events):
        state = apply(state, event, 1.0)
    return state


def call(call_id: str, tool: str = "t", **fields: object) -> ev.TakenCall:
    # The fields are the struct's own; a wrong one raises at once.
    return ev.TakenCall(
        call_id=call_id,
        tool_name=tool,
        origin=f"e0:{call_id}",
        proposed={},
        **fields,  # pyright: ignore[reportArgumentType]
    )


def done(step_id: str, *calls: ev.TakenCall) -> ev.TakenStep:
    return ev.TakenStep(step_id=step_id, execution_id="e0", calls=calls, is_completed=True, validation="passed")


ABC = parsed(tool_step("a", "t"), tool_step("b", "t"), tool_step("c", "t"))


@requirement("retry:rest")
def test_a_step_that_the_record_does_not_prove_is_refused_by_the_fold() -> None:
    for wrong in (done("a"), done("a", call("a:1", "ask")), done("a", call("b:1")), done("z", call("z:1"))):
        with pytest.raises(IllegalTransition):
            run(ABC, ev.StepsTakenOver(steps=(wrong,)))
    with pytest.raises(IllegalTransition):
        run(ABC, ev.StepsTakenOver(steps=(done("a", call("a:1")), done("a", call("a:1")))))
    with pytest.raises(IllegalTransition):
        run(ABC, ev.StepStarted(step_id="a"), ev.StepsTakenOver(steps=(done("a", call("a:1")),)))


@requirement("retry:calls")
def test_no_revision_of_a_model_makes_the_plan_forget_calls_that_were_taken_over() -> None:
    partly = ev.TakenStep(step_id="b", execution_id="e0", calls=(call("b:1", unknown="lost"),))
    state = run(ABC, ev.StepsTakenOver(steps=(done("a", call("a:1")), partly)))
    pending = [name for name, step in state.steps.items() if not step.has_begun]
    assert pending == ["c"]
    patches: list[list[JsonValue]] = [
        [{"op": "remove", "id": "b"}],
        [{"op": "change", "id": "b", "set": {"description": "other"}}],
    ]
    for patch in patches:
        with pytest.raises(InvalidPlan, match="has begun"):
            revise(ABC, patch, pending=pending, tools=FACTS, parsing=PlanParsing(), max_steps=50)
    shorter = Plan(steps=(ABC.steps[0],))
    with pytest.raises(IllegalTransition):
        apply(state, ev.PlanRevised(step_id="a", plan=shorter, removed=("b", "c")), 1.0)


@requirement("retry:gated")
def test_what_stood_behind_an_open_confirmation_waits_for_it_through_steps_that_were_taken_over() -> None:
    given = parsed(tool_step("ask", "ask"), tool_step("a", "t"), tool_step("b", "t"), tool_step("c", "t"))
    taken = ev.StepsTakenOver(steps=(done("a", call("a:1")), done("b", call("b:1"))))
    state = run(given, taken)
    assert state.steps["c"].needs == ("b", "ask")
    assert decide(state) == (RecordEvent(ev.StepStarted(step_id="ask")),)
    longer, _ = parse_plan(
        plan(*[tool_step(name, "ask" if name == "ask" else "t") for name in ("ask", "a", "b", "c", "d")]),
        author="caller",
        tools=FACTS,
    )
    revised = apply(state, ev.PlanRevised(step_id="ask", plan=longer, added=("d",)), 1.0)
    assert revised.steps["c"].needs == ("b", "ask") and decide(revised) == decide(state)
    for event in (ev.StepStarted(step_id="ask"), ev.StepFailed(step_id="ask", code="x", message="y")):
        revised = apply(revised, event, 1.0)
    assert RecordEvent(ev.StepSkipped(step_id="c", because="ask")) in decide(revised)


@requirement("retry:fork")
def test_a_long_result_is_cut_and_many_steps_are_counted_in_what_a_person_is_told() -> None:
    names = [f"s{number}" for number in range(20)]
    given = parsed(*[tool_step(name, "t", dependencies=[]) for name in names])
    events: list[ev.Event] = []
    for name in names:
        events += [
            ev.StepStarted(step_id=name),
            ev.ToolCallIntended(call_id=f"{name}:1", arguments={}),
            ev.ToolReturned(call_id=f"{name}:1", value="\u202e" + "x" * 5_000),
            ev.StepCompleted(step_id=name, validation="passed"),
        ]
    source = run(given, *events, ev.ExecutionCompleted())
    taken = take_over(source, parsed(*[tool_step(name, "t") for name in names]), {}, "s0")
    assert taken.steps == () and len(taken.again) == 20
    state = run(given, taken, execution_id="e2", retry_of="e1")
    told = list(describe_earlier_runs(state, "s0"))
    assert len(told) == 6 and told[-1] == "15 more steps that run again ran there."
    assert all(len(sentence) < 250 and sentence.isascii() for sentence in told)


@requirement("plans:exact")
def test_a_run_is_a_version_of_a_saved_plan_while_its_plan_is_exactly_that_one() -> None:
    weekly, plain = ev.PlanVersion(name="weekly", digest="d1"), parsed(tool_step("a", "t", {"x": True}))
    begun = ev.StepStarted(step_id="a")
    # Also a revision that changes nothing: nobody has to find out whether two plans do the same.
    revised = run(plain, begun, ev.PlanRevised(step_id="a", plan=plain, moved=("a",)), saved=weekly)
    exact, unsaved = run(plain, begun, saved=weekly), run(plain, begun)
    planless = apply(new_execution("e", "t", "ann"), ev.ExecutionCreated(saved_plan=weekly), 1.0)
    assert [state.is_as_saved for state in (exact, revised, unsaved, planless)] == [True, False, False, False]
    # Equal in Python, and another value for the tool.
    one = parsed(tool_step("a", "t", {"x": 1}))
    assert [keep_version(exact, goes_on) for goes_on in (parsed(tool_step("a", "t", {"x": True})), one, ABC)] == [
        weekly,
        None,
        None,
    ]
    assert keep_version(revised, plain) is None and keep_version(planless, plain) is None
