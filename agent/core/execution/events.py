"""Events: frozen facts. An execution's log of events is the only source of truth; everything else is folded from it.

Names are past tense. An event says what happened and nothing that can be derived: a step's result is the recorded
result of its calls, an execution's summary is computed from its steps.

An event is stored as a JSON list: its tag, then its fields in the order below. The first letter of a tag says what the
event is about: Execution, its eXit, Plan, Step, Validation, Model, Tool call, Question. From the first release on,
a tag keeps its meaning, and a new field goes to the end and has a default; a golden file in the tests checks this.

Options, calls and other parts of events are here too, before the first event that holds them; the parts of a question
are in `planwarden.agent.core.execution.question`.
"""

from typing import Literal

import msgspec

from planwarden.agent.common.struct import FrozenStruct, JsonValue, StoredStruct
from planwarden.agent.core.binding.bindings import EarlierResult
from planwarden.agent.core.execution.question import (
    AlarmKind,
    Assurance,
    CoveredCall,
    MatchedRule,
    Needs,
    Purpose,
    Question,
    RecordedDecision,
    SuspensionKind,
)
from planwarden.agent.core.plan.plan import Plan, ValidationMode
from planwarden.agent.core.tool import Effect, OnTimeout, Risk

ValidationStatus = Literal["passed", "failed", "skipped"]
Budget = Literal["modelTokens", "toolCalls", "seconds", "modelPatience"]
ToolMode = Literal["strict", "flexible"]
Reviewer = Literal["person"]
MODEL_ASSURANCES: tuple[Assurance, ...] = ("claimed", "caller")


class Event(StoredStruct):
    """A fact in the log; each kind of event is a subclass with its tag."""


class Options(StoredStruct):
    """How one execution runs. The options of the request override the thread's, which override the server's."""

    max_iterations: int = 5
    """The most model replies per step, not counting those to enforcement prompts."""
    taef_max_retries: int = 2
    """The most enforcement prompts per step."""
    tool_mode: ToolMode = "strict"
    wait_seconds: float = 25.0
    synthesize: bool = False
    budget_model_tokens: int | None = None
    budget_tool_calls: int | None = None
    budget_seconds: float | None = None
    """The most seconds that the execution may run; waiting for answers does not count."""
    prompt_planning: str | None = None
    prompt_execution: str | None = None
    prompt_synthesis: str | None = None
    explicit: tuple[str, ...] = ()
    """Names of the options that the request or the thread set; later executions of the thread inherit those."""
    model_patience_s: float = 86_400.0
    """How long a prompt waits for a provider that fails or is out of reach; 0 gives up at once."""
    rehearse: bool = False
    """Whether to make only read-only calls, and just record all others; no later execution inherits it."""
    review: Reviewer | None = None
    """Who approves the plan before its first step; no later execution inherits it."""
    is_literal: bool = False
    """Whether arguments are taken as a host sent them, without bindings; no later execution inherits this."""
    asks_because: str | None = None
    """Why a person is asked about every call, even if a rule or a grant allows it; no later execution inherits it."""
    note: str | None = None
    """What people should know when they are asked about the execution's calls; no later execution inherits it."""


class ProposedCall(StoredStruct):
    """A call as the plan or the model wrote it: references unresolved, defaults not filled in."""

    tool_name: str
    arguments: dict[str, JsonValue]


class Starter(StoredStruct):
    """The person who asked for an execution, through one of the operator's channels, which no model can use."""

    principal: str
    channel: str
    """The channel, named as in `SuspensionDecided`; `schedule` if a schedule started the run."""
    scheduler: str | None = None
    """Who added the schedule, and with it chose the inputs."""


class PlanVersion(StoredStruct):
    """Which saved plan an execution runs, and which version of it."""

    name: str
    digest: str
    """Digest of the plan's file as it was when the execution was created."""


class ThreadEffect(StoredStruct):
    """A call that changed something in an earlier execution of the thread."""

    tool_name: str
    arguments: str
    """The beginning of the digest of the call's arguments."""
    at: float
    """When the call was dispatched, in Unix seconds by the store's clock."""
    step_id: str
    summary: str
    """The beginning of the call's arguments, as JSON."""
    is_unknown: bool = False
    """Whether nobody knows if the call happened."""
    is_approved: bool = False
    """Whether a person was asked and let the call run."""


