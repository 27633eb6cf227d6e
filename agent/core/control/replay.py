"""Check whether a log replays: each event is legal, and `decide` would make each decision where the log has it.

Facts from outside (results, replies, answers, commands) only have to be legal where they are. The actions of
`decide` are compared by what they do, not by the words of their messages, which a later version may choose better.

One transaction may hold the results of several calls of `decide`. So a decision is legal if `decide` asks for it in any
of the states that the execution has during the transaction. A prompt stays expected until it is answered, because its
reply may arrive when the execution no longer needs it.

Not checked: what the operator's policy asked for, the tools' definitions, and what tools and models returned.
"""

from collections.abc import Hashable, Iterable, Iterator

import msgspec

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import IllegalTransition, LogUnreadable
from planwarden.agent.core.control.actions import (
    Action,
    AskModel,
    AskReview,
    BeginStep,
    DispatchCall,
    RevisePlan,
    WaitForModel,
)
from planwarden.agent.core.control.decide import decide
from planwarden.agent.core.control.step_start import begin_step
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.references import PartsNeeded
from planwarden.agent.core.execution.state import FINISHED, TRANSITIONS, ExecutionState, ExecutionStatus

Key = tuple[Hashable, ...]
"""Identifies an action by what it does, or an event by the action that it records."""
_WORDS = ("message", "reason")
"""Fields of events that hold only wording."""


class ReplayFault(msgspec.Struct, frozen=True, kw_only=True):
    """Where and why a log does not replay: its first event that fails."""

    sequence: int | None
    """None when the log does not say where its events belong."""
    event: str
    """The kind of event, for example `StepCompleted`; empty when it cannot be read."""
    reason: str

    @classmethod
    def of_unreadable(cls, error: LogUnreadable) -> "ReplayFault":
        """Return the fault of a log that cannot be read."""
        return cls(sequence=error.sequence, event="", reason=error.message)

    def describe(self) -> str:
        """Return the first event and why it does not replay, as the end of a sentence."""
        if self.sequence is None:
            return f"at all: {self.reason}"
        kind = f" ({self.event})" if self.event else ""
        return f"from event {self.sequence}{kind} on: {self.reason}"


def can_go_on(status: ExecutionStatus) -> bool:
    """Return whether an execution with this status may still do something: it is unfinished, or can be started
    again."""
    return status not in FINISHED or bool(TRANSITIONS[status])


def find_replay_fault(execution: ExecutionState, recorded: Iterable[ev.Recorded]) -> ReplayFault | None:
    """Replay from `execution`, which is new. Return the first event that fails; None when all of them replay."""
    expected: set[Key] = set()
    prompts: set[Key] = set()
    at: float | None = None
    for entry in recorded:
        if entry.at != at:
            expected, at = set(), entry.at
        keys = {key for action in decide(execution) for key in _list_keys(execution, action)}
        expected |= keys
        prompts |= {key for key in keys if key[0] == "prompt"}
        try:
            reason = _find_refusal(execution, entry.event, expected, prompts)
            execution = apply(execution, entry.event, entry.at)
        except IllegalTransition as error:
            reason = error.message
        if reason is not None:
            return ReplayFault(sequence=entry.sequence, event=type(entry.event).__name__, reason=reason)
    return None


def _find_refusal(execution: ExecutionState, event: ev.Event, expected: set[Key], prompts: set[Key]) -> str | None:
    """Return why the event is illegal here, or None. Raises `IllegalTransition` if it names something unknown."""
    match event:
        case ev.ModelReplied(suspension_id=None) | ev.ModelFailed():
            return _use_prompt(prompts, ("prompt", event.purpose, event.step_id))
        case ev.Suspended(question=question) if question.traits.purpose is not None:
            return _use_prompt(prompts, ("prompt", question.traits.purpose, question.step_id))
        case ev.ToolCallIntended(suspension_id=str(suspension_id)):
            suspension = execution.suspensions.get(suspension_id)
            if suspension is None or not suspension.releases(execution.call(event.call_id)):
                return f"call {event.call_id!r} consumes {suspension_id!r}, which does not release it"
        case _:
            pass
    keys = _list_reasons(execution, event)
    if keys is None or not expected.isdisjoint(keys):
        return None
    listed = "; ".join(sorted(" ".join(map(str, key)) for key in expected)) or "nothing"
    return f"the installed planwarden would not record this here; it expects {listed}"[:500]


