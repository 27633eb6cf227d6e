"""The state of an execution: the tables of legal transitions, and the values that a log folds into.

Rules:
* The three tables below say which event may follow in which status of an execution, a step and a call. A terminal
  status has an empty row. Nothing else changes a status.
* `planwarden.agent.core.fold.apply` is total over the tables: a legal event returns a new `ExecutionState`, any other
  raises `IllegalTransition` and changes nothing. No clock, no ids, no I/O: the time comes with the event.

    execution   running <-> suspended        step   pending -> in_progress <-> suspended
                running  -> planned -> running       |            |-> completed | failed | rejected
                running <-> incomplete               '-> skipped
                running  -> completed | rejected
                            | failed | cancelled    proposed -> running -> succeeded | failed | outcome_unknown
                                                    proposed -> suspended -> decided -> running | succeeded
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from planwarden.agent.common.errors import IllegalTransition
from planwarden.agent.common.struct import FrozenStruct, JsonValue
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import EarlierResult, Reference
from planwarden.agent.core.plan import Plan, PlanStep

ExecutionStatus = Literal[
    "new", "running", "planned", "suspended", "completed", "rejected", "failed", "incomplete", "cancelled"
]
StepStatus = Literal["pending", "in_progress", "suspended", "completed", "rejected", "failed", "skipped"]
CallStatus = Literal[
    "proposed", "running", "suspended", "decided", "succeeded", "failed", "rejected", "outcome_unknown"
]

_WORK: tuple[type[ev.Event], ...] = (
    ev.PlanAccepted,
    ev.PlanRefused,
    ev.PlanRevised,
    ev.RevisionRefused,
    ev.StepStarted,
    ev.ModelReplied,
    ev.ModelFailed,
    ev.ToolCallIntended,
    ev.ToolReturned,
    ev.ToolFailed,
    ev.ToolOutcomeUnknown,
    ev.CallReportedLate,
    ev.Suspended,
    ev.SuspensionRevised,
    ev.SuspensionDecided,
    ev.SuspensionEndorsed,
    ev.SuspensionReminded,
    ev.SuspensionTimedOut,
    ev.SuspensionWithdrawn,
    ev.ValidationFailed,
    ev.StepCompleted,
    ev.StepFailed,
    ev.StepRejected,
    ev.StepSkipped,
    ev.CancelRequested,
)

TRANSITIONS: dict[ExecutionStatus, dict[type[ev.Event], ExecutionStatus]] = {
    "new": {ev.ExecutionCreated: "running"},
    "running": {
        **{work: "running" for work in _WORK},
        ev.ExecutionPlanned: "planned",
        ev.ExecutionSuspended: "suspended",
        ev.ExecutionCompleted: "completed",
        ev.ExecutionRejected: "rejected",
        ev.ExecutionFailed: "failed",
        ev.ExecutionExhausted: "incomplete",
        ev.ExecutionCancelled: "cancelled",
    },
    "planned": {ev.ExecutionStarted: "running", ev.CancelRequested: "running"},
    "suspended": {
        ev.SuspensionDecided: "running",
        ev.SuspensionTimedOut: "running",
        ev.SuspensionWithdrawn: "running",
        ev.SuspensionRevised: "suspended",
        ev.SuspensionEndorsed: "suspended",
        ev.SuspensionReminded: "suspended",
        ev.CallReportedLate: "suspended",
        ev.CancelRequested: "running",
    },
    "completed": {},
    "rejected": {},
    "failed": {},
    "incomplete": {ev.ExecutionStarted: "running"},
    "cancelled": {},
}

STEP_TRANSITIONS: dict[StepStatus, dict[type[ev.Event], StepStatus]] = {
    "pending": {ev.StepStarted: "in_progress", ev.StepSkipped: "skipped"},
    "in_progress": {
        ev.ModelReplied: "in_progress",
        ev.ModelFailed: "in_progress",
        ev.ToolCallIntended: "in_progress",
        ev.ToolReturned: "in_progress",
        ev.ToolFailed: "in_progress",
        ev.ToolOutcomeUnknown: "in_progress",
        ev.ValidationFailed: "in_progress",
        ev.Suspended: "suspended",
        ev.StepCompleted: "completed",
        ev.StepFailed: "failed",
        ev.StepRejected: "rejected",
    },
    "suspended": {
        ev.SuspensionDecided: "in_progress",
        ev.SuspensionTimedOut: "in_progress",
        ev.SuspensionWithdrawn: "in_progress",
        ev.SuspensionRevised: "suspended",
        ev.SuspensionEndorsed: "suspended",
        ev.SuspensionReminded: "suspended",
    },
    "completed": {},
    "rejected": {},
    "failed": {},
    "skipped": {},
}

CALL_TRANSITIONS: dict[CallStatus, dict[type[ev.Event], CallStatus]] = {
    "proposed": {
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.Suspended: "suspended",
    },
    "running": {
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.ToolOutcomeUnknown: "outcome_unknown",
        ev.Suspended: "suspended",
    },
    "suspended": {
        ev.SuspensionRevised: "suspended",
        ev.SuspensionEndorsed: "suspended",
        ev.SuspensionReminded: "suspended",
        ev.SuspensionDecided: "decided",
        ev.SuspensionTimedOut: "decided",
        ev.SuspensionWithdrawn: "decided",
    },
    "decided": {
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
        ev.ToolFailed: "failed",
        ev.Suspended: "suspended",
        ev.StepRejected: "rejected",
    },
    "outcome_unknown": {
        ev.Suspended: "outcome_unknown",
        ev.SuspensionRevised: "outcome_unknown",
        ev.SuspensionEndorsed: "outcome_unknown",
        ev.SuspensionReminded: "outcome_unknown",
        ev.SuspensionDecided: "outcome_unknown",
        ev.SuspensionTimedOut: "outcome_unknown",
        ev.ToolCallIntended: "running",
        ev.ToolReturned: "succeeded",
    },
    "succeeded": {},
    "failed": {},
    "rejected": {},
}

FINISHED: frozenset[ExecutionStatus] = frozenset({"completed", "rejected", "failed", "incomplete", "cancelled"})
"""Nothing runs and nobody is asked. Only `incomplete` can be continued, with a larger budget."""
STEP_TERMINAL: frozenset[StepStatus] = frozenset(status for status, row in STEP_TRANSITIONS.items() if not row)
CALL_SETTLED: frozenset[CallStatus] = frozenset(status for status, row in CALL_TRANSITIONS.items() if not row)


class Call(FrozenStruct):
    """One tool call of a step, from proposal to result."""

    call_id: str
    """`STEP:NUMBER`, counted from 1 within the step; with the execution id it is the idempotency key."""
    step_id: str
    tool_name: str
    proposed: dict[str, JsonValue]
    by_model: bool
    status: CallStatus = "proposed"
    arguments: dict[str, JsonValue] | None = None
    """What was shown or dispatched; None before that."""
    value: JsonValue = None
    error_code: str | None = None
    error_message: str | None = None
    suspension_id: str | None = None
    """The latest question about this call."""
    consumed: tuple[str, ...] = ()
    """Suspensions whose answers released a dispatch; each releases one."""
    effect: ev.Effect = "effect"
    """What may be repeated, as pinned when it was dispatched."""
    attempts: int = 0
    """Times that it was dispatched."""
    intended_at: float | None = None
    """When it was last dispatched, Unix seconds by the store's clock."""
    grant_id: str | None = None
    """The standing grant that let it through."""
    artifact: str | None = None
    """The artifact that holds the whole result; `value` is its stand-in then."""
    beside: JsonValue = None
    """As in `ToolReturned`."""
    late_report: str | None = None
    """What a process that had lost the execution reported about this call since it was last dispatched."""


