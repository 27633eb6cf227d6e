"""The state machine under random events: it stays inside its tables, refuses cleanly, and is the fold of its log."""

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import apply, fold
from planwarden.agent.core.execution.question import Alarm
from planwarden.agent.core.execution.state import (
    CALL_SETTLED,
    CALL_TRANSITIONS,
    STEP_TERMINAL,
    STEP_TRANSITIONS,
    TRANSITIONS,
    ExecutionState,
    new_execution,
)
from planwarden.agent.core.plan.plan import Loop, Plan, PlannedCall, PlanStep, StepControl
from planwarden.storage.sql.rows import decode_events, encode_events
from tests.requirements import requirement
from tests.support.strategies import EVENTS

STEPS, CALLS, QUESTIONS = ("a", "b"), ("a:1", "a:2", "b:1", "b:2"), ("q1", "q2", "q3")
ALARMS = (Alarm(kind="remind", at=1_060.0), Alarm(kind="escalate", at=1_120.0, to=("bob",)))
REHEARSE, REVIEW = ev.Options(rehearse=True), ev.Options(review="person")
PLAN = Plan(
    steps=(
        PlanStep(
            step_id="a",
            description="a",
            step_type="tool",
            required_tools=("t",),
            tool_calls=(PlannedCall(tool_name="t", arguments={"x": 1}),),
        ),
        PlanStep(step_id="b", description="b", step_type="tool", required_tools=("t", "u"), dependencies=("a",)),
    )
)

LOOP = replace(PLAN.steps[0], control=StepControl(loop=Loop(items=[1, 2], max_concurrent=2)))
"""The first step as a loop."""


def _questions() -> list[ev.Question]:
    def question(name: str, kind: ev.SuspensionKind, step_id: str | None, call_id: str | None) -> ev.Question:
        return ev.Question(
            suspension_id=name,
            kind=kind,
            message="?",
            step_id=step_id,
            call_id=call_id,
            arguments={"x": 2} if call_id else None,
            alarms=ALARMS,
        )

    asked = [question(q, "confirmation", call.split(":")[0], call) for q, call in product(QUESTIONS, CALLS)]
    asked += [question(q, "reconcile", "a", "a:1") for q in QUESTIONS]
    asked += [question(q, "step", step, None) for q, step in product(QUESTIONS, STEPS)]
    row = ev.CoveredCall(step_id="a", tool_name="t", arguments={"x": 1}, definition_digest="", call_id="a:1")
    asked.append(replace(question("q3", "batch", "a", None), covers=(row,)))
    asked += [question(q, "wait", step, None) for q, step in product(QUESTIONS, (*STEPS, None))]
    asked += [question(q, "review", None, None) for q in QUESTIONS]
    return [*asked, question("q1", "plan", None, None), question("q2", "synthesis", None, None)]


def _takeovers() -> list[ev.Event]:
    """Steps and calls as an execution takes them over, some of which the plan does not have."""

    def call(call_id: str, tool: str, **fields: Any) -> ev.TakenCall:
        return ev.TakenCall(call_id=call_id, tool_name=tool, origin=f"e0:{call_id}", proposed={}, **fields)

    done, partly = (call("b:1", "t"), call("b:2", "u")), (call("b:1", "t", by_model=True, unknown="lost"),)
    return [
        ev.StepsTakenOver(steps=(ev.TakenStep(step_id="a", execution_id="e0", calls=(call("a:1", "t"),)),)),
        ev.StepsTakenOver(
            steps=(ev.TakenStep(step_id="a", execution_id="e0", calls=(call("a:1", "t"),), is_completed=True),)
        ),
        ev.StepsTakenOver(steps=(ev.TakenStep(step_id="b", execution_id="e0", calls=done, is_completed=True),)),
        ev.StepsTakenOver(steps=(ev.TakenStep(step_id="b", execution_id="e0", calls=partly),)),
        ev.StepsTakenOver(steps=(ev.TakenStep(step_id="b", execution_id="e0", calls=done[:1], is_completed=True),)),
        ev.StepsTakenOver(steps=(ev.TakenStep(step_id="c", execution_id="e0"),)),
        ev.StepsTakenOver(),
    ]


