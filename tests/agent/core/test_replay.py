"""Which logs replay, from which event on one does not, and what a later execution takes over from one."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.control.replay import ReplayFault, find_replay_fault
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Loop, Plan, PlannedCall, PlanStep, StepControl, ToolFacts
from tests.kit import apply, ev, parse_plan, plan, requirement, tool_step

Log = list[list[ev.Event]]
"""Transactions."""
PLAN = Plan(
    steps=(
        PlanStep(step_id="a", description="a", step_type="tool", required_tools=("t",)),
        PlanStep(
            step_id="b",
            description="b",
            step_type="tool",
            required_tools=("u",),
            tool_calls=(PlannedCall(tool_name="u", arguments={}),),
            dependencies=("a",),
        ),
    )
)
ASKED = ev.Question(
    suspension_id="q", kind="approval", message="?", step_id="b", call_id="b:1", tool_name="u", arguments={}
)


def decided(*, approved: bool) -> ev.SuspensionDecided:
    decision = ev.RecordedDecision(approved=approved)
    return ev.SuspensionDecided(
        suspension_id="q", decision=decision, assurance="human", channel="inbox", principal="ann"
    )


def a_log() -> Log:
    """A model's step, then a call that a person approves, to the end."""
    return [
        [ev.ExecutionCreated(), ev.PlanAccepted(plan=PLAN), ev.StepStarted(step_id="a")],
        [
            ev.ModelReplied(purpose="step", step_id="a", calls=(ev.ProposedCall(tool_name="t", arguments={}),)),
            ev.ToolCallIntended(call_id="a:1", arguments={}),
        ],
        [
            ev.ToolReturned(call_id="a:1", value=1),
            ev.StepCompleted(step_id="a", validation="passed"),
            ev.StepStarted(step_id="b"),
            ev.Suspended(question=ASKED),
            ev.ExecutionSuspended(),
        ],
        [decided(approved=True), ev.ToolCallIntended(call_id="b:1", suspension_id="q")],
        [
            ev.ToolReturned(call_id="b:1", value=2),
            ev.StepCompleted(step_id="b", validation="passed"),
            ev.ExecutionCompleted(),
        ],
    ]


def replay(log: Log) -> ReplayFault | None:
    events = [(1_000.0 + place, event) for place, transaction in enumerate(log) for event in transaction]
    recorded = [ev.Recorded(sequence=number, at=at, event=event) for number, (at, event) in enumerate(events, 1)]
    return find_replay_fault(new_execution("e", "t", "ann"), recorded)


def put(log: Log, transaction: int, place: int, *events: ev.Event, replaces: int = 1) -> Log:
    log[transaction][place : place + replaces] = events
    return log


FOREIGN = ev.ToolCallIntended(call_id="b:1", arguments={}, suspension_id="another")
UNPROVEN = ev.StepCompleted(step_id="a", validation="skipped")
REPLY = ev.ModelReplied(purpose="step", step_id="a", content="done")
OVER: list[ev.Event] = [ev.ExecutionCompleted()]
SPENT: list[ev.Event] = [ev.ExecutionExhausted(budget="toolCalls")]
WAIT = ev.Suspended(question=replace(ASKED, kind="wait", call_id=None, step_id="a"))
UNASKED = ev.RevisionRefused(step_id="a", message="no")
FAILED = ev.ToolFailed(call_id="b:1", code="x", message="y")
SPOILED: dict[str, tuple[Callable[[Log], Log], int, str]] = {
    "without proof": (lambda log: [log[0], log[2][1:]], 4, "StepCompleted"),
    "without validation": (lambda log: put(log, 2, 1, UNPROVEN), 7, "StepCompleted"),
    "against the answer": (lambda log: put(log, 3, 0, decided(approved=False)), 12, "ToolCallIntended"),
    "with the answer to another question": (lambda log: put(log, 3, 1, FOREIGN), 12, "ToolCallIntended"),
    "without an answer": (lambda log: put(log, 3, 0), 11, "ToolCallIntended"),
    "with a second reply": (lambda log: put(log, 2, 0, REPLY, replaces=0), 6, "ModelReplied"),
    "before its dependency": (lambda log: put(log, 0, 3, ev.StepStarted(step_id="b")), 4, "StepStarted"),
    "over too early": (lambda log: [*log[:2], log[2][:2], OVER], 8, "ExecutionCompleted"),
    "at a budget that is not there": (lambda log: [*log[:2], log[2][:2], SPENT], 8, "ExecutionExhausted"),
    "waiting for a provider that answered": (lambda log: [log[0], [WAIT]], 4, "Suspended"),
    "with a revision that nobody sent": (lambda log: put(log, 1, 0, UNASKED, replaces=0), 4, "RevisionRefused"),
    "failed and called complete": (lambda log: put(log, 4, 0, FAILED), 14, "StepCompleted"),
}


