"""The state of an execution: the tables of legal transitions, and the values that a log folds into.

Rules:
* For each status of an execution, a step and a call, the three tables below list the events that may follow. A
  terminal status has an empty row. Nothing else changes a status.
* `fold.apply` handles every event: for a legal one it returns a new `ExecutionState`, for any other it raises
  `IllegalTransition` and changes nothing. It reads no clock, makes no ids and does no I/O; the caller gives the time.

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

_STAYS_OPEN: tuple[type[ev.Event], ...] = (ev.SuspensionRevised, ev.SuspensionEndorsed, ev.SuspensionReminded)
"""Events after which a question stays open."""
_CLOSES: tuple[type[ev.Event], ...] = (ev.SuspensionDecided, ev.SuspensionTimedOut, ev.SuspensionWithdrawn)
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
        **{event: "running" for event in (*_CLOSES, ev.CancelRequested)},
        **{event: "suspended" for event in (*_STAYS_OPEN, ev.PlanRevised, ev.CallReportedLate)},
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
        # A loop can have several questions open; the answer to one of them leaves the others open.
        **{event: "in_progress" for event in (*_CLOSES, *_STAYS_OPEN)},
        ev.Suspended: "suspended",
        ev.StepCompleted: "completed",
        ev.StepFailed: "failed",
        ev.StepRejected: "rejected",
        ev.StepRehearsed: "rehearsed",
    },
    "suspended": {
        **{event: "in_progress" for event in _CLOSES},
        # Some calls of a loop run while others wait for an answer or for their next attempt.
        **{event: "suspended" for event in (*_STAYS_OPEN, *_ABOUT_CALLS, ev.Suspended)},
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
        # A person rejected every row of a question about many calls of a loop.
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
    "suspended": {**{event: "suspended" for event in _STAYS_OPEN}, **{event: "decided" for event in _CLOSES}},
    "decided": {
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.Suspended: "suspended",
        ev.StepRejected: "rejected",
    },
    "outcome_unknown": {
        **{event: "outcome_unknown" for event in (*_STAYS_OPEN, ev.Suspended)},
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
"""Statuses in which nothing runs and no question is open. Only an `incomplete` execution can be continued."""
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
    """Suspensions whose answers have been used to dispatch the call; each answer allows one dispatch."""
    attempts: int = 0
    """How often the call was dispatched."""
    nothing_happened: bool = False
    """Whether the call failed and its tool or planwarden said that nothing was done."""
    intended_at: float | None = None
    """When the call was last dispatched, in Unix seconds by the store's clock."""
    grant_id: str | None = None
    """The standing grant that let the call through."""
    rule: ev.MatchedRule | None = None
    """The operator's rule that let the call through, or denied it."""
    once: ev.OnceKey | None = None
    """The business key that the store reserves for the call."""
    shares: tuple[ev.BudgetShare, ...] = ()
    """What the call took from budgets."""
    last_failure: str | None = None
    """Why the last attempt failed; None again once the next attempt begins."""
    late_report: str | None = None
    """What a process that no longer owns the execution has reported about this call since its last dispatch."""
    rehearsed: ev.CallRehearsed | None = None
    """In a rehearsal that did not make the call: what the call would have been."""


class ModelTurn(FrozenStruct):
    """One model reply within a step."""

    content: str | None
    call_ids: tuple[str, ...]
    enforced: bool
    """True when the reply answered an enforcement prompt."""
    revision_refused: bool = False
    """Whether the reply's revision of the plan was refused; the model is asked again before the step completes."""


class ModelOutage(FrozenStruct):
    """An outage of a provider: its failures to answer one prompt, from the first failure until an answer."""

    attempts: int
    """How many attempts failed."""
    since: float
    """When the first attempt failed, in Unix seconds."""
    failed_at: float
    """When the last attempt failed, in Unix seconds."""
    message: str
    """Why the last attempt failed."""
    asked_s: float | None = None
    """The seconds that the provider asked to wait after the last failure."""
    suspension_id: str | None = None
    """The suspension of the wait after the last failure; None before that wait begins."""