def _pool() -> tuple[ev.Event, ...]:
    """Every kind of event about the two steps, their calls and three questions; most are illegal most of the time."""
    reply = (ev.ProposedCall(tool_name="t", arguments={}), ev.ProposedCall(tool_name="u", arguments={}))
    pool: list[ev.Event] = [
        ev.ExecutionCreated(goal="g", plan_only=True),
        ev.ExecutionCreated(goal="g", options=REHEARSE),
        ev.ExecutionCreated(goal="g", options=REVIEW),
        ev.PlanAccepted(plan=PLAN),
        ev.PlanAccepted(plan=Plan(steps=(LOOP, PLAN.steps[1]))),
        ev.LoopBegan(step_id="a", items=(1, 2)),
        ev.LoopBegan(step_id="a", items=()),
        *_takeovers(),
        ev.PlanRefused(code="invalid_plan", message="no"),
        ev.ModelReplied(purpose="plan", content="{}", source="entry 0"),
        ev.ModelReplied(purpose="synthesize", content="done", input_tokens=3),
        ev.ModelFailed(purpose="plan", code="model_error", message="no"),
        ev.ModelFailed(purpose="plan", code="model_error", message="gone", retryable=True),
        ev.PlanRevised(step_id="a", plan=Plan(steps=PLAN.steps[:1]), removed=("b",)),
        ev.PlanRevised(step_id="a", plan=Plan(steps=(*PLAN.steps, replace(PLAN.steps[1], step_id="c"))), added=("c",)),
        ev.PlanRevised(step_id="a", plan=Plan(steps=PLAN.steps[1:]), removed=("a",)),
        ev.PlanRevised(step_id="", plan=Plan(steps=PLAN.steps[:1]), removed=("b",)),
        ev.RevisionRefused(step_id="a", message="no"),
        ev.ExecutionPlanned(),
        ev.ExecutionStarted(),
        ev.ExecutionStarted(options=ev.Options(max_iterations=1)),
        ev.ExecutionStarted(options=REHEARSE),
        ev.ExecutionSuspended(),
        ev.CancelRequested(reason="enough"),
        ev.ExecutionCompleted(),
        ev.ExecutionRehearsed(),
        ev.ExecutionRejected(),
        ev.ExecutionFailed(code="x", message="y"),
        ev.ExecutionExhausted(budget="seconds"),
        ev.ExecutionExhausted(budget="modelPatience"),
        ev.ExecutionCancelled(),
    ]
    for step in (*STEPS, "nowhere"):
        pool += [
            ev.StepStarted(step_id=step),
            ev.StepCompleted(step_id=step, validation="passed"),
            ev.StepFailed(step_id=step, code="x", message="y"),
            ev.StepSkipped(step_id=step, because="a"),
            ev.StepSkipped(step_id=step, because="when"),
            ev.LoopBegan(step_id=step, items=(1,)),
            ev.StepRehearsed(step_id=step),
            ev.ModelReplied(purpose="step", step_id=step, calls=reply),
            ev.ModelReplied(purpose="step", step_id=step, content="prose", revise={"remove": ["b"]}),
            ev.ModelFailed(purpose="step", step_id=step, code="model_error", message="no"),
            ev.ModelFailed(purpose="step", step_id=step, code="model_error", message="gone", retryable=True),
            ev.ValidationFailed(step_id=step, missing=("t",), mode="strict", enforced=True),
            *(ev.StepRejected(step_id=step, suspension_id=q) for q in QUESTIONS),
        ]
    for call in (*CALLS, "nowhere:1"):
        pool += [
            ev.ToolCallIntended(call_id=call, arguments={}),
            ev.ToolCallIntended(call_id=call, arguments={}, effect="read"),
            ev.CallRehearsed(call_id=call, arguments={"x": 1}, asks="approval"),
            ev.ToolReturned(call_id=call, value=[1]),
            ev.ToolFailed(call_id=call, code="x", message="y"),
            ev.ToolOutcomeUnknown(call_id=call, message="lost"),
            ev.CallAttemptFailed(call_id=call, code="x", message="y"),
            *(ev.ToolCallIntended(call_id=call, suspension_id=q) for q in QUESTIONS),
            ev.CallRejected(call_id=call, suspension_id="q3"),
        ]
    for asked in _questions():
        revised = replace(asked, revision=2, arguments={"x": 3} if asked.call_id else None)
        pool += [ev.Suspended(question=asked), ev.SuspensionRevised(question=revised, reason="edited")]
    for name, approved in product((*QUESTIONS, "nobody"), (True, False)):
        pool += [
            ev.SuspensionDecided(
                suspension_id=name,
                decision=ev.RecordedDecision(approved=approved),
                assurance="human",
                channel="inbox",
                principal="ann",
            ),
            ev.SuspensionTimedOut(suspension_id=name, outcome="approve" if approved else "reject"),
        ]
    pool += [ev.SuspensionWithdrawn(suspension_id=name, reason="settled there") for name in (*QUESTIONS, "nobody")]
    for name, number in product((*QUESTIONS, "nobody"), (0, 1, 2, 3)):
        pool.append(ev.SuspensionReminded(suspension_id=name, number=number, kind="remind"))
    return tuple(pool)


