"""All executions of one process: which ones run here, who is told, and the clockwork that needs no caller.

The engine starts runs for new executions and for answers, takes over executions whose owner is gone, renews its leases,
lets deadlines pass, and notices what other processes committed. Executions live in its task group, never in a request:
whoever stops waiting only stops watching.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.abc import TaskGroup

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.approval.ruling import Ruling, rule_on_answer
from planwarden.agent.common.errors import PlanwardenError, StoreError, UnknownSuspension, UnknownThread, UsageError
from planwarden.agent.common.ids import RandomIds
from planwarden.agent.core import events as ev
from planwarden.agent.core.alarms import find_due_alarm
from planwarden.agent.core.pins import build_pins
from planwarden.agent.core.plan import Plan, ToolFacts
from planwarden.agent.core.plan_input import MAX_STEPS
from planwarden.agent.core.state import ExecutionState, new_execution
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.environment import Ids
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Guard, Store, SuspensionRow
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.ports.watchers import Commit, Listener, NotificationSource, Observer
from planwarden.agent.runtime.perform import Performer
from planwarden.agent.runtime.run import Run, RunContext, load_execution, settle
from planwarden.agent.runtime.transaction import Command, EventBatch, TransactionContext

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

TICK_S = 0.5
RENEW_S = 5.0
GRACE_S = 2.0
CACHED = 512


class Engine:
    """Use as an async context manager; everything else needs it to be entered."""

    def __init__(
        self,
        store: Store,
        tools: Toolbox,
        model: Model,
        policy: Policy,
        *,
        ids: Ids | None = None,
        max_steps: int = MAX_STEPS,
        adopts: bool = True,
        follows: bool = True,
        grace_s: float = GRACE_S,
        outbox: NotificationSource | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Without `adopts` it takes care of no execution but those it was asked about: a process that soon ends must
        not begin what it cannot finish. Without `follows` it records what it is told and begins nothing at all.
        Calls that are running have `grace_s` seconds to end when the engine closes.
        `outbox` says what is told outside; without one nothing is. `observer` looks on.
        """
        self._adopts = adopts
        self._follows = follows
        self._grace_s = grace_s
        self._outbox = outbox
        self._observer = observer
        self.store = store
        self.tools = tools
        self.ids: Ids = ids or RandomIds()
        self.owner = self.ids.new()
        self.grants = GrantCache(policy)
        """The standing grants that calls may use, as of the last look."""
        self._policy_digest = policy.policy_digest
        self._approval = ApprovalContext(
            tools=tools, policy=policy, clock=store.clock, ids=self.ids, grants=self.grants
        )
        self._max_steps = max_steps
        self._performer = Performer(self._approval, model, max_steps=max_steps)
        self._preparation = TransactionContext(self._approval, self.tool_facts, max_steps)
        self._known: tuple[Sequence[ToolDefinition], dict[str, ToolFacts]] = ((), {})
        self._runs: dict[str, Run] = {}
        self._idle: OrderedDict[str, ExecutionState] = OrderedDict()
        """Last known state of executions that need nothing from this process."""
        self._threads: dict[str, str] = {}
        """The newest execution that rested here, by thread."""
        self._watches: dict[str, asyncio.Event] = {}
        self._listeners: dict[object, Listener] = {}
        self._closing = False
        self._quiet = anyio.Event()
        """Set when nothing runs any more while closing."""
        self._changes = 0
        self._renewed = 0.0
        self._tasks: TaskGroup | None = None
        self._context: RunContext | None = None

    async def __aenter__(self) -> Self:
        """Raises `StoreError` when the store cannot be read."""
        await self.refresh_grants()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._context = RunContext(
            store=self.store,
            preparation=self._preparation,
            performer=self._performer,
            tasks=self._tasks,
            owner=self.owner,
            policy=self._policy_digest,
            outbox=self._outbox,
            observer=self._observer,
            committed=self._after_commit,
            grant_refused=self.grants.drop,
            is_closing=lambda: self._closing or not self._follows,
            streamed=self._notify_watchers,
        )
        self._tasks.start_soon(self._run_scheduler)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let running calls finish for a moment, then stop; what is still running is settled by the next owner."""
        assert self._tasks is not None
        self._closing = True
        # What brought a task down has cancelled the others: none of them will say that it is done.
        is_wrecked = self._tasks.cancel_scope.cancel_called
        with anyio.move_on_after(self._grace_s, shield=True):
            if not is_wrecked and any(run.is_busy for run in self._runs.values()):
                await self._quiet.wait()
        self._tasks.cancel_scope.cancel()
        try:
            if isinstance(error, Exception):
                # What the body raised is the body's own; a task group would wrap it in a group.
                await self._tasks.__aexit__(None, None, None)
            else:
                await self._tasks.__aexit__(kind, error, traceback)
        finally:
            with anyio.CancelScope(shield=True):
                for run in self._runs.values():
                    if run.lease is not None:
                        await self._release_lease(run)

    async def create(
        self,
        *,
        thread_id: str,
        principal: str,
        goal: str | None,
        plan: Plan | None = None,
        options: ev.Options,
        plan_only: bool = False,
        context: str | None = None,
        client_id: str | None = None,
        chain: tuple[str, ...] = (),
    ) -> ExecutionState:
        """A new execution, durable when this returns, already running.

        Raises:
            ThreadBusy: the thread has an unfinished execution.
            StoreError: nothing was stored.
        """
        execution_id = self.ids.new()
        trace = None if self._observer is None else self._observer.starting(execution_id, thread_id)
        created = ev.ExecutionCreated(
            goal=goal,
            options=options,
            plan_only=plan_only,
            context=context,
            client_id=client_id,
            chain=chain,
            traceparent=trace and trace[0],
            tracestate=trace and trace[1],
        )
        events: tuple[ev.Event, ...] = (created,)
        if plan is not None:
            events = (created, ev.PlanAccepted(plan=plan, pins=build_pins(plan, self.tool_facts())))
        run = self._run(new_execution(execution_id, thread_id, principal))
        await settle(run, Command(lambda execution, now: EventBatch(events)))
        return run.execution

    async def start(
        self, execution: ExecutionState, options: ev.Options, *, client_id: str | None = None
    ) -> ExecutionState:
        """Run a planned execution."""
        event = ev.ExecutionStarted(options=options, client_id=client_id)
        return await self._command(execution, lambda state, now: EventBatch((event,)))

    async def cancel(self, execution: ExecutionState, reason: str | None) -> ExecutionState:
        """Stop the execution; calls that are running are stopped too. A finished execution stays as it is."""

        def build(state: ExecutionState, now: float) -> EventBatch:
            if state.is_finished or state.cancel_requested:
                return EventBatch()
            return EventBatch((ev.CancelRequested(reason=reason),))

        return await self._command(execution, build)

    async def withdraw(self, execution: ExecutionState, suspension_id: str, reason: str) -> ExecutionState:
        """Close a question whose asker needs no answer any more, and go on; nothing happens when it is closed already."""

        def build(state: ExecutionState, now: float) -> EventBatch:
            found = state.suspensions.get(suspension_id)
            if found is None or not found.is_open or not found.question.asker:
                return EventBatch()
            guard = Guard(suspension_id=suspension_id, digest=found.question.digest, deadline="any")
            return EventBatch((ev.SuspensionWithdrawn(suspension_id=suspension_id, reason=reason),), guard)

        return await self._command(execution, build)

    async def answer(
        self, execution: ExecutionState, suspension_id: str, answer: Decision, authority: Authority
    ) -> tuple[ExecutionState, bool]:
        """The execution after the answer, and whether the answer was accepted (False: a person must decide).

        Raises:
            UsageError: see `rule_on_answer`; nothing was changed.
        """
        ruling = Ruling()

        def build(state: ExecutionState, now: float) -> EventBatch:
            nonlocal ruling
            ruling = rule_on_answer(
                self._approval,
                state,
                suspension_id,
                answer,
                authority,
                tools=self.tool_facts(),
                max_steps=self._max_steps,
                now=now,
            )
            return EventBatch(ruling.events, ruling.guard)

        answered = await self._command(execution, build)
        if ruling.refusal is not None:
            raise ruling.refusal
        return answered, ruling.is_accepted

    async def find(self, execution_id: str) -> ExecutionState:
        """The committed state of an execution.

        Raises:
            UnknownThread: there is no such execution.
        """
        header = await self.store.header(execution_id)
        if header is None:
            raise UnknownThread(f"there is no execution {execution_id[:64]!r}")
        # Another process may have answered what runs here, and this one may have committed since the header was read.
        run = self._runs.get(execution_id)
        if run is not None and run.execution.version >= header.version:
            return run.execution
        rested = self._idle.get(execution_id)
        if rested is not None and rested.version == header.version:
            return rested
        execution = await load_execution(self.store, header)
        self._cache_idle(execution)
        return execution

    async def find_by_suspension(
        self, thread_id: str, suspension_id: str, *, principal: str | None = None
    ) -> ExecutionState:
        """The execution of the thread that has the suspension, possibly not its newest state.

        With `principal` only that principal's are found: what belongs to somebody else costs the same one query as
        what does not exist, and its log is not read.

        Raises:
            UnknownSuspension: there is none in this thread.
        """
        rested = self._idle.get(self._threads.get(thread_id, ""))
        if rested is not None and suspension_id in rested.suspensions and principal in (None, rested.principal):
            return rested
        row = await self.store.find_suspension(suspension_id)
        if row is None or row.thread_id != thread_id or principal not in (None, row.principal):
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in thread {thread_id[:64]!r}")
        return await self.find(row.execution_id)

    async def wait(self, execution: ExecutionState, seconds: float) -> ExecutionState:
        """The state when the execution stops running, or after `seconds`, whichever comes first."""
        execution = await self._latest(execution)
        if execution.status != "running":
            return execution
        with anyio.move_on_after(seconds):
            while execution.status == "running":
                # Watched before the state is read again, so that no commit falls between the two.
                watch = self._watches.setdefault(execution.execution_id, asyncio.Event())
                execution = await self._latest(execution)
                if execution.status == "running":
                    await watch.wait()
                    execution = await self._latest(execution)
            return execution
        return await self.find(execution.execution_id)

    async def wait_for_change(self, execution_id: str) -> None:
        """Returns after the next commit to the execution, by whatever process, or when there is more to hear."""
        await self._watches.setdefault(execution_id, asyncio.Event()).wait()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every commit from now on, until the function that comes back is called."""
        token = object()
        self._listeners[token] = listener

        def stop() -> None:
            self._listeners.pop(token, None)

        return stop

    async def refresh_grants(self) -> None:
        """Read which grants are open now; done at the start, by the clockwork, and after making or revoking one."""
        self.grants.fill(await self.store.grants(only_open=True))

    def streamed_text(self, execution_id: str) -> str:
        """The end of the final answer while a model writes it in this process; it may still come to nothing."""
        run = self._runs.get(execution_id)
        return run.streamed_text if run is not None else ""

    def tool_facts(self) -> dict[str, ToolFacts]:
        """What a plan may name now: the available tools."""
        definitions = self.tools.definitions()
        if definitions is not self._known[0]:
            facts = {d.name: ToolFacts(d.is_blocking, d.digest) for d in definitions if not d.unavailable}
            self._known = (definitions, facts)
        return self._known[1]

    async def tick(self) -> None:
        """One turn of the clockwork: alarms, deadlines, takeovers, leases, news from other processes."""
        await self._check_other_processes()
        now = self.store.clock.now()
        is_time_to_renew = now - self._renewed >= RENEW_S
        if is_time_to_renew:
            self._renewed = now
            if self._runs:
                await self.store.renew(self.owner)
        await self._each(self._wake, await self.store.due(100) if self._adopts else await self._known_due())
        if is_time_to_renew:
            orphans = await self.store.orphans(100) if self._adopts else self._known_running()
            await self._each(self._take_over, orphans)

    async def _each(self, care: Callable[[Row], Awaitable[None]], rows: Sequence[Row]) -> None:
        """Nothing that is wrong with one row keeps the others from their turn; it is tried again with the next one."""
        for row in rows:
            try:
                await care(row)
            except PlanwardenError as error:
                logger.error("%s", error.message)

    async def _known_due(self) -> list[SuspensionRow]:
        """As `Store.due`, of the executions that this process was asked about."""
        now = self.store.clock.now()
        states = [*(run.execution for run in self._runs.values()), *self._idle.values()]
        questions = [found.question for state in states for found in state.open_suspensions]
        due = [asked.suspension_id for asked in questions if asked.expires_at is not None and asked.expires_at <= now]
        rows = [await self.store.find_suspension(suspension_id) for suspension_id in dict.fromkeys(due)]
        return [row for row in rows if row is not None and row.status == "pending"]

    def _known_running(self) -> list[str]:
        """As `Store.orphans`, of the executions that this process was asked about; some may have a living owner."""
        return [execution_id for execution_id, known in self._idle.items() if known.status == "running"]

    async def _run_scheduler(self) -> None:
        while True:
            try:
                await self.tick()
            except StoreError as error:
                logger.error("%s", error.message)
            # The clockwork must outlive one bad row; whatever it was, it is tried again with the next turn.
            except Exception:
                logger.exception("the clockwork stumbled")
            await anyio.sleep(TICK_S)

    async def _check_other_processes(self) -> None:
        """Wake whoever watches executions that run elsewhere; read answers to executions that run here."""
        changes = await self.store.changes()
        if changes == self._changes:
            return
        self._changes = changes
        await self.refresh_grants()
        for execution_id in [known for known in self._watches if known not in self._runs]:
            self._idle.pop(execution_id, None)
            self._watches.pop(execution_id).set()
        for run in [found for found in self._runs.values() if found.lease is not None]:
            header = await self.store.header(run.execution.execution_id)
            if header is not None and header.version > run.execution.version:
                run.refresh()
        self._notify_listeners(None)

    async def _wake(self, row: SuspensionRow) -> None:
        """Let the question time out, or let its alarm fire. Whoever loses a race for it finds nothing left to do."""

        def build(state: ExecutionState, now: float) -> EventBatch:
            suspension = state.suspensions.get(row.suspension_id)
            if suspension is None or not suspension.is_open or state.is_finished:
                return EventBatch()
            question = suspension.question
            if question.expires_at is None or question.expires_at > now:
                reminded = find_due_alarm(suspension, now)
                guard = Guard(suspension_id=row.suspension_id, digest=question.digest)
                return EventBatch() if reminded is None else EventBatch((reminded,), guard)
            timed_out = ev.SuspensionTimedOut(suspension_id=row.suspension_id, outcome=question.on_timeout)
            guard = Guard(suspension_id=row.suspension_id, digest=question.digest, deadline="passed")
            return EventBatch((timed_out,), guard)

        execution = await self.find(row.execution_id)
        await self._command(execution, build)

    async def _take_over(self, execution_id: str) -> None:
        run = self._runs.get(execution_id)
        if run is not None and run.is_busy:
            return
        header = await self.store.header(execution_id)
        if header is None:
            return
        # Read before it is claimed: what cannot be read must not be owned, and what is owned is gone on with.
        execution = await load_execution(self.store, header)
        lease = await self.store.claim(execution_id, self.owner)
        if lease is None:
            return
        logger.info("taking over execution %s", execution_id)
        assert self._context is not None
        run = Run(self._context, execution, lease)
        self._runs[execution_id] = run
        run.refresh()

    async def _command(
        self, execution: ExecutionState, build: Callable[[ExecutionState, float], EventBatch]
    ) -> ExecutionState:
        """Settle a command on the execution's run. What a stale copy refuses is judged again on a fresh one."""
        run = self._run(execution)
        try:
            await settle(run, Command(build))
        except UsageError:
            self._idle.pop(execution.execution_id, None)
            fresh = await self.find(execution.execution_id)
            if fresh.version == execution.version:
                raise
            run = self._run(fresh)
            await settle(run, Command(build))
        return run.execution

    def _run(self, execution: ExecutionState) -> Run:
        run = self._runs.get(execution.execution_id)
        if run is None or run.is_foreign:
            if self._context is None or self._closing:
                raise StoreError("the engine is not running; enter it with `async with`")
            run = Run(self._context, execution)
            self._runs[execution.execution_id] = run
        return run

    async def _latest(self, execution: ExecutionState) -> ExecutionState:
        """The newest state, without asking the store when this process was the last to commit."""
        run = self._runs.get(execution.execution_id)
        if run is not None and not run.is_foreign and run.execution.version >= max(1, execution.version):
            return run.execution
        rested = self._idle.get(execution.execution_id)
        if rested is not None and rested.version >= execution.version and rested.status != "running":
            return rested
        return await self.find(execution.execution_id)

    def _after_commit(self, run: Run) -> None:
        execution_id = run.execution.execution_id
        if run.is_foreign or not (run.is_busy or run.lease is not None):
            if self._runs.get(execution_id) is run:
                del self._runs[execution_id]
            if run.execution.version:
                self._cache_idle(run.execution)
        self._notify_watchers(run)
        if run.execution.version and self._listeners:
            self._notify_listeners(Commit(execution=run.execution, is_foreign=run.is_foreign))
        if self._closing and not any(other.is_busy for other in self._runs.values()):
            self._quiet.set()

    def _notify_listeners(self, commit: Commit | None) -> None:
        for listener in tuple(self._listeners.values()):
            listener(commit)

    def _notify_watchers(self, run: Run) -> None:
        watch = self._watches.pop(run.execution.execution_id, None)
        if watch is not None:
            watch.set()

    def _cache_idle(self, execution: ExecutionState) -> None:
        self._idle[execution.execution_id] = execution
        self._idle.move_to_end(execution.execution_id)
        self._threads[execution.thread_id] = execution.execution_id
        if len(self._idle) > CACHED:
            _, oldest = self._idle.popitem(last=False)
            if self._threads.get(oldest.thread_id) == oldest.execution_id:
                del self._threads[oldest.thread_id]

    async def _release_lease(self, run: Run) -> None:
        assert run.lease is not None
        try:
            await self.store.release(run.lease)
        except PlanwardenError as error:
            logger.warning("could not release execution %s: %s", run.execution.execution_id, error.message)