class ModelTurn(FrozenStruct):
    """One model reply within a step."""

    content: str | None
    call_ids: tuple[str, ...]
    enforced: bool
    """True when the reply answered an enforcement prompt."""


class StepState(FrozenStruct):
    step: PlanStep
    status: StepStatus = "pending"
    calls: tuple[Call, ...] = ()
    turns: tuple[ModelTurn, ...] = ()
    retries: int = 0
    """Enforcement prompts spent."""
    enforcing: bool = False
    """The next prompt is an enforcement prompt."""
    notes: tuple[str, ...] = ()
    """What the next prompt tells the model besides its step: refused revisions of the plan."""
    warned: bool = False
    """An advisory step's missing tools were recorded."""
    validation: ev.ValidationStatus | None = None
    error_code: str | None = None
    error_message: str | None = None
    rejected_by: str | None = None
    """The suspension whose answer rejected the step."""

    @property
    def iterations(self) -> int:
        return sum(1 for turn in self.turns if not turn.enforced)

    @property
    def result(self) -> JsonValue:
        """What other steps can bind to: the value of the one call, the list of several, or the model's text."""
        values = [call.value for call in self.calls if call.status == "succeeded"]
        if values:
            return values[0] if len(values) == 1 else values
        return self.turns[-1].content if self.turns else None


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
    asked_at: tuple[float, ...] = ()
    """When each revision was asked, the first one first."""
    status: Literal["pending", "decided", "timed_out", "withdrawn"] = "pending"
    decision: ev.RecordedDecision | None = None
    assurance: ev.Assurance | None = None
    channel: str | None = None
    principal: str | None = None
    decided_at: float | None = None
    decided_digest: str = ""
    """Digest of the revision that the decision was about."""
    endorsements: tuple[EndorsementState, ...] = ()
    """Approvals of this revision so far, one for each person."""
    alarmed: int = 0
    """How many alarms are over: fired, or missed while no process ran."""

    @property
    def is_open(self) -> bool:
        return self.status == "pending"