POOL = _pool()
ABOUT_CALLS = {"call_id", "suspension_id", "question"}
INNER = (
    *(kind for kind in ev.EVENT_TYPES if ABOUT_CALLS & {*kind.__struct_fields__} and kind is not ev.StepRejected),
    *(ev.ExecutionCreated, ev.PlanAccepted, ev.StepStarted, ev.LoopBegan, ev.StepRehearsed),
)
"""What happens in the middle of a step."""
NEW = new_execution("e1", "t1", "ann")


def is_legal(execution: ExecutionState, event: ev.Event) -> bool:
    try:
        apply(execution, event, 1.0)
    except IllegalTransition:
        return False
    return True


@st.composite
def logs(draw: st.DrawFn) -> tuple[ev.Recorded, ...]:
    execution, recorded = NEW, list[ev.Recorded]()
    at = 1_000.0
    for _ in range(draw(st.integers(0, 40))):
        legal = [event for event in POOL if is_legal(execution, event)]
        if not legal:
            break
        # Most legal events lead away from where the calls are; without a preference few walks would get there.
        inner = [event for event in legal if isinstance(event, INNER)]
        kinds = {type(event): event for event in (inner if inner and draw(st.integers(0, 11)) else legal)}
        kind = draw(st.sampled_from(list(kinds)))
        event = draw(st.sampled_from([event for event in legal if type(event) is kind]))
        at += draw(st.sampled_from([0.0, 0.5, 60.0]))
        execution = apply(execution, event, at)
        recorded.append(ev.Recorded(sequence=execution.version, at=at, event=event))
    return tuple(recorded)


def assert_declared(execution: ExecutionState) -> None:
    assert execution.status in TRANSITIONS
    calls = [call for state in execution.steps.values() for call in state.calls]
    assert {state.status for state in execution.steps.values()} <= STEP_TRANSITIONS.keys()
    assert {call.status for call in calls} <= CALL_TRANSITIONS.keys()
    assert len({call.call_id for call in calls}) == len(calls)
    assert not execution.open_suspensions or not execution.is_finished


def assert_follows(before: ExecutionState, after: ExecutionState) -> None:
    """The facts that no event may undo."""
    assert after.version == before.version + 1 and after.active_s >= before.active_s
    for step_id, state in before.steps.items():
        if step_id not in after.steps:
            # A revision may remove what has not begun, and nothing else.
            assert state.status == "pending"
            continue
        if state.status in STEP_TERMINAL:
            assert after.steps[step_id].status == state.status
        assert after.steps[step_id].finished_items >= state.finished_items
        assert after.steps[step_id].failed_items == sum(
            call.status == "failed" for call in after.steps[step_id].calls if state.step.loop is not None
        )
        for old, new in zip(state.calls, after.steps[step_id].calls, strict=False):
            assert old.status not in CALL_SETTLED or new == old
            assert new.attempts >= old.attempts
    for name, suspension in before.suspensions.items():
        if not suspension.is_open:
            assert after.suspensions[name] == suspension
        assert suspension.alarmed <= after.suspensions[name].alarmed <= len(ALARMS)