class StepState(FrozenStruct):
    step: PlanStep
    status: StepStatus = "pending"
    calls: Sequence[Call] = ()
    """A tuple, or a `LongTuple`."""
    turns: tuple[ModelTurn, ...] = ()
    retries: int = 0
    """How many enforcement prompts were used."""
    enforcing: bool = False
    """Whether the next prompt is an enforcement prompt."""
    revision_refused: str | None = None
    """Why the last plan revision from the step's model was refused; None if it was accepted or none was sent."""
    warned: bool = False
    """Whether the step is advisory and its missing tools have been recorded as a warning."""
    validation: ev.ValidationStatus | None = None
    error_code: str | None = None
    error_message: str | None = None
    """Why the step failed or was rejected, or which of its own conditions did not hold, so that it was skipped."""
    rejected_by: str | None = None
    """The suspension whose answer rejected the step."""
    outage: ModelOutage | None = None
    skipped_by: str | None = None
    """Why the step was skipped: what `StepSkipped.because` says."""
    condition_failed: bool = False
    """Whether the step was skipped because a condition, its own or a needed step's, failed; later steps may go on."""
    items: tuple[JsonValue, ...] | None = None
    """The items of the step's loop, once known; `calls` holds all calls of the first item, then of the second, etc."""
    item_order: ItemOrder = ItemOrder()
    """In which order the loop makes the calls of its items."""
    wave: int = 0
    """How many waves of `item_order` are over."""
    finished_items: int = 0
    """The items before this index have no call left to make in this wave."""
    failed_items: int = 0
    taken_from: str | None = None
    """If the step was taken over as completed: the earlier execution whose log proves it; None otherwise."""
    waits_for: tuple[str, ...] = ()
    """Unfinished steps before a taken-over step on which this step depends. An unfinished step may be a confirmation
    that is asked again, and everything after it must wait."""
    reuse: ev.TakenStep | None = None
    """What a loop, once it begins, will reuse for its items from the earlier execution."""

    def list_item_calls(self, index: int) -> tuple[Call, ...]:
        """Return the calls of one item, in order."""
        size = len(self.step.tool_calls)
        return tuple(self.calls[index * size : (index + 1) * size])

    def find_next_call(self, index: int) -> Call | None:
        """Return the item's next call that this wave has to make or settle; None if there is none.

        None, too, if a call failed or was rejected, or if the next call takes a result that only a real run would give.
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
        """Return whether one of these calls, which all belong to one item, has begun in this wave."""
        order = self.item_order
        start = order.ends[self.wave - 1] if self.wave else 0
        return any(call.status != "proposed" for call in calls[start : order.ends[self.wave]])

    def list_known_calls(self) -> Sequence[Call]:
        """Return the calls; for a step that was taken over, only those with a result: the earlier log has the rest."""
        return self.calls if self.taken_from is None else tuple(call for call in self.calls if call.origin)

    def find_item(self, call: Call) -> tuple[JsonValue, int] | None:
        """Return the item for which the call is made, and its index; None if the step has no loop."""
        if self.items is None:
            return None
        index = call.index // len(self.step.tool_calls)
        return self.items[index], index

    def list_open_calls(self) -> Iterator[Call]:
        """Yield every running or waiting call, and perhaps others; skip a loop's items that have not begun."""
        if self.items is None:
            yield from self.calls
        for index in range(self.finished_items, len(self.items or ())):
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
        """Whether the step is completed, was only rehearsed, or was passed over because a condition did not hold."""
        return self.status in ("completed", "rehearsed") or (self.status == "skipped" and self.condition_failed)

    @property
    def has_begun(self) -> bool:
        """Whether the step has begun or has taken over calls; no revision of the plan may drop such a step."""
        return self.status != "pending" or self.reuse is not None or any(call.origin for call in self.calls)

    @property
    def iterations(self) -> int:
        return sum(1 for turn in self.turns if not turn.enforced)

    @property
    def result(self) -> JsonValue:
        """What other steps can bind to: the only call's value, a list of several calls' values, or the model's text.

        For a loop, it is the list of the results of its items, with null for items that failed or were rejected.
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
    """One of several approvals that a question needs."""

    principal: str
    assurance: ev.Assurance
    channel: str
    at: float
    content: JsonValue = None
    """The answer that comes with the approval, if the question asks for one."""


class SuspensionState(FrozenStruct):
    question: ev.Question
    created_at: float
    status: Literal["pending", "decided", "timed_out", "withdrawn"] = "pending"
    decision: ev.RecordedDecision | None = None
    assurance: ev.Assurance | None = None
    channel: str | None = None
    principal: str | None = None
    claim: str = ""
    """The reason that a model gave for a rejection; never shown as a person's."""
    decided_at: float | None = None
    decided_digest: str = ""
    """Digest of the revision that the decision was about."""
    first: ev.Question | None = None
    """The revision that was asked first; None while it is the only one."""
    endorsements: tuple[EndorsementState, ...] = ()
    """Approvals of this revision so far, at most one for each principal."""
    alarmed: int = 0
    """How many alarms are past: they fired, or were missed because no process was running."""

    @property
    def is_open(self) -> bool:
        return self.status == "pending"

    def releases(self, call: Call) -> bool:
        """Return whether the answer lets the call run: it approves or covers the call, or an `asker` waits for it."""
        if self.question.call_id == call.call_id:
            return self.decision is not None and (self.decision.approved or bool(self.question.asker))
        return any(row.is_about(call.step_id, call.tool_name, call.call_id) for row in self.covered)

    @property
    def covered(self) -> tuple[ev.CoveredCall, ...]:
        """The other calls that an approval lets run: later calls that the question names, selected rows or, only if the
        answer says so, the calls of a plan."""
        if self.decision is None or not self.decision.approved:
            return ()
        question, content = self.question, self.decision.content
        if question.rows:
            return tuple(question.rows[index] for index in question.choose_rows(content))
        is_meant = isinstance(content, dict) and content.get("cover") is True
        return question.covers if question.kind != "review" or is_meant else ()


