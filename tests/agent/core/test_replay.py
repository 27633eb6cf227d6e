"""Which logs replay: real ones do; one with a decision that the code would not take does not, from that event on."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import LogUnreadable
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.core.replay import ReplayFault, can_go_on, find_replay_fault
from planwarden.agent.core.state import TRANSITIONS, new_execution
from planwarden.agent.core.step_control import Loop, StepControl
from tests.requirements import requirement

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
    suspension_id="q",
    kind="approval",
    addressee="human",
    message="?",
    step_id="b",
    call_id="b:1",
    tool_name="u",
    arguments={},
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
WAIT = ev.Suspended(question=replace(ASKED, kind="wait", addressee="clock", call_id=None, step_id="a"))
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


@requirement("replay:decisions")
def test_other_words_in_a_message_are_no_other_decision() -> None:
    log: Log = [
        *a_log()[:4],
        [
            ev.ToolFailed(call_id="b:1", code="x", message="y"),
            ev.StepFailed(step_id="b", code="x", message="it did not work"),
            ev.ExecutionFailed(code="x", message="pity"),
        ],
    ]
    assert replay(log) is None
    log[4][1] = ev.StepFailed(step_id="b", code="other", message="it did not work")
    fault = replay(log)
    assert fault is not None and fault.event == "StepFailed"


@requirement("replay:decisions")
def test_a_reply_that_comes_after_the_wish_to_cancel_is_no_fault() -> None:
    steps = tuple(replace(step, dependencies=()) for step in PLAN.steps)
    log: Log = [
        [ev.ExecutionCreated(), ev.PlanAccepted(plan=Plan(steps=steps)), ev.StepStarted(step_id="a")],
        [ev.StepStarted(step_id="b"), ev.ToolCallIntended(call_id="b:1", arguments={})],
        [ev.CancelRequested()],
        [ev.ModelReplied(purpose="step", step_id="a", content="done")],
        [ev.ToolFailed(call_id="b:1", code="cancelled", message="m"), ev.ExecutionCancelled()],
    ]
    assert replay(log) is None


def a_loop(items: list[JsonValue], chosen: list[JsonValue], *released: str) -> Log:
    """A loop over literal items, asked about in one question of which some rows are approved, and the calls made."""
    control = StepControl(loop=Loop(items=[1, 2], max_concurrent=2))
    step = replace(PLAN.steps[1], dependencies=(), control=control)
    rows = tuple(
        ev.CoveredCall(step_id="b", tool_name="u", arguments={}, definition_digest="", call_id=f"b:{number}")
        for number in (1, 2)
    )
    asked = replace(ASKED, call_id=None, arguments=None, covers=rows)
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


@requirement("replay:decisions")
def test_a_log_that_cannot_be_read_says_from_where_on_and_only_an_incomplete_execution_can_go_on() -> None:
    assert ReplayFault.of_unreadable(LogUnreadable("no", sequence=7)).describe() == "from event 7 on: no"
    assert ReplayFault.of_unreadable(LogUnreadable("no")).describe() == "at all: no"
    over = {status for status in TRANSITIONS if not can_go_on(status)}
    assert over == {"completed", "rejected", "failed", "cancelled", "rehearsed"}
