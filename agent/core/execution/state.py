"""The state of an execution: the tables of legal transitions, and the values that a log folds into.

Rules:
* The three tables below say which event may follow in which status of an execution, a step and a call. A terminal
  status has an empty row. Nothing else changes a status.
* `fold.apply` is total over the tables: a legal event returns a new `ExecutionState`, any other
  raises `IllegalTransition` and changes nothing. No clock, no ids, no I/O: the time comes with the event.

    execution   running <-> suspended        step   pending -> in_progress <-> suspended
                running  -> planned -> running       |            |-> completed | failed | rejected
                running <-> incomplete               '-> skipped     |-> rehearsed
                running  -> completed | rejected
                            | failed | cancelled    proposed -> running -> succeeded | failed | outcome_unknown
                            | rehearsed             proposed -> suspended -> decided -> running | succeeded
                                                    proposed -> rehearsed
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.common.struct import FrozenStruct, JsonValue
from planwarden.agent.core.binding.bindings import EarlierResult, Reference
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.plan.plan import ItemOrder, Plan, PlanStep

ExecutionStatus = Literal[
    "new", "running", "planned", "suspended", "completed", "rejected", "failed", "incomplete", "cancelled", "rehearsed"
]
StepStatus = Literal["pending", "in_progress", "suspended", "completed", "rejected", "failed", "skipped", "rehearsed"]
CallStatus = Literal[
    "proposed", "running", "suspended", "decided", "succeeded", "failed", "rejected", "outcome_unknown", "rehearsed"
]

_ASKED_ON: tuple[type[ev.Event], ...] = (ev.SuspensionRevised, ev.SuspensionEndorsed, ev.SuspensionReminded)
"""Events after which a question stays open."""
_ANSWERED: tuple[type[ev.Event], ...] = (ev.SuspensionDecided, ev.SuspensionTimedOut, ev.SuspensionWithdrawn)
_ABOUT_CALLS: tuple[type[ev.Event], ...] = (
    ev.ToolCallIntended,
    ev.ToolReturned,
    ev.ToolFailed,
    ev.CallAttemptFailed,
    ev.CallRejected,
    ev.ToolOutcomeUnknown,
)
_STARTS = (ev.ExecutionCreated, ev.ExecutionStarted)

TRANSITIONS: dict[ExecutionStatus, dict[type[ev.Event], ExecutionStatus]] = {
    "new": {ev.ExecutionCreated: "running"},
    "running": {
        **{event: "running" for event in ev.EVENT_TYPES if event not in _STARTS},
        ev.ExecutionPlanned: "planned",
        ev.ExecutionSuspended: "suspended",
        ev.ExecutionCompleted: "completed",
        ev.ExecutionRehearsed: "rehearsed",
        ev.ExecutionRejected: "rejected",
        ev.ExecutionFailed: "failed",
        ev.ExecutionExhausted: "incomplete",
        ev.ExecutionCancelled: "cancelled",
    },
    "planned": {ev.ExecutionStarted: "running", ev.CancelRequested: "running"},
    "suspended": {
        **{event: "running" for event in (*_ANSWERED, ev.CancelRequested)},
        **{event: "suspended" for event in (*_ASKED_ON, ev.PlanRevised, ev.CallReportedLate)},
    },
    "completed": {},
    "rejected": {},
    "failed": {},
    "incomplete": {ev.ExecutionStarted: "running"},
    "cancelled": {},
    "rehearsed": {},
}

STEP_TRANSITIONS: dict[StepStatus, dict[type[ev.Event], StepStatus]] = {
    "pending": {ev.StepStarted: "in_progress", ev.StepSkipped: "skipped"},
    "in_progress": {
        **{event: "in_progress" for event in (*_ABOUT_CALLS, ev.CallRehearsed)},
        **{event: "in_progress" for event in (ev.LoopBegan, ev.ModelReplied, ev.ModelFailed, ev.ValidationFailed)},
        # The answer to one of several questions about calls of a loop leaves the others open.
        **{event: "in_progress" for event in (*_ANSWERED, *_ASKED_ON)},
        ev.Suspended: "suspended",
        ev.StepCompleted: "completed",
        ev.StepFailed: "failed",
        ev.StepRejected: "rejected",
        ev.StepRehearsed: "rehearsed",
    },
    "suspended": {
        **{event: "in_progress" for event in _ANSWERED},
        # Calls of a loop run while others are asked about or wait for their next attempt.
        **{event: "suspended" for event in (*_ASKED_ON, *_ABOUT_CALLS, ev.Suspended)},
    },
    "completed": {},
    "rejected": {},
    "failed": {},
    "skipped": {},
    "rehearsed": {},
}

CALL_TRANSITIONS: dict[CallStatus, dict[type[ev.Event], CallStatus]] = {
    "proposed": {
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.CallRejected: "rejected",
        # A person rejected all rows of the one question about many calls of a loop.
        ev.StepRejected: "rejected",
        ev.Suspended: "suspended",
        ev.CallRehearsed: "rehearsed",
    },
    "running": {
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.ToolOutcomeUnknown: "outcome_unknown",
        ev.CallAttemptFailed: "proposed",
        ev.Suspended: "suspended",
        ev.CallRehearsed: "rehearsed",
    },
    "suspended": {**{event: "suspended" for event in _ASKED_ON}, **{event: "decided" for event in _ANSWERED}},
    "decided": {
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.Suspended: "suspended",
        ev.StepRejected: "rejected",
    },
    "outcome_unknown": {
        **{event: "outcome_unknown" for event in (*_ASKED_ON, ev.Suspended)},
        ev.SuspensionDecided: "outcome_unknown",
        ev.SuspensionTimedOut: "outcome_unknown",
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.CallRehearsed: "rehearsed",
    },
    "succeeded": {},
    "failed": {},
    "rejected": {},
    "rehearsed": {},
}

FINISHED: frozenset[ExecutionStatus] = frozenset(
    {"completed", "rejected", "failed", "incomplete", "cancelled", "rehearsed"}
)
"""Nothing runs and nobody is asked. Only `incomplete` can be continued."""
STEP_TERMINAL: frozenset[StepStatus] = frozenset(status for status, row in STEP_TRANSITIONS.items() if not row)
CALL_SETTLED: frozenset[CallStatus] = frozenset(status for status, row in CALL_TRANSITIONS.items() if not row)


class Call(ev.CallFacts, array_like=False):
    """One tool call of a step, from proposal to result."""

    status: CallStatus = "proposed"
    error_code: str | None = None
    error_message: str | None = None
    suspension_id: str | None = None
    """The latest question about this call."""
    consumed: tuple[str, ...] = ()
    """Suspensions whose answers released a dispatch; each releases one."""
    attempts: int = 0
    """How often it was dispatched."""
    intended_at: float | None = None
    """When it was last dispatched, Unix seconds by the store's clock."""
    grant_id: str | None = None
    """The standing grant that let it through."""
    rule: ev.MatchedRule | None = None
    """The operator's rule that let it through, or denied it."""
    once: ev.OnceKey | None = None
    """The business key that the store keeps for it."""
    shares: tuple[ev.BudgetShare, ...] = ()
    """What it took of budgets."""
    last_failure: str | None = None
    """Why the last attempt failed, while the call waits for the next one."""
    late_report: str | None = None
    """What a process that had lost the execution reported about this call since it was last dispatched."""
    rehearsed: ev.CallRehearsed | None = None
    """What the call would have been, if a rehearsal did not make it."""


