"""One transaction in the making: facts from outside, and everything that follows from them.

A `Transaction` starts from the committed state, applies the facts, then asks `decide` and the dispatcher until nothing
more follows. If the commit is refused, the transaction is thrown away; nothing in it takes effect before the commit.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from itertools import islice

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.business_keys import OnceNeeded
from planwarden.agent.approval.context import BudgetTracker
from planwarden.agent.approval.forecast import will_ask
from planwarden.agent.approval.questions import build_model_wait
from planwarden.agent.approval.review import ask_review
from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import InvalidPlan, LimitExceeded, PlanwardenError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.control.actions import (
    AskModel,
    AskReview,
    BeginStep,
    DispatchCall,
    Order,
    RevisePlan,
    WaitForModel,
)
from planwarden.agent.core.control.decide import decide, find_exhausted_budget, find_running_calls
from planwarden.agent.core.control.loops import has_open_batch
from planwarden.agent.core.control.step_start import begin_step
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.state import Call, ExecutionState
from planwarden.agent.core.plan.pins import build_pins
from planwarden.agent.core.plan.plan import PlanStep
from planwarden.agent.core.plan.revision import revise
from planwarden.agent.core.prompts import (
    DELEGATE,
    Prompt,
    build_planning_prompt,
    build_step_prompt,
    build_synthesis_prompt,
)
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.budgets_and_keys import HeldKey
from planwarden.agent.ports.policy import PathsNeeded
from planwarden.agent.ports.store import Guard, StartRequest
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime.dispatch import CallJob, PreparedCall, prepare_call, recover_call
from planwarden.agent.runtime.lookups import LookedUp

logger = logging.getLogger(__name__)

PLANNING_TOOLS = 50


class EventBatch(msgspec.Struct, frozen=True, gc=False):
    """Events to append, with the conditions under which they may be appended."""

    events: tuple[ev.Event, ...] = ()
    guard: Guard | None = None
    start: StartRequest | None = None
    artifacts: tuple[Artifact, ...] = ()
    """Artifacts that the events name."""


class JobOutcome(msgspec.Struct, gc=False):
    """The outcome of a performed call or prompt; it must not be lost."""

    key: str
    events: tuple[ev.Event, ...]
    artifacts: tuple[Artifact, ...] = ()


BuildEvents = Callable[[ExecutionState, float, LookedUp], EventBatch]
"""Takes the state, the time now and what was looked up; returns what to append. Raises `PlanwardenError` to refuse."""


class Command(msgspec.Struct):
    """A caller's command; the caller may wait until the command is settled."""

    build: BuildEvents
    then: Callable[[], Awaitable[None]] | None = None
    """Awaited after the commit and before any job of that commit is performed; must not raise."""
    future: asyncio.Future[None] | None = None
    """Has a result when the command is committed or refused; None when nobody waits for that."""
    error: PlanwardenError | None = None

    def settle(self) -> None:
        """Wake the task that waits, unless the wait was cancelled."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class PromptJob(msgspec.Struct, frozen=True):
    prompt: Prompt

    @property
    def key(self) -> str:
        return name_prompt(self.prompt.purpose, self.prompt.step_id)


def name_prompt(purpose: ev.Purpose, step_id: str | None) -> str:
    """Return the key of the job that prompts for this purpose."""
    return f"prompt {purpose} {step_id or ''}"


class ListingJob(msgspec.Struct, frozen=True):
    """A wait for tools that this process does not know yet; it records nothing."""

    tools: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"listing {' '.join(self.tools)}"


Job = CallJob | PromptJob | ListingJob


@dataclass(eq=False)
class Transaction:
    """One transaction; call `build` once. If `build` raises, the only field that counts is `artifacts`."""

    execution: ExecutionState
    """The state after everything recorded here."""
    _lookups: LookedUp
    _now: float
    _inflight: Collection[str]
    _follow: bool
    _is_owner_gone: bool = True
    """Whether the previous owner process exited or released the execution; False if it only stopped responding."""
    recorded: list[ev.Recorded] = field(default_factory=list[ev.Recorded], init=False)
    guards: tuple[Guard, ...] = field(default=(), init=False)
    start: StartRequest | None = field(default=None, init=False)
    artifacts: tuple[Artifact, ...] = field(default=(), init=False)
    jobs: list[Job] = field(default_factory=list[Job], init=False)
    """Jobs to perform after the commit."""
    commands: tuple[Command, ...] = field(default=(), init=False)
    """Commands to settle after the commit, including refused ones."""
    _once_needed: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self._approval = replace(self._lookups.approval, budgets=BudgetTracker(self._lookups.spent))

    def build(self, facts: list[JobOutcome | Command]) -> None:
        """Build the transaction. Raise `Needed` if something must be read first; `artifacts` is complete even then."""
        for fact in facts:
            self._apply(fact)
        if self._follow:
            self._recover()
            while self._decide():
                pass
        if self._once_needed:
            raise OnceNeeded(self._once_needed)

    def _apply(self, fact: JobOutcome | Command) -> None:
        before, length = self.execution, len(self.recorded)
        error = None
        try:
            batch = fact.build(self.execution, self._now, self._lookups) if isinstance(fact, Command) else fact
            self._record(batch.events)
            self.artifacts += batch.artifacts
            if isinstance(batch, EventBatch):
                self.guards += () if batch.guard is None else (batch.guard,)
                self.start = batch.start or self.start
        except PlanwardenError as refusal:
            error, self.execution = refusal, before
            del self.recorded[length:]
        if isinstance(fact, Command):
            fact.error = error
            self.commands += (fact,)
        elif error is not None:
            # The execution has ended or was taken over; its log already says what became of the call.
            text = "execution %s: the outcome of a job came too late and was dropped: %s"
            logger.error(text, before.execution_id, error.message)

    def _recover(self) -> None:
        """Recover the calls that another process dispatched before this one owned the execution."""
        for call in tuple(find_running_calls(self.execution)):
            if call.call_id not in self._inflight and not self._awaits(call.tool_name):
                self._add(recover_call(self._approval, self.execution, call, self._is_owner_gone))

    def _decide(self) -> bool:
        """Record and prepare what `decide` wants. Return False when it wants nothing more."""
        moved, decided = False, self.execution
        for action in decide(decided):
            if isinstance(action, DispatchCall):
                call = action.call
                if (self.execution is decided or self._is_still_wanted(call)) and not self._awaits(call.tool_name):
                    moved = self._prepare(call) or moved
            elif isinstance(action, Order):
                moved = self._attend_to(action) or moved
            elif not (isinstance(action, ev.ExecutionSuspended) and self._is_prompting()):
                self._record((action,))
                moved = True
        return moved

    def _attend_to(self, action: BeginStep | AskModel | WaitForModel | AskReview | RevisePlan) -> bool:
        match action:
            case BeginStep(step_id=step_id):
                self._record(begin_step(self.execution, step_id, self._approval.parts or {}))
            case AskModel(purpose=purpose, step_id=step_id):
                tools = () if step_id is None else self.execution.steps[step_id].step.required_tools
                if not self._awaits(*tools) and not self._has_job(name_prompt(purpose, step_id)):
                    self.jobs.append(PromptJob(self._build_prompt(purpose, step_id)))
                return False
            case WaitForModel(step_id=step_id, attempt=attempt, until=until):
                self._record((build_model_wait(self._approval, self.execution, step_id, attempt, until),))
            case RevisePlan(step_id=step_id, patch=patch):
                self._record((self._revise(step_id, patch),))
            case AskReview():
                # The review waits until all tools that the plan names are listed.
                if self._awaits(*self.execution.pins):
                    return False
                self._record((ask_review(self._approval, self.execution),))
        return True

    def _prepare(self, call: Call) -> bool:
        """Prepare the call, and record what the dispatcher says. Return False when nothing more follows from it now."""
        try:
            prepared = prepare_call(self._approval, self.execution, call)
        except OnceNeeded as needed:
            # The key is looked up together with those of other calls; then the transaction is built again.
            self._once_needed |= needed.keys
            return False
        self._add(prepared)
        # Nothing more follows from a call that is on its way.
        return prepared.job is None

    def _is_still_wanted(self, call: Call) -> bool:
        """Return False if preparing an earlier call used up a budget, settled this call, or asked about its loop."""
        is_asked = call.status == "proposed" and has_open_batch(self.execution, call.step_id)
        is_settled = self.execution.call(call.call_id).status != call.status
        return not (is_asked or is_settled) and find_exhausted_budget(self.execution) is None

    def _awaits(self, *names: str) -> bool:
        """Return whether a named tool is not listed yet; if so, add a job that waits for it, and decide later.

        This happens when the process continues an execution whose tools only another process has listed.
        """
        job = ListingJob(tuple(filter(self._approval.tools.is_awaited, names)))
        if job.tools and not self._has_job(job.key):
            self.jobs.append(job)
        return bool(job.tools)

    def _has_job(self, key: str) -> bool:
        return key in self._inflight or any(key == other.key for other in self.jobs)

    def _revise(self, step_id: str, patch: JsonValue) -> ev.Event:
        execution = self.execution
        assert execution.plan is not None and execution.agreed_plan is not None
        pending = [name for name, state in execution.steps.items() if not state.has_begun]
        plans, missing = self._lookups.build_plan_intake(execution), set[str]()
        verdicts: dict[str, bool | None] = {}

        def asks(step: PlanStep, tool_name: str, arguments: dict[str, JsonValue] | None) -> bool | None:
            name = canonical_json([step.step_id, tool_name, arguments])
            try:
                if name not in verdicts:
                    verdicts[name] = None
                    verdicts[name] = will_ask(self._approval, execution, step, tool_name, arguments)
            except PathsNeeded as needed:
                # Collect the paths of all calls, so that they are looked up at once.
                missing.update(needed.keys)
            return verdicts[name]

        try:
            plan, difference = revise(
                execution.plan,
                patch,
                agreed=execution.agreed_plan,
                pending=pending,
                finished=[name for name, state in execution.steps.items() if state.is_done],
                plans=plans,
                asks=asks,
                reused_ids={reused.step_id for reused in execution.earlier},
            )
        except (InvalidPlan, LimitExceeded) as error:
            event = ev.RevisionRefused(step_id=step_id, message=error.message, asks_again=True)
        else:
            pins, earlier = build_pins(plan, plans.tools), plans.list_results(plan, execution.earlier)
            event = ev.PlanRevised(step_id=step_id, plan=plan, **difference, pins=pins, earlier=earlier)
        if missing:
            raise PathsNeeded(missing)
        return event

    def _is_prompting(self) -> bool:
        return bool(self.jobs) or any(key.startswith("prompt ") for key in self._inflight)

    def _add(self, prepared: PreparedCall) -> None:
        self._record(prepared.events)
        if prepared.job is None:
            return
        self.jobs.append(prepared.job)
        for event in prepared.events:
            if isinstance(event, ev.ToolCallIntended):
                self._approval.budgets.take(event.shares)
                if event.once is not None:
                    # No other call of this transaction may take the same key.
                    holder, principal = self.execution.idempotency_key(prepared.job.call), self.execution.principal
                    key = HeldKey.take(event.once, holder, self._now, prepared.job.call.tool_name, principal)
                    self._approval = replace(self._approval, holders={**self._approval.holders, key.key: key})

    def _record(self, events: tuple[ev.Event, ...]) -> None:
        for event in events:
            self.execution = apply(self.execution, event, self._now)
            self.recorded.append(ev.Recorded(sequence=self.execution.version, at=self._now, event=event))

    def _build_prompt(self, purpose: ev.Purpose, step_id: str | None) -> Prompt:
        execution = self.execution
        if purpose == "plan":
            total = sum(map(_is_offered, self._approval.tools.definitions()))
            return build_planning_prompt(execution, choose_tools(self._approval.tools, execution.goal or ""), total)
        if purpose == "synthesize":
            return build_synthesis_prompt(execution)
        state = execution.steps[step_id or ""]
        if execution.options.tool_mode == "flexible":
            others = choose_tools(self._approval.tools, state.step.description)
        else:
            delegate = self._approval.tools.get(DELEGATE) if state.step.step_type == "tool" else None
            others = [] if delegate is None or delegate.unavailable else [delegate]
        return build_step_prompt(execution, state, [d for d in others if d.name not in state.step.required_tools])


def choose_tools(tools: Toolbox, query: str) -> list[ToolDefinition]:
    """Return the available tools to show in a prompt, at most `PLANNING_TOOLS`. If more are available, the best matches
    for `query` come first, and others follow in the order of their names."""
    available = list(filter(_is_offered, tools.definitions()))
    if len(available) <= PLANNING_TOOLS:
        return available
    matches = list(filter(_is_offered, tools.search(query, PLANNING_TOOLS)))
    names = {definition.name for definition in matches}
    rest = (definition for definition in available if definition.name not in names)
    return [*matches, *islice(rest, PLANNING_TOOLS - len(matches))]


def _is_offered(definition: ToolDefinition) -> bool:
    return not (definition.unavailable or definition.is_gated)
