"""One process working on one execution: load, decide, append, perform.

A `Run` takes facts (results, replies, answers), folds them, lets `decide` and the dispatcher say what follows, commits
all of it in one transaction, and only then performs the jobs that it announced. So the result of call k and the intent
of call k+1 share a transaction. The task that brings a fact also performs what follows: a linear plan is one task.

Not promised: that a cancelled tool stops. A plain function on a thread is abandoned, not killed.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.approval.once import OnceNeeded
from planwarden.agent.common.errors import (
    BudgetSpent,
    CommitUnknown,
    DuplicateEffect,
    GrantUsedUp,
    GuardFailed,
    LeaseLost,
    LogUnreadable,
    NotStorable,
    PlanwardenError,
    StartRefused,
    StoreError,
    UsageError,
    VersionConflict,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import Earlier, EarlierNeeded, Reference
from planwarden.agent.core.fold import fold
from planwarden.agent.core.plan_parsing import ParsingNeeded
from planwarden.agent.core.references import PartsNeeded
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.policy import PathsNeeded
from planwarden.agent.ports.store import Append, Lease, Store
from planwarden.agent.ports.watchers import NotificationSource, Observer
from planwarden.agent.runtime import commands
from planwarden.agent.runtime.artifact_reader import read_wanted
from planwarden.agent.runtime.dispatch import CallJob
from planwarden.agent.runtime.perform import Performer
from planwarden.agent.runtime.transaction import (
    Command,
    EventBatch,
    Job,
    JobOutcome,
    ListingJob,
    LookedUp,
    Needed,
    PromptJob,
    Transaction,
    TransactionContext,
)

logger = logging.getLogger(__name__)

MAX_RETRIES = 20
RETRY_S = 1.0
STREAM_NOTIFY_S = 0.5
"""The shortest time between two notifications of watchers about an answer that a model is writing."""
STREAM_CHARS = 2_000
CERTAIN_S = 1.0
"""Seconds after its last renewal for which a lease needs no new look at the store. No process may be taken for dead as
soon: one that stood still meanwhile would send what another one has settled."""

running: ContextVar[tuple[str, str] | None] = ContextVar("running", default=None)
"""Execution id and thread id of the run that the current task belongs to, for log lines."""


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """What every run of one engine shares."""

    store: Store
    transactions: TransactionContext
    performer: Performer
    find_earlier: Callable[[ExecutionState, frozenset[Reference]], Awaitable[Earlier]]
    """What the thread's earlier executions have for the references of an execution's plan."""
    parse_large: Callable[[ParsingNeeded], Awaitable[None]]
    tasks: TaskGroup
    owner: str
    policy: str
    """Digest of the policy, for the audit."""
    outbox: NotificationSource | None
    """None when nobody is notified."""
    observer: Observer | None
    """None when nothing observes the engine."""
    on_grant_refused: Callable[[str], None]
    """Called with the id of a grant that the store refused to use."""
    on_commit: Callable[["Run"], None]
    """Called after every commit, and when the run has nothing more to do."""
    is_closing: Callable[[], bool]
    follows: Callable[[ExecutionState], bool]
    """False when this process only records commands of the execution, and others continue it."""
    on_stream: Callable[["Run"], None]
    """Called when a model has written more of the final answer."""


class _Doubt(msgspec.Struct, frozen=True):
    """A transaction whose commit has no answer."""

    append: Append
    transaction: Transaction
    arrived: set[str]
    """Keys of the jobs whose outcomes it records."""


class Run:
    """Exists while this process works on the execution. Everything that must survive it is in the log."""

    def __init__(
        self,
        context: RunContext,
        execution: ExecutionState,
        lease: Lease | None = None,
        *,
        seems_foreign: bool = False,
    ) -> None:
        """With `seems_foreign` another process owned the execution a moment ago: its commands are recorded at once, and
        only then is it found out whether that process is gone."""
        self._context = context
        self.execution = execution
        """The state as committed."""
        self.lease = lease
        self._is_owner_gone = lease is None or not lease.is_from_silent
        self._confirmed_at = -math.inf
        """Steady seconds of a moment when the lease was certainly this process's."""
        self._waiting: list[JobOutcome | Command] = []
        self._is_committing = False
        self._inflight: dict[str, anyio.CancelScope] = {}
        """By call id or prompt key, from the announcement of a job until its outcome is stored or given up."""
        self._unstored: list[JobOutcome] = []
        """Outcomes that could not be stored; `_retry` brings them again."""
        self._is_retrying = False
        self.failure: StoreError | None = None
        """Why nothing can be stored now."""
        self.failing_since = 0.0
        """Seconds of the event loop's clock."""
        self._doubt: _Doubt | None = None
        self._is_stale = False
        self.streamed_text = ""
        """The end of the final answer while a model writes it: progress, never recorded."""
        self._notified_at = -math.inf
        self.is_foreign = self._is_owner_unproven = seems_foreign
        """Another process owns the execution; only answers can be recorded through this run."""

    @property
    def is_busy(self) -> bool:
        """Something is running or waiting to be recorded here."""
        return bool(self._is_committing or self._waiting or self._inflight or self._doubt)

    def submit(self, fact: JobOutcome | Command | None) -> None:
        """Bring a fact, or None to decide again. Returns at once; a command is settled later."""
        if fact is not None:
            self._waiting.append(fact)
        if not self._is_committing:
            self._is_committing = True
            self._context.tasks.start_soon(self._work, None)

    def refresh(self) -> None:
        """Read what another process appended, and continue from there."""
        self._is_stale = True
        # A command, because an empty submission changes nothing while something is being committed.
        self.submit(Command(lambda execution, now: EventBatch()))

    async def _work(self, job: Job | None) -> None:
        """Perform the job, record its outcome, and perform what follows. The outermost loop of its task."""
        running.set((self.execution.execution_id, self.execution.thread_id))
        try:
            while job is not None or self._is_committing:
                if job is not None:
                    outcome = await self._perform(job)
                    if self.is_foreign:
                        del self._inflight[job.key]
                        self.submit(self._build_report(outcome))
                        return
                    self._waiting.append(outcome)
                    if self._is_committing:
                        return
                    self._is_committing = True
                jobs = await self._commit_waiting()
                for other in jobs[1:]:
                    self._context.tasks.start_soon(self._work, other)
                job = jobs[0] if jobs else None
                if job is None:
                    return
        # A fault in one execution must not take the others down with it; its log stays as committed.
        except Exception:
            logger.exception("execution %s stopped on an internal error", self.execution.execution_id)
            await self._abandon()

    def _perform(self, job: Job) -> Coroutine[object, object, JobOutcome]:
        if isinstance(job, ListingJob):
            return self._wait_for_tools(job)
        return self._perform_observed(job) if self._context.observer is not None else self._perform_unobserved(job)

    async def _wait_for_tools(self, job: ListingJob) -> JobOutcome:
        with self._inflight[job.key]:
            await self._context.transactions.approval.tools.wait_for_tools(job.tools)
        return JobOutcome(job.key, ())

    async def _perform_observed(self, job: CallJob | PromptJob) -> JobOutcome:
        assert self._context.observer is not None
        prompt = None if isinstance(job, CallJob) else job.prompt
        with self._context.observer.performing(self.execution, job.key, prompt) as report:
            outcome = await self._perform_unobserved(job)
            report(outcome.events)
            return outcome

    def _perform_unobserved(self, job: CallJob | PromptJob) -> Coroutine[object, object, JobOutcome]:
        return self._call(job) if isinstance(job, CallJob) else self._prompt(job)

    async def _call(self, job: CallJob) -> JobOutcome:
        confirm = partial(self.confirm_lease, job.key)
        outcome = await self._context.performer.call(self.execution, job, self._inflight[job.key], confirm)
        events = (outcome.event,) if outcome.then is None else (outcome.event, outcome.then)
        return JobOutcome(job.key, events, outcome.artifacts)

    async def _prompt(self, job: PromptJob) -> JobOutcome:
        replied: tuple[ev.Event, ...] = ()
        try:
            with self._inflight[job.key]:
                replied = await self._context.performer.prompt(
                    job.prompt,
                    self._context.transactions.facts,
                    self._take_streamed_text,
                    find_earlier=partial(self._context.find_earlier, self.execution),
                )
        finally:
            self.streamed_text = ""
        return JobOutcome(job.key, replied)

    def _take_streamed_text(self, text: str) -> None:
        self.streamed_text = text[-STREAM_CHARS:]
        now = anyio.current_time()
        if now - self._notified_at >= STREAM_NOTIFY_S:
            self._notified_at = now
            self._context.on_stream(self)

    async def _commit_waiting(self) -> list[Job]:
        """Commit until nothing is waiting. Returns the jobs to perform."""
        try:
            while True:
                facts, self._waiting = self._waiting, []
                jobs = await self._advance(facts)
                if not self._waiting:
                    return jobs
                for job in jobs:
                    self._context.tasks.start_soon(self._work, job)
        finally:
            self._is_committing = False
            self._context.on_commit(self)

    async def _advance(self, facts: list[JobOutcome | Command]) -> list[Job]:
        """Commit the facts and what follows from them in one transaction. Returns the jobs that it announced."""
        try:
            if self._doubt is not None:
                facts = await self._settle_doubt(self._doubt, facts)
            if self.is_foreign:
                self._give_up_outcomes(facts)
            if self._is_stale:
                await self._catch_up()
            if not (facts or self.execution.version):
                return []
            found = LookedUp(self._context.transactions.approval)
            for _ in range(MAX_RETRIES):
                jobs = await self._attempt(facts, found)
                if jobs is not None:
                    self.failure = None
                    return jobs
            raise StoreError(f"execution {self.execution.execution_id!r} is too contended; try again")
        except LogUnreadable as error:
            await self._leave(facts, error)
            return []
        except StoreError as error:
            self._handle_store_error(facts, error)
            return []
        except Exception:
            text = f"execution {self.execution.execution_id!r} stopped on an internal error; see the server's log"
            self._refuse(facts, PlanwardenError(text))
            raise

    async def _attempt(self, facts: list[JobOutcome | Command], found: LookedUp) -> list[Job] | None:
        """The announced jobs; None when another writer changed the state first and the attempt must be repeated."""
        arrived = {fact.key for fact in facts if isinstance(fact, JobOutcome)}
        follows = self._context.follows(self.execution)
        # Every turn adds values, each no larger than the arguments that it goes into, so the loop ends.
        while (transaction := self._build_transaction(facts, arrived, found, follows=follows)).missing is not None:
            await self._look_up(transaction, transaction.missing, found)
        is_over = not follows and not transaction.jobs and not self._inflight.keys() - arrived
        append = None
        try:
            if transaction.recorded:
                append = self._build_append(transaction, follows=follows, is_over=is_over)
                confirmed_at = self._context.store.clock.steady()
                self.lease = await self._context.store.append(append)
                self._confirmed_at = confirmed_at
            elif is_over or (transaction.jobs and self.lease is None):
                await self._own_without_append(is_over=is_over)
        except CommitUnknown:
            if append is not None:
                self._doubt = _Doubt(append, transaction, arrived)
            raise
        except (UsageError, StartRefused, LeaseLost, VersionConflict, GuardFailed) as refusal:
            return await self._attend_to(refusal, facts, transaction, found, follows=follows)
        if transaction.commands:
            await _follow_commands(transaction)
        for key in arrived:
            del self._inflight[key]
        self._apply_commit(transaction)
        if self._is_owner_unproven and follows and self.execution.status == "running":
            await self._take_if_owner_is_gone()
        return transaction.jobs

    async def _own_without_append(self, *, is_over: bool) -> None:
        """Give the execution up, or own it before repeating a call that needs no new event."""
        if not is_over:
            await self._claim()
        elif self.lease is not None:
            lease, self.lease = self.lease, None
            await self._context.store.release(lease)

    async def _attend_to(
        self,
        refusal: UsageError | StartRefused | LeaseLost | VersionConflict | GuardFailed,
        facts: list[JobOutcome | Command],
        transaction: Transaction,
        found: LookedUp,
        *,
        follows: bool,
    ) -> list[Job] | None:
        """What the attempt comes to that the store refused, as `_attempt` returns it."""
        if isinstance(refusal, VersionConflict | GuardFailed):
            self._learn(refusal, found)
            # Another writer was first, or a deadline passed: judge again on what the log says now.
            await self._catch_up()
            return None
        if isinstance(refusal, LeaseLost):
            if transaction.recorded and self._may_acquire(follows=follows) and await self._takes_from_dead():
                return None
            await self._lose_lease(facts)
            return None if facts else []
        outcomes = [fact for fact in facts if isinstance(fact, JobOutcome)]
        if outcomes and isinstance(refusal, NotStorable):
            if len(outcomes) == len(facts):
                raise refusal
            # What became of calls is recorded without the command that came at the same moment.
            self._refuse(facts, refusal)
            facts[:] = outcomes
            return None
        # The store knows a rule that the state does not show, such as one unfinished execution per thread.
        self._refuse(facts, refusal)
        return []

    def _learn(self, refusal: VersionConflict | GuardFailed, found: LookedUp) -> None:
        """Remember what the store refused, so that the next attempt wants something else."""
        if isinstance(refusal, GrantUsedUp):
            self._context.on_grant_refused(refusal.grant_id)
        elif isinstance(refusal, BudgetSpent):
            found.spent = {**found.spent, refusal.budget: refusal}
        elif isinstance(refusal, DuplicateEffect):
            found.approval = replace(found.approval, once={**found.approval.once, refusal.key: refusal})

    def _build_transaction(
        self, facts: list[JobOutcome | Command], arrived: set[str], found: LookedUp, *, follows: bool
    ) -> Transaction:
        transaction = Transaction(
            self._context.transactions,
            self.execution,
            found,
            now=self._context.store.clock.now(),
            inflight=self._inflight.keys() - arrived if len(self._inflight) > len(arrived) else (),
            follow=follows and not (self.is_foreign or self._context.is_closing()),
            is_owner_gone=self._is_owner_gone,
        )
        transaction.build(facts)
        return transaction

    async def _look_up(self, transaction: Transaction, missing: Needed, found: LookedUp) -> None:
        """Read into `found` what the transaction needs."""
        approval = found.approval
        match missing:
            case PartsNeeded(wanted=wanted):
                new = {artifact.artifact_id: artifact for artifact in transaction.artifacts}
                parts = await read_wanted(self._context.store, self.execution.thread_id, wanted, new)
                found.approval = replace(approval, parts={**(approval.parts or {}), **parts})
            case OnceNeeded(wanted=wanted):
                held = {key.key: key.as_refusal() for key in await self._context.store.find_once(wanted)}
                found.approval = replace(approval, once={**approval.once, **dict.fromkeys(wanted), **held})
            case PathsNeeded(wanted=wanted):
                # Few homes have rules on paths.
                from planwarden.agent.runtime.real_paths import find_real_paths

                paths = await find_real_paths(wanted)
                found.approval = replace(approval, paths={**(approval.paths or {}), **paths})
            case ParsingNeeded():
                await self._context.parse_large(missing)
            case EarlierNeeded(wanted=wanted):
                found.earlier = {**found.earlier, **await self._context.find_earlier(self.execution, wanted)}

    def _apply_commit(self, transaction: Transaction) -> None:
        """Take over the committed state, announce the jobs, and settle the commands."""
        self.execution = transaction.execution
        if self._context.observer is not None and transaction.recorded:
            self._context.observer.committed(self.execution, transaction.recorded, owned=not self.is_foreign)
        for job in transaction.jobs:
            self._inflight[job.key] = anyio.CancelScope()
        if self.execution.cancel_requested:
            for scope in self._inflight.values():
                scope.cancel()
        for command in transaction.commands:
            command.settle()

    def _build_append(self, transaction: Transaction, *, follows: bool, is_over: bool) -> Append:
        """With `is_over` this process gives the execution up, because others must continue it."""
        status, outbox = transaction.execution.status, self._context.outbox
        return Append(
            execution=transaction.execution,
            recorded=transaction.recorded,
            expected_version=self.execution.version,
            lease=self.lease,
            acquire=self._may_acquire(follows=follows),
            release=(status != "running" or (is_over and self.lease is not None)) and not self.is_foreign,
            owner=self._context.owner,
            guards=transaction.guards,
            start=transaction.start,
            policy=self._context.policy,
            artifacts=transaction.artifacts,
            notifications=() if outbox is None else outbox.notifications(transaction.recorded, transaction.execution),
        )

    async def _settle_doubt(self, doubt: _Doubt, facts: list[JobOutcome | Command]) -> list[JobOutcome | Command]:
        """Look whether the transaction was stored. If so, go on from it as after any commit: nobody else will, and its
        calls were certainly not sent. Returns the facts that are not stored yet."""
        append, store = doubt.append, self._context.store
        tail = await store.read(self.execution.execution_id, self.execution.version)
        header = await store.header(self.execution.execution_id)
        self._doubt = None
        if tail[: len(append.recorded)] != tuple(append.recorded):
            return facts
        self._is_stale = len(tail) > len(append.recorded)
        facts = [fact for fact in facts if not (isinstance(fact, JobOutcome) and fact.key in doubt.arrived)]
        for key in doubt.arrived:
            del self._inflight[key]
        if append.acquire or append.lease is not None:
            if not append.release and (header is None or header.owner != self._context.owner):
                self.disown()
                self._is_stale = True
                return facts
            self.lease = None
            if header is not None and not append.release:
                self.lease = Lease(header.execution_id, self._context.owner, header.fence)
        self._apply_commit(doubt.transaction)
        for job in doubt.transaction.jobs:
            self._context.tasks.start_soon(self._work, job)
        return facts

    def _may_acquire(self, *, follows: bool) -> bool:
        return self.lease is None and not self.is_foreign and follows

    async def _claim(self) -> None:
        """Own the execution before repeating a call that needs no new event."""
        if not await self._takes_from_dead():
            raise LeaseLost(f"execution {self.execution.execution_id!r} is owned by another process")

    async def _takes_from_dead(self) -> bool:
        """Take what nobody owns, or a process that is gone: a claim finds that out, an append does not.

        What a silent process holds is left to those who watch it.
        """
        store, confirmed_at = self._context.store, self._context.store.clock.steady()
        self.lease = await store.claim(self.execution.execution_id, self._context.owner, silent_s=math.inf)
        self._confirmed_at = confirmed_at
        return self.lease is not None

    async def _take_if_owner_is_gone(self) -> None:
        """Go on here after all, if the process that seemed to own the execution does not."""
        self._is_owner_unproven = False
        try:
            if await self._takes_from_dead():
                self.is_foreign = False
                self.refresh()
        except StoreError as error:
            # What the commands wanted is stored already; others look for what nobody owns.
            logger.warning("execution %s is left to other processes: %s", self.execution.execution_id, error.message)

    async def _catch_up(self) -> None:
        self._is_stale = False
        try:
            tail = await self._context.store.read(self.execution.execution_id, self.execution.version)
        except StoreError:
            self._is_stale = True
            raise
        self.execution = fold(self.execution, tail)
        if tail and self.is_foreign and not self._inflight:
            # Its owner may have given it up with what it committed. What nobody owns must continue here, or a command
            # that sets it going is recorded and nobody follows it.
            self.is_foreign, self._is_owner_gone, self._is_owner_unproven = False, True, False
        if self._context.observer is not None and self.lease is not None:
            now = self._context.store.clock.now()
            for entry in tail:
                if isinstance(entry.event, ev.SuspensionDecided):
                    self._context.observer.woke(self.execution, max(0.0, now - entry.at))

    async def _lose_lease(self, facts: list[JobOutcome | Command]) -> None:
        """Leave the work to the process that owns the execution, and keep only commands among the facts."""
        self.disown()
        self._give_up_outcomes(facts)
        await self._catch_up()

    def disown(self, keep: str | None = None) -> None:
        """Another process owns the execution: stop what is in flight here, except the job `keep`."""
        if self.lease is not None:
            logger.warning("execution %s was taken over by another process", self.execution.execution_id)
        self.lease = None
        self.is_foreign = True
        for key, scope in self._inflight.items():
            if key != keep:
                scope.cancel()
        self._context.on_commit(self)

    async def confirm_lease(self, key: str) -> None:
        """Returns when this process certainly owns the execution, asking the store if it is some time since it did.

        Raises:
            LeaseLost: it does not, so the job `key` must not act.
        """
        clock = self._context.store.clock
        if self.lease is not None and clock.steady() - self._confirmed_at < CERTAIN_S:
            return
        confirmed_at = clock.steady()
        try:
            if self.lease is None:
                raise LeaseLost(f"execution {self.execution.execution_id!r} is no longer owned by this process")
            await self._context.store.confirm(self.lease)
        except LeaseLost:
            self.disown(keep=key)
            raise
        self._confirmed_at = confirmed_at

    def _give_up_outcomes(self, facts: list[JobOutcome | Command]) -> None:
        """Turn outcomes into reports: the new owner settles the calls, and only commands are recorded here."""
        for index, fact in enumerate(facts):
            if isinstance(fact, JobOutcome):
                del self._inflight[fact.key]
                facts[index] = self._build_report(fact)

    def _build_report(self, outcome: JobOutcome) -> Command:
        return Command(commands.report_late(self._context.transactions.approval, outcome))

    def _handle_store_error(self, facts: list[JobOutcome | Command], error: StoreError) -> None:
        """Refuse the commands; keep the outcomes and bring them again, because nobody else knows them.

        An owned execution is tried again even without an outcome, because nobody else will continue it; so is one that
        this process may own since a commit that has no answer.
        """
        logger.error("execution %s: %s", self.execution.execution_id, error.message)
        self._refuse(facts, error)
        self._unstored.extend(fact for fact in facts if isinstance(fact, JobOutcome))
        if not (self._unstored or self._doubt or self.lease is not None):
            return
        if self.failure is None:
            self.failing_since = anyio.current_time()
        self.failure = error
        if not self._is_retrying:
            self._is_retrying = True
            self._context.tasks.start_soon(self._retry)

    async def _leave(self, facts: list[JobOutcome | Command], error: LogUnreadable) -> None:
        """Give the execution to a process that can read it, once the calls that run here are over.

        Their outcomes cannot be recorded. The new owner asks about effects, so none may still be on its way then.
        """
        logger.error("execution %s: %s", self.execution.execution_id, error.message)
        self._refuse(facts, error)
        for fact in facts:
            if isinstance(fact, JobOutcome):
                del self._inflight[fact.key]
        if not self._inflight:
            await self._abandon()

    def _refuse(self, facts: list[JobOutcome | Command], error: PlanwardenError) -> None:
        for fact in facts:
            if isinstance(fact, Command):
                fact.error = error
                fact.settle()

    async def _abandon(self) -> None:
        """Give the execution up, so that the process that takes it over, perhaps this one, starts from its log."""
        lease, self.lease, self.is_foreign = self.lease, None, True
        for scope in self._inflight.values():
            scope.cancel()
        left, self._waiting = self._waiting, []
        self._refuse(left, PlanwardenError(f"execution {self.execution.execution_id!r} stopped on an internal error"))
        self._context.on_commit(self)
        if lease is not None:
            with suppress(StoreError):
                await self._context.store.release(lease)

    async def _retry(self) -> None:
        await anyio.sleep(RETRY_S)
        self._is_retrying = False
        self._waiting.extend(self._unstored)
        self._unstored.clear()
        self.submit(None)


async def _follow_commands(transaction: Transaction) -> None:
    """What the committed commands bring about besides, before anything that they released is performed."""
    for command in transaction.commands:
        if command.then is not None and command.error is None:
            await command.then()


async def settle(run: Run, command: Command) -> None:
    """Submit a command and wait until it is committed or refused. Cancelling the wait does not undo the command."""
    command.done = asyncio.get_running_loop().create_future()
    run.submit(command)
    await command.done
    if command.error is not None:
        raise command.error
