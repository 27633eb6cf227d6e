"""The state machine under random events: it stays inside its tables, refuses cleanly, and is the fold of its log."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply, fold
from planwarden.agent.core.frontier import find_frontier
from planwarden.agent.core.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.core.state import (
    CALL_SETTLED,
    CALL_TRANSITIONS,
    STEP_TERMINAL,
    STEP_TRANSITIONS,
    TRANSITIONS,
    ExecutionState,
    new_execution,
)
from planwarden.storage.codec import decode_events, encode_events
from tests.requirements import requirement
from tests.support.strategies import EVENT_TYPES, EVENTS

STEPS, CALLS, QUESTIONS = ("a", "b"), ("a:1", "a:2", "b:1", "b:2"), ("q1", "q2", "q3")
ALARMS = (ev.Alarm(kind="remind", at=1_060.0), ev.Alarm(kind="escalate", at=1_120.0, to=("bob",)))
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


def _questions() -> list[ev.Question]:
    def question(name: str, kind: ev.SuspensionKind, step_id: str | None, call_id: str | None) -> ev.Question:
        return ev.Question(
            suspension_id=name,
            kind=kind,
            addressee="human",
            message="?",
            step_id=step_id,
            call_id=call_id,
            arguments={"x": 2} if call_id else None,
            alarms=ALARMS,
        )

    asked = [question(q, "confirmation", call.split(":")[0], call) for q, call in product(QUESTIONS, CALLS)]
    asked += [question(q, "reconcile", "a", "a:1") for q in QUESTIONS]
    asked += [question(q, "step", step, None) for q, step in product(QUESTIONS, STEPS)]
    return [*asked, question("q1", "plan", None, None), question("q2", "synthesis", None, None)]


def _pool() -> tuple[ev.Event, ...]:
    """Every kind of event about the two steps, their calls and three questions; most are illegal most of the time."""
    reply = (ev.ProposedCall(tool_name="t", arguments={}), ev.ProposedCall(tool_name="u", arguments={}))
    pool: list[ev.Event] = [
        ev.ExecutionCreated(goal="g", plan_only=True),
        ev.PlanAccepted(plan=PLAN),
        ev.PlanRefused(code="invalid_plan", message="no"),
        ev.ModelReplied(purpose="plan", content="{}", source="entry 0"),
        ev.ModelReplied(purpose="synthesize", content="done", input_tokens=3),
        ev.ModelFailed(purpose="plan", code="model_error", message="no"),
        ev.PlanRevised(step_id="a", plan=Plan(steps=PLAN.steps[:1]), removed=("b",)),
        ev.PlanRevised(step_id="a", plan=Plan(steps=(*PLAN.steps, replace(PLAN.steps[1], step_id="c"))), added=("c",)),
        ev.PlanRevised(step_id="a", plan=Plan(steps=PLAN.steps[1:]), removed=("a",)),
        ev.RevisionRefused(step_id="a", message="no"),
        ev.ExecutionPlanned(),
        ev.ExecutionStarted(),
        ev.ExecutionStarted(options=ev.Options(max_iterations=1)),
        ev.ExecutionSuspended(),
        ev.CancelRequested(reason="enough"),
        ev.ExecutionCompleted(),
        ev.ExecutionRejected(),
        ev.ExecutionFailed(code="x", message="y"),
        ev.ExecutionExhausted(budget="seconds"),
        ev.ExecutionCancelled(),
    ]
    for step in (*STEPS, "nowhere"):
        pool += [
            ev.StepStarted(step_id=step),
            ev.StepCompleted(step_id=step, validation="passed"),
            ev.StepFailed(step_id=step, code="x", message="y"),
            ev.StepSkipped(step_id=step, because="a"),
            ev.ModelReplied(purpose="step", step_id=step, calls=reply),
            ev.ModelReplied(purpose="step", step_id=step, content="prose", revise={"remove": ["b"]}),
            ev.ModelFailed(purpose="step", step_id=step, code="model_error", message="no"),
            ev.ValidationFailed(step_id=step, missing=("t",), mode="strict", enforced=True),
            *(ev.StepRejected(step_id=step, suspension_id=q) for q in QUESTIONS),
        ]
    for call in (*CALLS, "nowhere:1"):
        pool += [
            ev.ToolCallIntended(call_id=call, arguments={}),
            ev.ToolReturned(call_id=call, value=[1]),
            ev.ToolFailed(call_id=call, code="x", message="y"),
            ev.ToolOutcomeUnknown(call_id=call, message="lost"),
            *(ev.ToolCallIntended(call_id=call, suspension_id=q) for q in QUESTIONS),
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
INNER = (
    ev.ExecutionCreated,
    ev.PlanAccepted,
    ev.StepStarted,
    ev.ToolCallIntended,
    ev.ToolReturned,
    ev.ToolFailed,
    ev.ToolOutcomeUnknown,
    ev.Suspended,
    ev.SuspensionRevised,
    ev.SuspensionDecided,
    ev.SuspensionReminded,
    ev.SuspensionTimedOut,
    ev.SuspensionWithdrawn,
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
def logs(draw: st.DrawFn, min_size: int = 0) -> tuple[ev.Recorded, ...]:
    """Random legal logs through the whole state machine."""
    execution, recorded = NEW, list[ev.Recorded]()
    at = 1_000.0
    for _ in range(draw(st.integers(min_size, 40))):
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
        for old, new in zip(state.calls, after.steps[step_id].calls, strict=False):
            assert old.status not in CALL_SETTLED or new == old
            assert new.attempts >= old.attempts
    for name, suspension in before.suspensions.items():
        if not suspension.is_open:
            assert after.suspensions[name] == suspension
        assert suspension.alarmed <= after.suspensions[name].alarmed <= len(ALARMS)


@requirement("state:total")
@given(logs())
def test_outside_the_frontier_every_step_is_over_or_waits_for_others(log: tuple[ev.Recorded, ...]) -> None:
    """ours: what follows next is looked for in the frontier alone"""
    execution = NEW
    for entry in log:
        execution = apply(execution, entry.event, entry.at)
        steps = execution.steps
        assert execution.frontier == find_frontier(steps)
        for name in steps.keys() - {*execution.frontier}:
            needed = steps[name].step.dependencies
            is_waiting = needed and all(
                other not in steps or steps[other].status not in STEP_TERMINAL for other in needed
            )
            assert steps[name].status in STEP_TERMINAL or (steps[name].status == "pending" and is_waiting)


@requirement("state:total")
@given(logs())
def test_a_legal_log_follows_the_tables_and_undoes_nothing(log: tuple[ev.Recorded, ...]) -> None:
    """spec: style, 34"""
    execution = NEW
    for entry in log:
        after = apply(execution, entry.event, entry.at)
        assert_declared(after)
        assert_follows(execution, after)
        execution = after


@requirement("state:total")
@given(logs(), st.sampled_from(POOL) | EVENTS)
def test_an_event_is_applied_or_refused_and_the_old_state_is_unchanged(
    log: tuple[ev.Recorded, ...], event: ev.Event
) -> None:
    """spec: style, 4; nothing but IllegalTransition ever comes out"""
    execution, again = fold(NEW, log), fold(NEW, log)
    try:
        assert_declared(apply(execution, event, 5_000.0))
    except IllegalTransition as refusal:
        assert refusal.message
    assert execution == again


@requirement("state:total")
@given(logs(min_size=10))
def test_no_event_follows_a_terminal_status(log: tuple[ev.Recorded, ...]) -> None:
    """spec: state, terminal statuses have an empty row"""
    execution = fold(NEW, log)
    if execution.is_finished:
        # Only a larger budget leads out of `incomplete`, and nothing out of the others.
        beyond = (ev.ExecutionStarted,) if execution.status == "incomplete" else ()
        assert not [event for event in POOL if is_legal(execution, event) and not isinstance(event, beyond)]


@requirement("state:fold")
@given(logs())
def test_the_fold_of_the_stored_log_is_the_stored_state(log: tuple[ev.Recorded, ...]) -> None:
    """spec: design.md, the log is the only source of truth"""
    kept = NEW
    for entry in log:
        kept = apply(kept, entry.event, entry.at)
    stored = decode_events(encode_events(entry.event for entry in log))
    loaded = fold(NEW, [replace(entry, event=event) for entry, event in zip(log, stored, strict=True)])
    assert loaded == kept and repr(loaded) == repr(kept)


@requirement("state:fold")
@given(logs(), st.integers(0, 40))
def test_a_log_may_be_folded_in_any_number_of_parts(log: tuple[ev.Recorded, ...], cut: int) -> None:
    """ours: catching up reads only the tail"""
    assert fold(fold(NEW, log[:cut]), log[cut:]) == fold(NEW, log)


@requirement("state:total")
@pytest.mark.parametrize("kind", EVENT_TYPES, ids=[kind.__name__ for kind in EVENT_TYPES])
def test_every_event_is_legal_somewhere_and_leads_to_a_declared_status(kind: type[ev.Event]) -> None:
    """spec: style, 3; the tables are complete and closed"""
    rows = [row[kind] for row in TRANSITIONS.values() if kind in row]
    assert rows and set(rows) <= TRANSITIONS.keys()
    for table in (STEP_TRANSITIONS, CALL_TRANSITIONS):
        assert {row[kind] for row in table.values() if kind in row} <= table.keys()