class CreationFacts(StoredStruct):
    """Everything that an execution needs to run, as it was when the execution was created."""

    goal: str | None = None
    options: Options = msgspec.field(default_factory=Options)
    plan_only: bool = False
    """Whether to stop at `planned` instead of running the plan."""
    context: str | None = None
    """What the thread's earlier executions did, for planning."""
    client_id: str | None = None
    """The OAuth client that asked for the execution; None when the request came through another channel."""
    chain: tuple[str, ...] = ()
    """The executions of other agents through which this one was delegated, outermost first, according to the caller."""
    traceparent: str | None = None
    """The trace span in which the execution began (https://www.w3.org/TR/trace-context/), for a process that takes it
    over; None if the process that created the execution recorded no traces."""
    tracestate: str | None = None
    host: str | None = None
    """The program that asked, as it names itself, or planwarden's name for a hook, schedule or page; else None."""
    saved_plan: PlanVersion | None = None
    retry_of: str | None = None
    """The earlier execution, of the same thread, that this one goes on from; None for one that begins anew."""
    starter: Starter | None = None
    """None when a program asked for it. A second person who must approve is neither owner nor named here."""
    thread_effects: tuple[ThreadEffect, ...] = ()
    """The newest effects of the thread's earlier executions, oldest first."""
    is_operators: bool = False
    """Whether the operator sent the plan at a terminal: then its texts are the operator's own, not an agent's."""


class ExecutionCreated(CreationFacts, Event, tag="EC"):
    """A caller sent a goal or a plan."""


class PlanAccepted(Event, tag="PA"):
    """The plan passed the check; its tools are pinned as they are now."""

    plan: Plan
    warnings: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    """Beginnings of the digests of the tools that the plan names, in the order of `pins.list_tool_names`."""
    earlier: tuple[EarlierResult, ...] = ()
    """What the plan takes from earlier executions of the thread, as it was when the plan was accepted."""
    inputs: dict[str, JsonValue] = msgspec.field(default_factory=dict[str, JsonValue])
    """The inputs that the run was given, with defaults filled in."""
    agreed: Plan | None = None
    """If this retries a plan that a model had revised: the plan before that revision; it limits further revisions."""


class CallFacts(StoredStruct):
    """What is known about a call, both in the execution that made it and in retries that reuse it ("take it over")."""

    call_id: str
    """`STEP:NUMBER`, counted from 1 within the step; with the execution id it is the idempotency key."""
    tool_name: str
    origin: str
    """If an earlier execution made the call: `EXECUTION:CALL` there, the call's idempotency key; empty otherwise."""
    proposed: dict[str, JsonValue]
    arguments: dict[str, JsonValue] | None = None
    """The arguments that were shown or dispatched; None before that."""
    by_model: bool = False
    effect: Effect = "effect"
    """Whether the call may be repeated, as pinned when it was dispatched."""
    value: JsonValue = None
    artifact: str | None = None
    """The artifact that holds the whole result; then `value` is only a stand-in."""
    beside: JsonValue = None
    """What a server sent in addition to its structured value: text, images."""
    is_confirmation: bool = False
    """Whether the result of this reused call is a person's answer to the question whether the execution may go on."""

    @property
    def step_id(self) -> str:
        return self.call_id.rpartition(":")[0]

    @property
    def index(self) -> int:
        """The number of the call among the calls of its step, from 0."""
        return int(self.call_id.rpartition(":")[2]) - 1


class TakenCall(CallFacts):
    """A call that an earlier execution made and that this one does not make again."""

    unknown: str | None = None
    """Why nobody knows whether the call happened; None for a call that has a result."""