class ModelTurn(FrozenStruct):
    """One model reply within a step."""

    content: str | None
    call_ids: tuple[str, ...]
    enforced: bool
    """True when the reply answered an enforcement prompt."""


class ModelOutage(FrozenStruct):
    """A prompt that its provider did not answer, from the first failure until there is an answer."""

    attempts: int
    """How many failed."""
    since: float
    """When the first one failed, Unix seconds."""
    failed_at: float
    """When the last one failed."""
    message: str
    """Why the last one failed."""
    asked_s: float | None = None
    """As in the last `ModelFailed`."""
    suspension_id: str | None = None
    """The wait after the last failure; None before it begins."""


class StepState(FrozenStruct):
    step: PlanStep
    status: StepStatus = "pending"
    calls: Sequence[Call] = ()
    """A tuple, or a `LongTuple`."""
    turns: tuple[ModelTurn, ...] = ()
    retries: int = 0
    """Enforcement prompts spent."""
    enforcing: bool = False
    """The next prompt is an enforcement prompt."""
    notes: tuple[str, ...] = ()
    """What the next prompt adds to the step: refused revisions of the plan."""
    warned: bool = False
    """An advisory step's missing tools were recorded."""
    validation: ev.ValidationStatus | None = None
    error_code: str | None = None
    error_message: str | None = None
    """Why it failed, was rejected, or was skipped for a condition of its own."""
    rejected_by: str | None = None
    """The suspension whose answer rejected the step."""
    outage: ModelOutage | None = None
    skipped_by: str | None = None
    """Why the step was skipped: what `StepSkipped.because` says."""
    is_passed_over: bool = False
    """It was skipped because its condition, or that of a step it needs, did not hold: others may go on without it."""
    items: tuple[JsonValue, ...] | None = None
    """The items of the step's loop, once they are known; `calls` has the calls of each item in turn."""
    item_order: ItemOrder = ItemOrder()
    """In which order the loop makes the calls of its items."""
    wave: int = 0
    """How many waves of `item_order` are over."""
    items_over: int = 0
    """How many of the first items have no further call in this wave."""
    failed_items: int = 0
    taken_from: str | None = None
    """The execution whose log proves the step, if the step was taken over as completed."""
    waits_for: tuple[str, ...] = ()
    """Unfinished steps that this step depends on only through steps that were taken over: a confirmation that is asked
    again holds up everything after it."""
    reuse: ev.TakenStep | None = None
    """What a loop that has not begun takes over for its items."""

    def list_item_calls(self, index: int) -> tuple[Call, ...]:
        """Return the calls of one item, in order."""
        size = len(self.step.tool_calls)
        return tuple(self.calls[index * size : (index + 1) * size])

    def find_next_call(self, index: int) -> Call | None:
        """Return the call of the item that this wave still has to make or to settle; None if there is none.

        No call follows a failed or rejected one, and none takes a result that only a real run would have.
        """
        order, calls = self.item_order, self.list_item_calls(index)
        if any(call.status in ("failed", "rejected") for call in calls):
            return None
        open_calls = (n for n in range(order.ends[self.wave]) if calls[n].status not in CALL_SETTLED)
        number = next(open_calls, None)
        if number is None or any(calls[source].status != "succeeded" for source in order.takes[number]):
            return None
        return calls[number]

    def has_begun_item(self, calls: Sequence[Call]) -> bool:
        """Return whether a call of this wave was made for the item that has these calls."""
        order = self.item_order
        start = order.ends[self.wave - 1] if self.wave else 0
        return any(call.status != "proposed" for call in calls[start : order.ends[self.wave]])

    def list_known_calls(self) -> Sequence[Call]:
        """Return the calls; of a step that was taken over, only those with a result: the earlier log has the others."""
        return self.calls if self.taken_from is None else tuple(call for call in self.calls if call.origin)

    def find_item(self, call: Call) -> tuple[JsonValue, int] | None:
        """Return the item that the call is made for, and its index; None outside of a loop."""
        if self.items is None:
            return None
        index = call.place // len(self.step.tool_calls)
        return self.items[index], index

    def list_open_calls(self) -> Iterator[Call]:
        """Yield every call that may be on its way or asked about, and perhaps others, but not all of a long loop.

        Items begin in their order, so nothing is on its way beyond the first one that has not begun.
        """
        if self.items is None:
            yield from self.calls
        for index in range(self.items_over, len(self.items or ())):
            calls = self.list_item_calls(index)
            yield from calls
            if not self.has_begun_item(calls) and self.find_next_call(index) is not None:
                return

    @property
    def needs(self) -> tuple[str, ...]:
        """Every step that must be over first."""
        return (*self.step.dependencies, *self.waits_for) if self.waits_for else self.step.dependencies

    @property
    def is_done(self) -> bool:
        """It is completed, was only rehearsed, or is not needed because its condition did not hold."""
        return self.status in ("completed", "rehearsed") or (self.status == "skipped" and self.is_passed_over)

    @property
    def has_begun(self) -> bool:
        """It has begun, or calls were taken over for it, which no revision of the plan may drop."""
        return self.status != "pending" or self.reuse is not None or any(call.origin for call in self.calls)

    @property
    def iterations(self) -> int:
        return sum(1 for turn in self.turns if not turn.enforced)

    @property
    def result(self) -> JsonValue:
        """What other steps can bind to: the value of the one call, the list of several, or the model's text.

        For a loop the list of its items' results, with null for items that failed or were rejected.
        """
        if self.items is not None:
            return [self._build_item_result(index) for index in range(len(self.items))]
        values = [call.value for call in self.calls if call.status == "succeeded"]
        if values:
            return values[0] if len(values) == 1 else values
        return self.turns[-1].content if self.turns else None

    def _build_item_result(self, index: int) -> JsonValue:
        calls = self.list_item_calls(index)
        if any(call.status != "succeeded" for call in calls):
            return None
        return calls[0].value if len(calls) == 1 else [call.value for call in calls]