def _use_prompt(prompts: set[Key], key: Key) -> str | None:
    if key not in prompts:
        return "the installed planwarden does not expect this reply here"
    prompts.discard(key)
    return None


def _list_keys(execution: ExecutionState, action: Action) -> Iterator[Key]:
    match action:
        case BeginStep(step_id=step_id):
            try:
                yield from map(_describe_decision, begin_step(execution, step_id, {}))
            except PartsNeeded:
                # The step needs an artifact, which a replay does not read.
                yield "begin", step_id
        case DispatchCall(call=call):
            yield "call", call.call_id
        case AskModel(purpose=purpose, step_id=step_id):
            yield "prompt", purpose, step_id
        case WaitForModel(step_id=step_id):
            yield "wait", step_id
        case AskReview():
            yield "review", None
        case RevisePlan(step_id=step_id):
            yield "revise", step_id
        case _:
            yield _describe_decision(action)


def _list_reasons(execution: ExecutionState, event: ev.Event) -> tuple[Key, ...] | None:
    """Return the actions of `decide` that may have led to the event; one is enough. None for a fact from outside."""
    match event:
        case ev.PlanRevised() | ev.RevisionRefused():
            return (("revise", event.step_id),)
        case ev.Suspended(question=question):
            return _list_reasons_to_ask(execution, question)
        case ev.ToolCallIntended() | ev.CallRejected() | ev.CallRehearsed():
            return (("call", event.call_id),)
        case ev.ToolReturned() | ev.ToolFailed():
            return _list_reasons_of_outcome(execution, event.call_id)
        case ev.StepStarted() | ev.LoopBegan() | ev.StepSkipped() | ev.StepFailed():
            return _describe_decision(event), ("begin", event.step_id)
        case _:
            return (_describe_decision(event),) if isinstance(event, _DECIDED) else None


def _list_reasons_to_ask(execution: ExecutionState, question: ev.Question) -> tuple[Key, ...] | None:
    if question.rows:
        return tuple(("call", row.call_id) for row in question.rows)
    if question.call_id is None:
        return ((question.kind, question.step_id),)
    if question.kind == "wait" and execution.call(question.call_id).last_failure is not None:
        # The wait follows from the failure, which is a fact.
        return None
    return _list_reasons_of_outcome(execution, question.call_id)


def _list_reasons_of_outcome(execution: ExecutionState, call_id: str) -> tuple[Key, ...] | None:
    """Return what may have decided the call's outcome; None for a running call, whose end is a fact from outside.

    In a loop, a call that cannot work may fail before its turn, so that no person is asked about it.
    """
    call = execution.call(call_id)
    if call.status == "running":
        return None
    state = execution.steps[call.step_id]
    due = state.list_open_calls() if call.status == "proposed" and state.items is not None else ()
    return ("call", call_id), *(("call", other.call_id) for other in due)


_DECIDED = (
    ev.StepCompleted,
    ev.StepRejected,
    ev.StepRehearsed,
    ev.ValidationFailed,
    ev.ExecutionPlanned,
    ev.ExecutionSuspended,
    ev.ExecutionCompleted,
    ev.ExecutionRejected,
    ev.ExecutionRehearsed,
    ev.ExecutionFailed,
    ev.ExecutionExhausted,
    ev.ExecutionCancelled,
)
"""Other events that only `decide` makes."""


def _describe_decision(event: ev.Event) -> Key:
    """Return what the event says, without the words that a later version may choose better."""
    fields = msgspec.structs.asdict(event)
    facts = (digest(list(value)) if name == "items" else value for name, value in fields.items() if name not in _WORDS)
    return (type(event).__name__, *facts)