class TakenStep(StoredStruct):
    """What a step of the plan takes over from the log of an earlier execution."""

    step_id: str
    execution_id: str
    """The execution whose log has the results that prove the step."""
    calls: tuple[TakenCall, ...] = ()
    is_completed: bool = False
    """False if the step did not complete there: it keeps the calls in `calls`, and continues after them."""
    text: str | None = None
    """The model's text that is the result of a completed step without calls."""
    validation: ValidationStatus | None = None
    items: tuple[JsonValue, ...] | None = None
    """The items that the step's loop went through; None for a step without a loop."""


class EarlierRun(StoredStruct):
    """A step that ran before and runs again. A question about it tells people that it ran before."""

    step_id: str
    execution_id: str
    result: str
    """The beginning of the earlier result, as JSON."""


class StepsTakenOver(Event, tag="ST"):
    """The plan continues an earlier execution of the thread. What that execution's log proves is not done again."""

    steps: tuple[TakenStep, ...] = ()
    again: tuple[EarlierRun, ...] = ()
    rejected: tuple[str, ...] = ()
    """Steps that were rejected in the earlier execution; a new question about one of them says so."""
    rejecters: tuple[Assurance | None, ...] = ()
    """For each step in `rejected`, the assurance of the answer that rejected it; empty in older logs."""


class PlanRefused(Event, tag="PR"):
    """A model's plan did not pass the check; the reason goes into the one repair prompt."""

    code: str
    message: str


class PlanRevised(Event, tag="PC"):
    """The plan after a model's patch or a person's edit of pending steps, and the ids of the steps that differ."""

    step_id: str
    """The step whose reply carried the patch; empty when a person edited the plan in a review."""
    plan: Plan
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    """As in `PlanAccepted`; a tool that was pinned before keeps its first pin."""
    earlier: tuple[EarlierResult, ...] = ()
    """As in `PlanAccepted`, for bindings that the plan did not have before."""


class RevisionRefused(Event, tag="PX"):
    """A model's patch was not allowed, or its result was not a plan; the plan stays as it was."""

    step_id: str
    message: str
    asks_again: bool = False
    """Whether the step's model has to learn of the refusal before a text can complete the step; False in older logs."""


class ExecutionStarted(Event, tag="ES"):
    """A caller started a planned execution."""

    options: Options | None = None
    client_id: str | None = None
    """As in `ExecutionCreated`."""
    inputs: dict[str, JsonValue] | None = None
    """Inputs that replace those with which the execution was planned; None if those stay."""


class StepStarted(Event, tag="SB"):
    """The step began; everything that it depends on is finished."""

    step_id: str


class LoopBegan(Event, tag="SL"):
    """The items of the step's loop are known: its calls are made once for each item."""

    step_id: str
    items: tuple[JsonValue, ...]


class ModelReplied(Event, tag="MR"):
    """A model's answer, recorded before it is acted on, so that replay never asks again."""

    purpose: Purpose
    step_id: str | None = None
    content: str | None = None
    calls: tuple[ProposedCall, ...] = ()
    revise: JsonValue = None
    """Patch of the steps that have not begun, as the model wrote it; see `planwarden.agent.core.plan.revision`."""
    input_tokens: int = 0
    output_tokens: int = 0
    source: str | None = None
    """The model's own name for this reply; it tells a scripted model which entries of its script are used up."""
    suspension_id: str | None = None
    """The question that the reply answers, when the caller is the model."""


class ModelFailed(Event, tag="MF"):
    """The model could not be reached, or gave no usable answer, even after retries."""

    purpose: Purpose
    code: str
    message: str
    step_id: str | None = None
    input_tokens: int = 0
    """Tokens spent on answers that could not be used."""
    output_tokens: int = 0
    retryable: bool = False
    """Whether the provider failed or was out of reach, so the execution waits; see `core.control.provider_waits`."""
    asked_s: float | None = None
    """Seconds that the provider asked to wait before the next attempt; None if it asked for no wait."""


class BudgetShare(StoredStruct):
    """What a call takes from a rule's budget when the rule lets it pass."""

    budget: str
    """Digest that identifies one budget of one rule."""
    amount: float
    """Never negative; 1 for a budget that counts calls."""
    limit: float
    """What all shares of the last `window_s` seconds may add up to."""
    window_s: float