def assert_counted(execution: ExecutionState) -> None:
    """Outside the frontier every step is over or waits for others."""
    steps = execution.steps
    for name in steps.keys() - {*execution.frontier}:
        needed = steps[name].step.dependencies
        is_waiting = needed and all(other not in steps or steps[other].status not in STEP_TERMINAL for other in needed)
        assert steps[name].status in STEP_TERMINAL or (steps[name].status == "pending" and is_waiting)


def assert_rehearsed(before: ExecutionState, event: ev.Event, after: ExecutionState) -> None:
    """A rehearsal dispatches only reads, asks nobody and claims no success."""
    is_rehearsal = after.options.rehearse
    if not isinstance(event, ev.ExecutionCreated) and before.options.rehearse is not is_rehearsal:
        # Only a plan that nobody has begun may still become a rehearsal, or a real run.
        assert isinstance(event, ev.ExecutionStarted) and before.status == "planned"
        assert all(state.status == "pending" for state in before.steps.values())
    match event:
        case ev.ToolCallIntended(effect=effect) if is_rehearsal:
            assert effect == "read"
        case ev.Suspended(question=question) if is_rehearsal:
            assert question.addressee != "human"
        case ev.CallRehearsed() | ev.StepRehearsed() | ev.ExecutionRehearsed():
            assert is_rehearsal
        case ev.ExecutionCompleted():
            assert not is_rehearsal
        case _:
            pass
    for state in after.steps.values():
        assert state.status != "completed" or all(call.status != "rehearsed" for call in state.calls)


@requirement("state:total", "state:fold", "rehearsal:nothing-done", "plan:review")
@settings(max_examples=2 * settings().max_examples)
@given(logs(), st.integers(0, 40))
def test_a_legal_log_follows_the_tables_undoes_nothing_and_is_the_stored_state(
    log: tuple[ev.Recorded, ...], cut: int
) -> None:
    execution, approved = NEW, None
    for entry in log:
        before, execution = execution, apply(execution, entry.event, entry.at)
        assert_declared(execution)
        assert_follows(before, execution)
        assert_counted(execution)
        assert_rehearsed(before, entry.event, execution)
        match entry.event:
            case ev.SuspensionDecided(suspension_id=name, decision=decision):
                if before.suspensions[name].question.kind == "review":
                    approved = execution.plan if decision.approved else None
            case ev.PlanRevised(step_id=""):
                assert any(review.is_open for review in before.find_suspensions("review"))
            case ev.StepStarted() | ev.ToolCallIntended() if execution.options.review is not None:
                # Under review nothing begins but what a person approved.
                assert approved is not None and approved == execution.plan
            case _:
                pass
    if execution.is_finished:
        # Only a larger budget leads out of `incomplete`, and nothing out of the others.
        beyond = (ev.ExecutionStarted,) if execution.status == "incomplete" else ()
        assert not [event for event in POOL if is_legal(execution, event) and not isinstance(event, beyond)]
    stored = decode_events(encode_events(entry.event for entry in log))
    loaded = fold(NEW, [replace(entry, event=event) for entry, event in zip(log, stored, strict=True)])
    assert loaded == execution == fold(fold(NEW, log[:cut]), log[cut:]) and repr(loaded) == repr(execution)


@requirement("state:total")
@given(logs(), st.sampled_from(POOL) | EVENTS)
def test_an_event_is_applied_or_refused_and_the_old_state_stays(log: tuple[ev.Recorded, ...], event: ev.Event) -> None:
    execution, again = fold(NEW, log), fold(NEW, log)
    try:
        assert_declared(apply(execution, event, 5_000.0))
    except IllegalTransition as refusal:
        assert refusal.message
    assert execution == again