@requirement("replay:decisions")
@pytest.mark.parametrize(("spoil", "sequence", "event"), SPOILED.values(), ids=SPOILED)
def test_the_first_decision_that_the_code_would_not_take_is_named(
    spoil: Callable[[Log], Log], sequence: int, event: str
) -> None:
    assert replay(a_log()) is None
    fault = replay(spoil(a_log()))
    assert fault is not None and (fault.sequence, fault.event) == (sequence, event)
    assert fault.describe().startswith(f"from event {sequence} ({event}) on: ") and len(fault.reason) <= 500


def a_loop(items: list[JsonValue], chosen: list[JsonValue], *released: str) -> Log:
    """A loop over literal items, asked about in one question of which some rows are approved, and the calls made."""
    control = StepControl(loop=Loop(items=[1, 2], max_concurrent=2))
    step = replace(PLAN.steps[1], dependencies=(), control=control)
    rows = tuple(
        ev.CoveredCall(step_id="b", tool_name="u", arguments={}, definition_digest="", call_id=f"b:{number}")
        for number in (1, 2)
    )
    asked = replace(ASKED, kind="batch", call_id=None, arguments=None, covers=rows)
    decision = ev.RecordedDecision(approved=True, content={"items": chosen})
    return [
        [
            ev.ExecutionCreated(),
            ev.PlanAccepted(plan=Plan(steps=(step,))),
            ev.StepStarted(step_id="b"),
            ev.LoopBegan(step_id="b", items=tuple(items)),
            ev.Suspended(question=asked),
            ev.ExecutionSuspended(),
        ],
        [
            replace(decided(approved=True), decision=decision),
            *(ev.ToolCallIntended(call_id=call_id, arguments={}, suspension_id="q") for call_id in released),
        ],
    ]


@requirement("replay:decisions")
def test_the_items_of_a_loop_and_the_chosen_rows_of_its_question_are_judged() -> None:
    assert replay(a_loop([1, 2], [0, 1], "b:1", "b:2")) is None
    assert replay(a_loop([1, 2], [1], "b:2")) is None
    others, unchosen = replay(a_loop([1, 3], [0], "b:1")), replay(a_loop([1, 2], [1], "b:1"))
    assert others is not None and (others.sequence, others.event) == (4, "LoopBegan")
    assert unchosen is not None and (unchosen.sequence, unchosen.event) == (8, "ToolCallIntended")


STEPS = plan(*(tool_step(name, "t") for name in "abc"))
ABC, _ = parse_plan(STEPS, author="caller", tools={"t": ToolFacts(is_blocking=False)})


def run(*events: ev.Event) -> ExecutionState:
    state = new_execution("e1", "thread", "ann")
    for event in (ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=ABC), *events):
        state = apply(state, event, 1.0)
    return state


def call(call_id: str, tool: str = "t", unknown: str | None = None) -> ev.TakenCall:
    return ev.TakenCall(call_id=call_id, tool_name=tool, origin=f"e0:{call_id}", proposed={}, unknown=unknown)


def done(step_id: str, *calls: ev.TakenCall) -> ev.TakenStep:
    return ev.TakenStep(step_id=step_id, execution_id="e0", calls=calls, is_completed=True, validation="passed")


@requirement("retry:rest", "retry:calls")
def test_a_step_that_the_record_does_not_prove_is_refused_by_the_fold_and_none_is_forgotten() -> None:
    proven = done("a", call("a:1"))
    for wrong in ((done("a"),), (done("a", call("a:1", "ask")),), (done("a", call("b:1")),), (proven, proven)):
        with pytest.raises(IllegalTransition):
            run(ev.StepsTakenOver(steps=wrong))
    with pytest.raises(IllegalTransition):
        run(ev.StepStarted(step_id="a"), ev.StepsTakenOver(steps=(proven,)))
    # No revision of a model makes the plan forget what was taken over.
    partly = ev.TakenStep(step_id="b", execution_id="e0", calls=(call("b:1", unknown="lost"),))
    state = run(ev.StepsTakenOver(steps=(proven, partly)))
    assert [name for name, step in state.steps.items() if not step.has_begun] == ["c"]
    with pytest.raises(IllegalTransition):
        apply(state, ev.PlanRevised(step_id="a", plan=Plan(steps=(ABC.steps[0],)), removed=("b", "c")), 1.0)