class OnceKey(StoredStruct):
    """The business key of a call. While a call holds it, no other call with that key runs, in any execution."""

    key: str
    """Digest of the tool's name and of the values in canonical form."""
    values: dict[str, JsonValue]
    """The values, perhaps shortened for display; each under its JSON pointer into the arguments."""
    keep_s: float
    """Seconds, counted from the intent, during which no other call may have the key."""


class ToolCallIntended(Event, tag="TI"):
    """The call is dispatched once this is committed; after a crash, an intent without a result is `outcome_unknown`."""

    call_id: str
    arguments: dict[str, JsonValue] | None = None
    """The arguments that are dispatched; None when they are exactly those that the suspension stored."""
    effect: Effect = "effect"
    suspension_id: str | None = None
    """The decision that this call consumes."""
    grant_id: str | None = None
    """The standing grant that let it through; the store counts the use in the same transaction."""
    rule: MatchedRule | None = None
    """The rule that let the call through."""
    shares: tuple[BudgetShare, ...] = ()
    """What the call takes from the rule's budgets; the store counts it in the same transaction."""
    once: OnceKey | None = None
    """The business key that the store reserves for this call in the same transaction."""


class ToolReturned(Event, tag="TR"):
    """The call has a result."""

    call_id: str
    value: JsonValue = None
    artifact: str | None = None
    """The artifact that holds the whole result; then `value` is only a stand-in."""
    beside: JsonValue = None
    """What a server sent in addition to its structured value: text, images."""


class ToolFailed(Event, tag="TF"):
    """The call has no result: it raised, timed out without effect, or was refused before dispatch."""

    call_id: str
    code: str
    message: str
    nothing_happened: bool = False
    """Whether a dispatched call surely did nothing; the store then gives back its budget shares and frees its key."""
    rule: MatchedRule | None = None
    """The operator's rule that denied it."""
    beside: JsonValue = None
    """What a server sent with its refusal: text, images."""


class CallAttemptFailed(Event, tag="TA"):
    """The tool reported that the call failed; the call is made again after a wait."""

    call_id: str
    code: str
    message: str
    nothing_happened: bool = False
    """As in `ToolFailed`; the next intent takes the shares and the key again."""


class CallRejected(Event, tag="TX"):
    """A person who approved other calls of the loop left this one out."""

    call_id: str
    suspension_id: str


class ToolOutcomeUnknown(Event, tag="TU"):
    """The call was intended and may have happened; only a person, or the records of the called server, can tell."""

    call_id: str
    message: str


class CallReportedLate(Event, tag="TL"):
    """A process that no longer owned the execution reported what became of its call. The report settles nothing."""

    call_id: str
    message: str
    """What the process reported, as a sentence."""
    value: JsonValue = None
    artifact: str | None = None
    """As in `ToolReturned`."""


class CallRehearsed(Event, tag="TH"):
    """A rehearsal reached a call that it does not make. The event has the call exactly as it would have run.

    Nothing was dispatched, and nobody was asked.
    """

    call_id: str
    arguments: dict[str, JsonValue] | None = None
    definition_digest: str = ""
    effect: Effect = "effect"
    risk: Risk | None = None
    needs: Needs | None = None
    """The assurance that its question would have needed; None when it would have run unasked."""
    quorum: int = 1
    asks: SuspensionKind | None = None
    """The kind of question that would have been asked; None when the call would have run unasked."""
    covers: tuple[CoveredCall, ...] = ()
    """Later calls that the same answer would have decided."""
    covered_by: str | None = None
    """The rehearsed call whose answer would have decided this one too."""
    grant_id: str | None = None
    """The standing grant that would have let it through."""
    found: tuple[str, ...] = ()
    """As in `Question`."""
    rule: MatchedRule | None = None
    """The operator's rule that decided about it."""


class Suspended(Event, tag="QA"):
    """A question was asked."""

    question: Question


class SuspensionRevised(Event, tag="QR"):
    """The question changed before it was answered; both forms stay in the log."""

    question: Question
    reason: str