class TokenUsage(FrozenStruct):
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    """Calls that were dispatched."""


class PlanOrder(FrozenStruct):
    """What a plan says about the order of its steps."""

    places: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    followers: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict[str, tuple[str, ...]])
    """For each step on which others depend, those, in plan order."""


NO_ORDER = PlanOrder()


class ExecutionState(FrozenStruct):
    """The fold of a log; immutable."""

    execution_id: str
    thread_id: str
    principal: str
    """Whose execution it is; everything that is asked and decided about it is bound to this name."""
    status: ExecutionStatus = "new"
    version: int = 0
    """Number of events folded."""
    goal: str | None = None
    options: ev.Options = msgspec.field(default_factory=ev.Options)
    plan_only: bool = False
    context: str | None = None
    plan: Plan | None = None
    warnings: tuple[str, ...] = ()
    pins: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """For each tool that the plan names or named, the beginning of its digest then; empty text if it had none."""
    earlier: Mapping[Reference, EarlierResult] = msgspec.field(default_factory=dict[Reference, EarlierResult])
    """What the plan takes from earlier executions of the thread."""
    refusals: tuple[str, ...] = ()
    """Why plans of the model were refused, oldest first."""
    steps: Mapping[str, StepState] = msgspec.field(default_factory=dict[str, StepState])
    """In plan order."""
    order: PlanOrder = NO_ORDER
    frontier: tuple[str, ...] = ()
    """Steps for which something can follow next, in plan order; see `frontier.py`."""
    stopped_by: str | None = None
    """The step whose rejection ends the plan: nothing that has not begun will."""
    suspensions: Mapping[str, SuspensionState] = msgspec.field(default_factory=dict[str, SuspensionState])
    """In the order in which they were opened."""
    revisions: tuple[tuple[str, JsonValue], ...] = ()
    """Patches of the plan that are still to be judged, with the step whose reply carried each."""
    synthesis: str | None = None
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    sources: frozenset[str] = frozenset()
    """Names of the model replies already used."""
    cancel_requested: bool = False
    cancel_reason: str | None = None
    exhausted: str | None = None
    """The budget that ran out."""
    error_code: str | None = None
    error_message: str | None = None
    model_error: tuple[str, str] | None = None
    """Code and message of a failed plan or synthesis prompt."""
    created_at: float = 0.0
    updated_at: float = 0.0
    active_s: float = 0.0
    """Seconds spent in status `running`, as far as the log shows."""
    chain: tuple[str, ...] = ()
    """Executions of other agents that delegated it, the first one first."""
    client_ids: frozenset[str] = frozenset()
    """OAuth clients that created or started it; none of them can vouch for a person who decides."""
    traceparent: str | None = None
    """As in `ExecutionCreated`; None when the process that created it was not observed."""
    tracestate: str | None = None
    host: str | None = None
    """As in `ExecutionCreated`."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def open_suspensions(self) -> tuple[SuspensionState, ...]:
        return tuple(found for found in self.suspensions.values() if found.is_open)

    def call(self, call_id: str) -> Call:
        """The call with that id; raises `IllegalTransition` when there is none."""
        step = self.steps.get(call_id.rpartition(":")[0])
        for call in step.calls if step else ():
            if call.call_id == call_id:
                return call
        raise IllegalTransition(f"execution {self.execution_id!r} has no call {call_id!r}")


def new_execution(execution_id: str, thread_id: str, principal: str) -> ExecutionState:
    """The state before the first event."""
    return ExecutionState(execution_id=execution_id, thread_id=thread_id, principal=principal)
