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


def without_proof(log: Log) -> Log:
    return [log[0], log[2][1:]]


def without_validation(log: Log) -> Log:
    log[2][1] = ev.StepCompleted(step_id="a", validation="skipped")
    return log


def against_the_answer(log: Log) -> Log:
    log[3][0] = decided(approved=False)
    return log


def with_a_foreign_answer(log: Log) -> Log:
    log[3][1] = ev.ToolCallIntended(call_id="b:1", arguments={}, suspension_id="another")
    return log


def without_an_answer(log: Log) -> Log:
    return [*log[:3], log[3][1:]]


def with_a_second_reply(log: Log) -> Log:
    log[2].insert(0, ev.ModelReplied(purpose="step", step_id="a", content="done"))
    return log


def before_its_dependency(log: Log) -> Log:
    log[0].append(ev.StepStarted(step_id="b"))
    return log


def over_too_early(log: Log) -> Log:
    return [*log[:2], [*log[2][:2], ev.ExecutionCompleted()]]


def at_a_budget_that_is_not_there(log: Log) -> Log:
    return [*log[:2], [*log[2][:2], ev.ExecutionExhausted(budget="toolCalls")]]


def waiting_for_a_provider_that_answered(log: Log) -> Log:
    question = replace(ASKED, kind="wait", addressee="clock", call_id=None, step_id="a")
    return [log[0], [ev.Suspended(question=question)]]


def with_a_revision_that_nobody_sent(log: Log) -> Log:
    log[1].insert(0, ev.RevisionRefused(step_id="a", message="no"))
    return log


def failed_and_called_complete(log: Log) -> Log:
    log[4][0] = ev.ToolFailed(call_id="b:1", code="x", message="y")
    return log


@requirement("replay:decisions")
@pytest.mark.parametrize(
    ("spoil", "sequence", "event"),
    [
        (without_proof, 4, "StepCompleted"),
        (without_validation, 7, "StepCompleted"),
        (against_the_answer, 12, "ToolCallIntended"),
        (with_a_foreign_answer, 12, "ToolCallIntended"),
        (without_an_answer, 11, "ToolCallIntended"),
        (with_a_second_reply, 6, "ModelReplied"),
        (before_its_dependency, 4, "StepStarted"),
        (over_too_early, 8, "ExecutionCompleted"),
        (at_a_budget_that_is_not_there, 8, "ExecutionExhausted"),
        (waiting_for_a_provider_that_answered, 4, "Suspended"),
        (with_a_revision_that_nobody_sent, 4, "RevisionRefused"),
        (failed_and_called_complete, 14, "StepCompleted"),
    ],
)
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
def test_a_log_that_cannot_be_read_says_from_where_on() -> None:
    assert ReplayFault.of_unreadable(LogUnreadable("no", sequence=7)).describe() == "from event 7 on: no"
    assert ReplayFault.of_unreadable(LogUnreadable("no")).describe() == "at all: no"


@requirement("replay:decisions")
def test_an_incomplete_execution_can_go_on_and_no_other_finished_one_can() -> None:
    over = {status for status in TRANSITIONS if not can_go_on(status)}
    assert over == {"completed", "rejected", "failed", "cancelled", "rehearsed"}