class Usage(FrozenStruct):
    """What an execution used."""

    model_calls: int = 0
    """Replies of a model, including those of the caller."""
    input_tokens: int = 0
    """As counted by the provider."""
    output_tokens: int = 0
    """As counted by the provider."""
    tool_calls: int = 0
    """Calls of tools."""


class ExecutionState(ev.CreationFacts, array_like=False, kw_only=True):
    """The state that results from folding a log; immutable."""

    execution_id: str
    thread_id: str
    principal: str
    """The owner of the execution; every question and decision about it is bound to this name."""
    status: ExecutionStatus = "new"
    version: int = 0
    """Number of events folded."""
    plan: Plan | None = None
    agreed_plan: Plan | None = None
    """The plan as it was accepted, or as a person last approved it in a review, without a model's later revisions."""
    warnings: tuple[str, ...] = ()
    pins: Mapping[str, str] = {}
    """For each tool that the plan ever named: the beginning of its first known digest; empty if none is known."""
    earlier: Mapping[Reference, EarlierResult] = {}
    """What the plan takes from earlier executions of the thread."""
    inputs: Mapping[str, JsonValue] = {}
    refusals: tuple[str, ...] = ()
    """Why plans of the model were refused, oldest first."""
    steps: Mapping[str, StepState] = {}
    """In plan order."""
    stopped_by: str | None = None
    """The step whose rejection ends the plan: no further step begins."""
    suspensions: Mapping[str, SuspensionState] = {}
    """In the order in which they were opened."""
    revisions: tuple[tuple[str, JsonValue], ...] = ()
    """Patches of the plan that have yet to be judged, each with the id of the step whose reply proposed it."""
    is_reviewed: bool = False
    """Whether a person approved the plan as it is now, before it started."""
    synthesis: str | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    sources: frozenset[str] = frozenset()
    """Names of the model replies already used."""
    cancel_requested: bool = False
    cancel_reason: str | None = None
    exhausted: str | None = None
    """Name of the budget that ran out; `modelPatience` is the budget of time to wait for a provider."""
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
    """OAuth clients that created or started the execution; none of them may confirm that a person made a decision."""
    again: tuple[ev.EarlierRun, ...] = ()
    """Steps that run again although an earlier execution ran them."""
    rejected_before: Mapping[str, ev.Assurance | None] = {}
    """Steps rejected in the execution that this one continues, each with its answer's assurance; None if unknown."""
    is_revised: bool = False
    """Whether the plan was changed after it was accepted, so that it no longer matches `saved_plan`."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def goal_and_inputs(self) -> JsonValue:
        """What the requester wrote; a value that occurs in it word for word does not count as a placeholder."""
        return [self.goal, dict(self.inputs)]

    @property
    def is_as_saved(self) -> bool:
        """Whether a saved plan runs from the beginning, and nobody changed the plan or the arguments of a call."""
        return (
            self.saved_plan is not None
            and self.plan is not None
            and self.retry_of is None
            and not self.is_revised
            and not any(suspension.question.edits for suspension in self.suspensions.values())
        )

    @property
    def ended_steps(self) -> int:
        """How many steps have ended, successfully or not."""
        return sum(state.status in STEP_TERMINAL for state in self.steps.values())

    @property
    def steps_done(self) -> int:
        """How many steps are `is_done`."""
        return sum(state.is_done for state in self.steps.values())

    @property
    def frontier(self) -> list[str]:
        """The steps that can change next, in plan order: all that have begun and not ended, and pending ones that have
        no dependencies or at least one that has ended."""
        over = {name for name, state in self.steps.items() if state.status in STEP_TERMINAL}
        return [
            name
            for name, state in self.steps.items()
            if name not in over
            and (state.status != "pending" or not (needs := state.needs) or not over.isdisjoint(needs))
        ]

    def find_suspensions(self, kind: ev.SuspensionKind) -> list[SuspensionState]:
        """Return the suspensions of one kind, oldest first."""
        return [suspension for suspension in self.suspensions.values() if suspension.question.kind == kind]

    @property
    def open_suspensions(self) -> tuple[SuspensionState, ...]:
        return tuple(suspension for suspension in self.suspensions.values() if suspension.is_open)

    @property
    def wakes_at(self) -> float | None:
        """When the execution goes on by itself, in Unix seconds, if it waits only for the clock; None otherwise."""
        questions = [suspension.question for suspension in self.open_suspensions]
        if self.status != "suspended" or any(question.addressee != "clock" for question in questions):
            return None
        return min((question.expires_at for question in questions if question.expires_at is not None), default=None)

    def find_call(self, call_id: str) -> Call | None:
        """Return the call with that id; None if there is none."""
        step_id, _, number = call_id.rpartition(":")
        try:
            # Calls are numbered in their order, from 1.
            call = self.steps[step_id].calls[int(number) - 1]
        except (KeyError, ValueError, IndexError):
            return None
        return call if call.call_id == call_id else None

    def call(self, call_id: str) -> Call:
        """Return the call with that id; raises `IllegalTransition` when there is none."""
        call = self.find_call(call_id)
        if call is None:
            raise IllegalTransition(f"execution {self.execution_id!r} has no call {call_id!r}")
        return call

    def idempotency_key(self, call: Call) -> str:
        """Return the key of the call, under which the store also keeps its budget shares and its business key."""
        return call.origin or f"{self.execution_id}:{call.call_id}"

    @property
    def only_call(self) -> Call | None:
        """The only call of the execution; None if it has none, or more than one."""
        calls = [call for state in self.steps.values() for call in state.calls]
        return calls[0] if len(calls) == 1 else None


def new_execution(execution_id: str, thread_id: str, principal: str) -> ExecutionState:
    """Return the state before the first event."""
    return ExecutionState(execution_id=execution_id, thread_id=thread_id, principal=principal)