class EndorsementState(FrozenStruct):
    """One approval of several."""

    principal: str
    assurance: ev.Assurance
    channel: str
    at: float
    content: JsonValue = None
    """The answer that it gives, where the question asks for one."""


class SuspensionState(FrozenStruct):
    question: ev.Question
    created_at: float
    status: Literal["pending", "decided", "timed_out", "withdrawn"] = "pending"
    decision: ev.RecordedDecision | None = None
    assurance: ev.Assurance | None = None
    channel: str | None = None
    principal: str | None = None
    decided_at: float | None = None
    decided_digest: str = ""
    """Digest of the revision that the decision was about."""
    first: ev.Question | None = None
    """The revision that was asked first; None while it is the only one."""
    endorsements: tuple[EndorsementState, ...] = ()
    """Approvals of this revision so far, one for each person."""
    alarmed: int = 0
    """How many alarms are over: fired, or missed while no process ran."""

    @property
    def is_open(self) -> bool:
        return self.status == "pending"

    def releases(self, call: Call) -> bool:
        """Return whether the answer lets the call run: an approval of it or of what covers it, or any to an `asker`."""
        if self.question.call_id == call.call_id:
            return self.decision is not None and (self.decision.approved or bool(self.question.asker))
        return any(row.is_about(call.step_id, call.tool_name, call.call_id) for row in self.covered)

    @property
    def covered(self) -> tuple[ev.CoveredCall, ...]:
        """The further calls that its approval lets through: later ones, the chosen rows, and those of a plan only if
        the answer says so."""
        if self.decision is None or not self.decision.approved:
            return ()
        question, content = self.question, self.decision.content
        if question.rows:
            return tuple(question.rows[place] for place in question.choose_rows(content))
        is_meant = isinstance(content, dict) and content.get("cover") is True
        return question.covers if question.kind != "review" or is_meant else ()