class SuspensionDecided(Event, tag="QD"):
    """A person or the caller answered the question; `assurance` is how well planwarden knows who it was."""

    suspension_id: str
    decision: RecordedDecision
    assurance: Assurance
    channel: str
    principal: str
    digest: str = ""
    """Digest of the question's revision that the answer is about."""
    rendered: str = ""
    """SHA-256 of the text that the person saw, as far as the channel knows it."""


class SuspensionEndorsed(Event, tag="QE"):
    """One of several people whose approval is needed has approved; the question stays open."""

    suspension_id: str
    assurance: Assurance
    channel: str
    principal: str
    digest: str = ""
    rendered: str = ""
    content: JsonValue = None
    """The answer that this person gave; only approvals with the same answer count together."""


class SuspensionReminded(Event, tag="QN"):
    """An alarm of an open question fired; see `planwarden.agent.core.execution.notifications`."""

    suspension_id: str
    number: int
    """The place of the newest alarm that was due, counted from 1; alarms up to it do not fire again."""
    kind: AlarmKind
    to: tuple[str, ...] = ()
    """To whom the question was escalated."""


class SuspensionTimedOut(Event, tag="QT"):
    """Nobody answered in time, or the time of a wait has passed."""

    suspension_id: str
    outcome: OnTimeout


class SuspensionWithdrawn(Event, tag="QW"):
    """The server or agent that asked no longer needs an answer, for example because the question was answered there."""

    suspension_id: str
    reason: str


class ValidationFailed(Event, tag="VF"):
    """The log does not prove the step: required tools have no recorded, successful result."""

    step_id: str
    missing: tuple[str, ...]
    mode: ValidationMode
    enforced: bool
    """True when an enforcement prompt follows."""


class StepCompleted(Event, tag="SC"):
    """The log proves the step, or the step is advisory and completed with a warning."""

    step_id: str
    validation: ValidationStatus = "skipped"


class StepFailed(Event, tag="SF"):
    """The step can no longer be completed."""

    step_id: str
    code: str
    message: str


class StepRejected(Event, tag="SR"):
    """The answer to the step's question was no, or the time to answer passed."""

    step_id: str
    suspension_id: str
    reason: str | None = None


class StepSkipped(Event, tag="SK"):
    """A step that this one depends on did not complete, or a condition of this one did not hold."""

    step_id: str
    because: str
    """The id of the step that did not complete; `when` if a condition of this one did not hold."""
    reason: str = ""
    """Which condition did not hold and why, without a full stop; empty if another step is the reason."""


class StepRehearsed(Event, tag="SH"):
    """A rehearsal has finished the step; at least one of its calls was not made, so nothing is proven."""

    step_id: str


class ExecutionPlanned(Event, tag="EP"):
    """The caller asked for a plan only; it is ready and does not run."""


class ExecutionSuspended(Event, tag="EW"):
    """Nothing can run before an answer; no process owns the execution from here on."""


class CancelRequested(Event, tag="CR"):
    """The caller wants the execution to stop."""

    reason: str | None = None


class ExecutionCompleted(Event, tag="XC"):
    """Every step is over; none failed, and only steps with `onReject: continue` were rejected."""


class ExecutionRehearsed(Event, tag="XH"):
    """A rehearsal is over. That never counts as success, whatever its steps did."""


class ExecutionRejected(Event, tag="XR"):
    """The execution ended, and a part of it was rejected."""


class ExecutionFailed(Event, tag="XF"):
    """The execution ended without reaching its goal."""

    code: str
    message: str


class ExecutionExhausted(Event, tag="XB"):
    """A budget ran out, or the patience with a provider did; the execution is `incomplete`."""

    budget: Budget


class ExecutionCancelled(Event, tag="XX"):
    """The caller stopped the execution; finished calls stay done."""

    reason: str | None = None


EVENT_TYPES: tuple[type[Event], ...] = tuple(Event.__subclasses__())


class Recorded(FrozenStruct):
    """An event in its place in the log."""

    sequence: int
    """1 for the first event of the execution, without gaps."""
    at: float
    """Unix seconds by the store's clock, the same for all events of one transaction."""
    event: Event
