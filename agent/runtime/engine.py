"""The engine has all executions of one process: every command enters here, and runs start and end here.

The engine starts runs for new executions and for answers, and takes over executions whose process is gone. Its
scheduler does the work that no caller asks for. Executions run in the engine's task group, never in that of a
request: if a caller stops waiting, the execution continues.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision, check_size
from planwarden.agent.approval.context import ApprovalContext
from planwarden.agent.approval.forecast import CallForecast, forecast_calls
from planwarden.agent.approval.grants import GrantCache
from planwarden.agent.approval.ruling import Ruling, rule_on_answer
from planwarden.agent.common.artifact import Artifact
from planwarden.agent.common.errors import (
    CommitUnknown,
    DuplicateEffect,
    PlanUnfinished,
    PlanwardenError,
    StoreError,
    StoreReplaced,
    UnknownSuspension,
    UsageError,
)
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.task_groups import cancel_tasks
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.pins import build_pins
from planwarden.agent.core.plan.plan import MAX_STEPS, ToolFacts
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.policy import Policy
from planwarden.agent.ports.store import Lease, StartRequest, Store, SuspensionRow
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.ports.watchers import Commit, NotificationSource, Observer
from planwarden.agent.runtime import commands
from planwarden.agent.runtime.adoption import Adoption, Peers, refuse_outdated
from planwarden.agent.runtime.execution_cache import ChangeNotifier, ExecutionCache
from planwarden.agent.runtime.log_reader import find_header, find_log, fold_log, load_execution
from planwarden.agent.runtime.lookups import LookedUp, LookupReader, TransactionContext
from planwarden.agent.runtime.new_execution import NewExecution
from planwarden.agent.runtime.perform import Performer
from planwarden.agent.runtime.run import Run, RunContext
from planwarden.agent.runtime.scheduler import Scheduler
from planwarden.agent.runtime.timeouts import renew, wake
from planwarden.agent.runtime.transaction_builder import BuildEvents, Command, EventBatch

logger = logging.getLogger(__name__)

GRACE_S = 2.0
FAILING_S = 5.0
"""Seconds for which storing may fail before a waiting caller is told; an attempt in that time may still succeed."""
MAX_ADOPTED = 1_000
"""The default of `concurrency`: an engine with this many executions takes over no more from other processes."""


class Engine:
    """Runs executions. Enter it as an async context manager before you call anything else."""

    def __init__(
        self,
        store: Store,
        tools: Toolbox,
        model: Model,
        policy: Policy,
        *,
        max_steps: int = MAX_STEPS,
        adopts: bool = True,
        executes: bool = True,
        concurrency: int = MAX_ADOPTED,
        peers: Peers | None = None,
        grace_s: float | None = None,
        outbox: NotificationSource | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Without `adopts`, the engine continues only executions that a caller named: a process that ends soon must not
        begin what it cannot finish. With `adopts`, it takes over others only while it runs fewer than `concurrency`.
        Without `executes`, it records commands, owns nothing, and starts no call and no prompt; the same holds for
        executions that `peers` must continue, see `Adoption`.
        Running calls have `grace_s` seconds, by default `GRACE_S`, to end when the engine closes.
        `outbox` says which notifications to send; without it nobody is notified. `observer` is called before and after
        jobs, and after commits.
        """
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._outbox = outbox
        self._observer = observer
        self.store = store
        self.tools = tools
        self.owner = new_id()
        self.grants = GrantCache(policy)
        """The standing grants that calls may use, as last read from the store."""
        self._approval = ApprovalContext(tools=tools, policy=policy, clock=store.clock, grants=self.grants)
        transactions = TransactionContext(replace(self._approval, paths={}), self.tool_facts, max_steps)
        self.lookups = LookupReader(store, self.find, transactions)
        self._performer = Performer(replace(self._approval, parts=None), model, self.lookups)
        self._facts: tuple[Sequence[ToolDefinition], dict[str, ToolFacts]] = ((), {})
        self._cache = ExecutionCache()
        self._notifier = ChangeNotifier()
        cache, notifier = self._cache, self._notifier
        adoption = Adoption(store, self.owner, tools, cache, executes, concurrency, peers, self._continue_run)
        self._adoption = adoption
        self._scheduler = Scheduler(
            store, self.owner, cache, notifier, adoption, adopts, self.refresh_grants, self._wake
        )
        self.listen = self._notifier.listen
        """Registers a listener for every commit from now on, and returns a function that removes it."""
        self.may_run = self._adoption.may_run
        """Returns False if other processes that share the store must continue the execution."""
        self.tick = self._scheduler.tick
        """Runs one tick of the scheduler."""
        self._lost_store: StoreReplaced | None = None
        """The error that made the engine end by itself, if it did."""
        self._is_closing = False
        self._all_done = anyio.Event()
        """Set when the engine closes and nothing runs."""
        self._tasks: TaskGroup | None = None
        """The tasks of the scheduler and of `_host_jobs`."""
        self._jobs = anyio.CancelScope(shield=True)
        """The scope of the runs' tasks."""
        self._has_started = anyio.Event()
        self._commands = WeakSet[asyncio.Future[None]]()
        """The commands that callers wait for."""
        self._context: RunContext | None = None

    async def __aenter__(self) -> Self:
        """Start the engine. Raise `StoreError` if the store cannot be read."""
        await self.refresh_grants()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._host_jobs)
        self._tasks.start_soon(self._run_scheduler)
        try:
            await self._has_started.wait()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give running calls a moment to finish, then stop them; the next owner of the executions settles the calls.

        Raises `StoreReplaced` if that error ended the engine.
        """
        assert self._tasks is not None
        self._is_closing = True
        # If an error ended one task and so cancelled the others, none of them will set `_all_done`.
        is_wrecked = self._tasks.cancel_scope.cancel_called
        try:
            with anyio.move_on_after(self._grace_s, shield=True):
                if not is_wrecked and self._cache.is_busy:
                    await self._all_done.wait()
        finally:
            self._jobs.cancel()
            try:
                await cancel_tasks(self._tasks, error)
            finally:
                self._context = None
                self._end_waits()
                await self._release_leases()
                if self._lost_store is not None:
                    raise self._lost_store

    def _end_waits(self) -> None:
        """Let everybody go who waits for a run, because no run will settle a command or wake a watcher any more."""
        for settled in self._commands:
            if not settled.done():
                settled.set_exception(CommitUnknown("the engine has ended; whether this was stored is not known"))
        for execution_id in self._notifier.watched:
            self._notifier.wake(execution_id)

    async def _release_leases(self) -> None:
        with anyio.CancelScope(shield=True):
            for lease in filter(None, (run.lease for run in self._cache.runs.values())):
                try:
                    await self.store.release(lease)
                except PlanwardenError as fault:
                    logger.warning("could not release execution %s: %s", lease.execution_id, fault.message)

    async def _run_scheduler(self) -> None:
        assert self._tasks is not None
        try:
            await self._scheduler.run()
        except StoreReplaced as error:
            self._lost_store = error
            self._jobs.cancel()
            self._tasks.cancel_scope.cancel()

    async def _host_jobs(self) -> None:
        """Host the runs, shielded: cancelling the task that entered the engine does not stop them, so calls can finish.

        An error that no run handles ends the engine, and is raised in that task.
        """
        with self._jobs:
            async with anyio.create_task_group() as tasks:
                self._context = RunContext(
                    store=self.store,
                    performer=self._performer,
                    lookups=self.lookups,
                    tasks=tasks,
                    owner=self.owner,
                    outbox=self._outbox,
                    observer=self._observer,
                    on_commit=self._after_commit,
                    is_closing=lambda: self._is_closing,
                    may_run=self._adoption.may_run,
                    on_stream=self._wake_watcher,
                    skip=self._adoption.skip,
                )
                self._has_started.set()
                await anyio.sleep_forever()

    async def create(self, new: NewExecution) -> ExecutionState:
        """Return a new execution, durable and running, with a warning if another one of the same plan is unfinished.

        Raises:
            KeyUsed: the principal has used the key before.
            ThreadMovedOn: the thread is not in the state that `new.start` requires.
            ThreadBusy: the thread has an unfinished execution.
            StoreError: nothing was stored.
        """
        thread, requester, start, retry = new.thread, new.requester, new.start, new.retry
        execution_id = new_id()
        trace = None if self._observer is None else self._observer.starting(execution_id, thread.thread_id)
        created = ev.ExecutionCreated(
            goal=new.goal,
            options=thread.options,
            plan_only=new.plan_only,
            context=thread.context,
            client_id=requester.client_id,
            chain=requester.chain,
            traceparent=trace and trace[0],
            tracestate=trace and trace[1],
            host=requester.host,
            saved_plan=new.saved_plan,
            retry_of=None if retry is None else retry.execution_id,
            starter=requester.starter,
            thread_effects=thread.effects,
            is_operators=requester.is_operator,
        )
        state = new_execution(execution_id, thread.thread_id, requester.principal)
        if new.parsed is None:
            return await self._create(state, created, start=start)
        plan, warnings = new.parsed.plan, new.parsed.warnings
        pins = build_pins(plan, self.tool_facts()) if new.pins is None else new.pins
        accepted = ev.PlanAccepted(
            plan=plan,
            warnings=warnings,
            pins=pins,
            earlier=new.parsed.earlier,
            inputs=new.inputs or {},
            agreed=new.agreed,
        )
        if retry is not None and retry.reuse is not None:
            return await self._create(state, created, accepted, retry.reuse, start=start, artifacts=retry.artifacts)
        try:
            return await self._create(state, created, accepted, start=start)
        except PlanUnfinished as refusal:
            assert start is not None
            accepted = replace(accepted, warnings=(*warnings, refusal.message))
            return await self._create(state, created, accepted, start=replace(start, is_only=False))

    async def _create(
        self, new: ExecutionState, *events: ev.Event, start: StartRequest | None, artifacts: tuple[Artifact, ...] = ()
    ) -> ExecutionState:
        run = self._run(new)
        batch = EventBatch(events, start=start, artifacts=artifacts)
        await self._settle(run, Command(lambda execution, now, lookups: batch))
        return run.execution

    async def start(
        self,
        execution: ExecutionState,
        options: ev.Options,
        *,
        client_id: str | None = None,
        request: StartRequest | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
    ) -> ExecutionState:
        """Run a planned execution, or go on with an incomplete one.

        Raises:
            KeyUsed: the principal has used the key before.
            InvalidArguments: the execution runs already or has ended, or the inputs do not fit the plan.
        """
        return await self._command(execution, commands.start(options, client_id, request, inputs))

    async def cancel(
        self, execution: ExecutionState, reason: str | None, *, if_undecided: bool = False
    ) -> ExecutionState:
        """Stop the execution and its running calls. A finished execution stays as it is.

        With `if_undecided`, cancel it only while it waits for its first answer; see `commands.cancel`.
        """
        return await self._command(execution, commands.cancel(reason, if_undecided=if_undecided))

    async def withdraw(self, execution: ExecutionState, suspension_id: str, reason: str) -> ExecutionState:
        """Close a question whose asker no longer needs an answer, and continue; do nothing if it is already closed."""
        return await self._command(execution, commands.withdraw(suspension_id, reason))

    async def renew(self, execution: ExecutionState, suspension_id: str) -> ExecutionState:
        """Give people more time for a question once half of its time has passed; `timeouts.renew` lists exceptions."""
        return await self._command(execution, renew(suspension_id))

    async def answer(
        self,
        execution: ExecutionState,
        suspension_id: str,
        answer: Decision,
        authority: Authority,
        *,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> tuple[ExecutionState, bool]:
        """Return the execution after the answer, and whether the answer was accepted (False: a person must decide).

        `then` is awaited after this answer has decided the question and before any call that it released; it is not
        awaited for an answer that was recorded earlier. It must not raise, and after a crash it may never run.

        Raises:
            UsageError: see `check_size` and `rule_on_answer`; nothing was changed.
            DuplicateEffect: the approval is recorded and nothing was called, because another call has the business key.
        """
        check_size(answer)
        await self._adoption.look_for_owner(execution)
        ruling = Ruling()

        def build(state: ExecutionState, now: float, lookups: LookedUp) -> EventBatch:
            nonlocal ruling
            if self._adoption.is_outdated and answer.approved is not False:
                refuse_outdated(state, suspension_id)
            plans = lookups.build_plan_intake(state)
            # The parts that were read for the released calls must not change what the question covers.
            context = replace(lookups.approval, parts={})
            ruling = rule_on_answer(context, state, suspension_id, answer, authority, plans=plans, now=now)
            return EventBatch(ruling.events, ruling.guard)

        async def follow() -> None:
            if then is not None and any(isinstance(event, ev.SuspensionDecided) for event in ruling.events):
                await then()

        outcome = await self._command(execution, build, follow)
        if ruling.refusal is not None:
            raise ruling.refusal
        if ruling.is_accepted and answer.approved is not False:
            _raise_duplicate(outcome, suspension_id)
        return outcome, ruling.is_accepted

    async def find(self, execution_id: str) -> ExecutionState:
        """Return the committed state of an execution.

        Raises:
            UnknownThread: there is no such execution.
            LogUnreadable: as `load_execution` raises it.
        """
        log = None
        if execution_id in self._cache.runs or execution_id in self._cache.idle:
            header = await find_header(self.store, execution_id)
        else:
            log = await find_log(self.store, execution_id)
            header = log.header
        is_other = header.owner != self.owner and header.is_leased(self.store.clock.steady())
        self._cache.note_owner(execution_id, is_other=is_other)
        # The cached state may be older than the header, after a commit elsewhere, or newer, after a commit in this run.
        run = self._cache.runs.get(execution_id)
        if run is not None and run.execution.version >= header.version:
            return run.execution
        idle = self._cache.idle.get(execution_id)
        if idle is not None and idle.version == header.version:
            return idle
        execution = await load_execution(self.store, header) if log is None else fold_log(header, log.recorded)
        self._cache.cache_idle(execution)
        return execution

    async def find_by_suspension(
        self, thread_id: str, suspension_id: str, *, principal: str | None = None
    ) -> ExecutionState:
        """Return the execution of the thread that has the suspension; its state may not be the newest.

        With `principal`, find only that principal's suspensions. For any other id, whether or not it exists, make a
        single query and read no log.

        Raises:
            UnknownSuspension: the thread has no such suspension.
        """
        idle = self._cache.find_idle_in_thread(thread_id)
        if idle is not None and suspension_id in idle.suspensions and principal in (None, idle.principal):
            return idle
        row = await self.store.find_suspension(suspension_id)
        if row is None or row.thread_id != thread_id or principal not in (None, row.principal):
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r} in thread {thread_id[:64]!r}")
        return await self.find(row.execution_id)

    async def wait(self, execution: ExecutionState, seconds: float) -> ExecutionState:
        """Return the state when the execution stops running, or after `seconds`, whichever comes first.

        Raises:
            StoreError: nothing that the execution does can be stored; see `check_recording`.
        """
        if execution.execution_id not in self._cache.runs:
            # Another process may have answered the question at which it stopped here.
            execution = await self.find(execution.execution_id)
        execution = await self._latest(execution)
        if execution.status != "running":
            return execution
        with anyio.move_on_after(seconds):
            while self._context is not None:
                # Watch before reading the state again, so that no commit is missed between the two.
                watch = self._notifier.watch_stop(execution.execution_id)
                execution = await self._latest(execution)
                if execution.status != "running":
                    return execution
                await watch.wait()
                self.check_recording(execution)
        self.check_recording(execution, failing_s=0.0)
        return await self.find(execution.execution_id)

    def check_recording(self, execution: ExecutionState, *, failing_s: float | None = None) -> None:
        """Raise `StoreError` if storing the execution's events has failed for `failing_s`, by default `FAILING_S`.

        The run tries again every second, and the execution goes on once storing succeeds.
        """
        run = self._cache.runs.get(execution.execution_id)
        if run is None or run.failure is None:
            return
        if anyio.current_time() - run.failing_since >= (FAILING_S if failing_s is None else failing_s):
            raise StoreError(
                f"what execution {execution.execution_id!r} does cannot be stored: {run.failure.message}; everything "
                "that was acknowledged is kept, and it goes on by itself when the storage works again",
                details={"executionId": execution.execution_id, "threadId": execution.thread_id, "status": "running"},
            )

    async def wait_for_change(self, before: ExecutionState) -> ExecutionState:
        """Return the state after any process's next commit to the execution, or after more of an answer was streamed.

        Return at once if the state is no longer `before`, so that no commit is missed between two looks.
        """
        watch = self._notifier.watch(before.execution_id)
        current = await self.find(before.execution_id)
        if current.version != before.version:
            return current
        await watch.wait()
        return await self.find(before.execution_id)

    async def refresh_grants(self) -> None:
        """Read which grants are open now; called at the start, by the scheduler, and after a grant changed."""
        self.grants.fill(await self.store.grants(only_open=True))

    def streamed_text(self, execution_id: str) -> str:
        """Return the end of the final answer while a model writes it in this process; the answer may still fail."""
        run = self._cache.runs.get(execution_id)
        return run.streamed_text if run is not None else ""

    def forecast(self, execution: ExecutionState) -> tuple[CallForecast, ...]:
        """Return what can be predicted about the calls of the execution's plan before they run; see `forecast_calls`.

        It looks up no paths: if a rule depends on where a path leads, the forecast says that the rule will ask.
        """
        return forecast_calls(self._approval, execution)

    async def forecast_whole(self, execution: ExecutionState, *, has_inputs: bool) -> tuple[CallForecast, ...]:
        """Return what `forecast` returns, but look up paths, so that rules on paths decide as they will in the run."""
        return await self.lookups.resolve(
            execution, lambda lookups: forecast_calls(lookups.approval, execution, has_inputs=has_inputs)
        )

    def tool_facts(self) -> dict[str, ToolFacts]:
        """Return the tools that a plan may name now."""
        definitions = self.tools.definitions()
        if definitions is not self._facts[0]:
            facts = {
                d.name: ToolFacts(
                    d.is_blocking,
                    d.digest,
                    partial(self.tools.check, d.name),
                    d.risk != "read",
                    d.output_schema,
                    d.is_gated,
                    d.effect == "read",
                )
                for d in definitions
                if not d.unavailable
            }
            self._facts = (definitions, facts)
        return self._facts[1]

    async def _wake(self, row: SuspensionRow) -> None:
        await self._command(await self.find(row.execution_id), wake(row.suspension_id, self.grants.policy))

    def _continue_run(self, execution: ExecutionState, lease: Lease, is_current: bool) -> None:
        assert self._context is not None
        run = Run(self._context, execution, lease)
        self._cache.runs[execution.execution_id] = run
        if self._observer is not None:
            if lease.silent_s is not None:
                self._observer.took_over(execution, lease.silent_s, is_silent=lease.is_from_silent)
            elif any(
                suspension.status == "decided" and suspension.decided_at == execution.updated_at
                for suspension in execution.suspensions.values()
            ):
                # The last transaction holds an answer.
                self._observer.woke(execution, max(0.0, self.store.clock.now() - execution.updated_at))
        if is_current:
            run.submit(None)
        else:
            run.refresh()

    async def _command(
        self, execution: ExecutionState, build: BuildEvents, then: Callable[[], Awaitable[None]] | None = None
    ) -> ExecutionState:
        """Return the state after the command. If the run refuses it on an old state, try again on the newest state."""
        run = self._run(execution)
        try:
            await self._settle(run, Command(build, then))
        except UsageError:
            self._cache.drop_idle(execution.execution_id)
            fresh = await self.find(execution.execution_id)
            if fresh.version == execution.version:
                raise
            run = self._run(fresh)
            await self._settle(run, Command(build, then))
        return run.execution

    async def _settle(self, run: Run, command: Command) -> None:
        """Submit a command and wait until it is settled; raise its error. Cancelling the wait undoes nothing."""
        command.future = asyncio.get_running_loop().create_future()
        self._commands.add(command.future)
        run.submit(command)
        await command.future
        if command.error is not None:
            raise command.error

    def _run(self, execution: ExecutionState) -> Run:
        run = self._cache.runs.get(execution.execution_id)
        if run is None or run.is_foreign or self._context is None:
            if self._context is None or self._is_closing:
                raise StoreError("the engine is not running; enter it with `async with`")
            run = Run(self._context, execution, seems_foreign=self._cache.seems_elsewhere(execution.execution_id))
            self._cache.runs[execution.execution_id] = run
        return run

    async def _latest(self, execution: ExecutionState) -> ExecutionState:
        """Return the newest state; do not ask the store if this process made the last commit."""
        run = self._cache.runs.get(execution.execution_id)
        if run is not None and not run.is_foreign and run.execution.version >= max(1, execution.version):
            return run.execution
        idle = self._cache.idle.get(execution.execution_id)
        if idle is not None and idle.version >= execution.version and idle.status != "running":
            return idle
        return await self.find(execution.execution_id)

    def _after_commit(self, run: Run) -> None:
        if run.is_foreign or not (run.is_busy or run.lease is not None):
            self._cache.remove_run(run)
            other = self._cache.runs.get(run.execution.execution_id)
            if other is not None and other.execution.version < run.execution.version:
                # Tell the other run: the store reports only commits of other processes.
                other.refresh()
        elif run.lease is not None:
            # While a run was foreign, the cache may have removed it.
            self._cache.runs[run.execution.execution_id] = run
        self._wake_watcher(run)
        if run.execution.version:
            self._notifier.notify(Commit(execution=run.execution, is_foreign=run.is_foreign))
        if self._is_closing and not self._cache.is_busy:
            self._all_done.set()

    def _wake_watcher(self, run: Run) -> None:
        is_running = run.execution.status == "running" and not run.is_foreign and run.failure is None
        self._notifier.wake(run.execution.execution_id, is_running=is_running)


def _raise_duplicate(execution: ExecutionState, suspension_id: str) -> None:
    """Raise `DuplicateEffect` if the answer released a call that failed because another call has its business key."""
    suspension = execution.suspensions.get(suspension_id)
    call_id = None if suspension is None else suspension.question.call_id
    call = None if call_id is None else execution.call(call_id)
    if call is not None and call.status == "failed" and call.error_code == DuplicateEffect.code:
        raise DuplicateEffect(f"{call.error_message}; step {call.step_id!r} failed")