class TokenUsage(FrozenStruct):
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    """Calls that were dispatched."""


class ExecutionState(ev.CreationFacts, array_like=False, kw_only=True):
    """The fold of a log; immutable."""

    execution_id: str
    thread_id: str
    principal: str
    """Whose execution it is; everything that is asked and decided about it is bound to this name."""
    status: ExecutionStatus = "new"
    version: int = 0
    """Number of events folded."""
    plan: Plan | None = None
    warnings: tuple[str, ...] = ()
    pins: Mapping[str, str] = {}
    """For each tool that the plan names or named, the beginning of its digest then; empty text if it had none."""
    earlier: Mapping[Reference, EarlierResult] = {}
    """What the plan takes from earlier executions of the thread."""
    inputs: Mapping[str, JsonValue] = {}
    """What the run was given."""
    refusals: tuple[str, ...] = ()
    """Why plans of the model were refused, oldest first."""
    steps: Mapping[str, StepState] = {}
    """In plan order."""
    stopped_by: str | None = None
    """The step whose rejection ends the plan: no further step begins."""
    suspensions: Mapping[str, SuspensionState] = {}
    """In the order in which they were opened."""
    revisions: tuple[tuple[str, JsonValue], ...] = ()
    """Patches of the plan that are still to be judged, with the step whose reply carried each."""
    is_reviewed: bool = False
    """A person approved the plan as it is now, before it started."""
    synthesis: str | None = None
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    sources: frozenset[str] = frozenset()
    """Names of the model replies already used."""
    cancel_requested: bool = False
    cancel_reason: str | None = None
    exhausted: str | None = None
    """The budget that ran out; `modelPatience` is the time to wait for a provider."""
    error_code: str | None = None
    error_message: str | None = None
    model_error: tuple[str, str] | None = None
    """Code and message of a failed plan or synthesis prompt."""
    outage: ModelOutage | None = None
    """The outage of the plan or synthesis prompt."""
    created_at: float = 0.0
    updated_at: float = 0.0
    active_s: float = 0.0
    """Seconds spent in status `running`, as far as the log shows."""
    client_ids: frozenset[str] = frozenset()
    """OAuth clients that created or started it; none of them can vouch for a person who decides."""
    again: tuple[ev.EarlierRun, ...] = ()
    """Steps that run again although an earlier execution ran them."""
    rejected_before: frozenset[str] = frozenset()
    """Steps that were rejected in the execution that it goes on from."""
    is_revised: bool = False
    """Somebody changed the plan after it was accepted: it is no longer what `saved_plan` says."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_as_saved(self) -> bool:
        """It runs a saved plan from the beginning, and nobody changed the plan or the arguments of one of its calls."""
        return (
            self.saved_plan is not None
            and self.plan is not None
            and self.retry_of is None
            and not self.is_revised
            and not any(suspension.question.edits for suspension in self.suspensions.values())
        )

    @property
    def steps_over(self) -> int:
        """How many steps have ended, in whatever way."""
        return sum(state.status in STEP_TERMINAL for state in self.steps.values())

    @property
    def steps_done(self) -> int:
        """How many steps are `is_done`."""
        return sum(state.is_done for state in self.steps.values())

    @property
    def frontier(self) -> tuple[str, ...]:
        """The steps for which something can follow next, in plan order: pending ones without dependencies or with one
        that is over, and every step in progress."""
        over = {name for name, state in self.steps.items() if state.status in STEP_TERMINAL}
        return tuple(
            name
            for name, state in self.steps.items()
            if name not in over
            and (state.status != "pending" or not (needs := state.needs) or not over.isdisjoint(needs))
        )

    def find_suspensions(self, kind: ev.SuspensionKind) -> list[SuspensionState]:
        """Return those of one kind, oldest first."""
        return [suspension for suspension in self.suspensions.values() if suspension.question.kind == kind]

    @property
    def open_suspensions(self) -> tuple[SuspensionState, ...]:
        return tuple(suspension for suspension in self.suspensions.values() if suspension.is_open)

    @property
    def only_call(self) -> Call | None:
        """The call of an execution that makes one; None for every other."""
        calls = [call for state in self.steps.values() for call in state.calls]
        return calls[0] if len(calls) == 1 else None

    def call(self, call_id: str) -> Call:
        """Return the call with that id; raises `IllegalTransition` when there is none."""
        step_id, _, number = call_id.rpartition(":")
        try:
            # Calls are numbered in their order, from 1.
            call = self.steps[step_id].calls[int(number) - 1]
        except (KeyError, ValueError, IndexError):
            call = None
        if call is None or call.call_id != call_id:
            raise IllegalTransition(f"execution {self.execution_id!r} has no call {call_id!r}")
        return call


def new_execution(execution_id: str, thread_id: str, principal: str) -> ExecutionState:
    """Return the state before the first event."""
    return ExecutionState(execution_id=execution_id, thread_id=thread_id, principal=principal)
