"""One process working on one execution: load, decide, append, perform.

A `Run` takes facts (results, replies, answers), folds them, lets `decide` and the dispatcher say what follows, commits
all of it in one transaction, and only then performs the announced jobs. So the result of call k and the intent
of call k+1 share a transaction. The task that brings a fact also performs what follows: a linear plan needs one task.

A cancelled tool may keep running: a plain function on a thread is abandoned, not killed.
"""

import logging
import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.common.errors import (
    BudgetExceeded,
    CommitUnknown,
    GrantUsedUp,
    GuardFailed,
    LeaseLost,
    LogUnreadable,
    Needed,
    NotStorable,
    PlanwardenError,
    StartRefused,
    StoreError,
    UsageError,
    VersionConflict,
)
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import fold
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.budgets_and_keys import KeyHeld
from planwarden.agent.ports.store import Append, Header, Lease, Store
from planwarden.agent.ports.watchers import NotificationSource, Observer
from planwarden.agent.runtime import commands
from planwarden.agent.runtime.dispatch import CallJob
from planwarden.agent.runtime.lookups import LookedUp, LookupReader
from planwarden.agent.runtime.ownership import Ownership
from planwarden.agent.runtime.perform import Performer
from planwarden.agent.runtime.transaction_builder import (
    Command,
    EventBatch,
    Job,
    JobOutcome,
    ListingJob,
    PromptJob,
    Transaction,
)

logger = logging.getLogger(__name__)

MAX_RETRIES = 20
RETRY_S = 1.0
STREAM_NOTIFY_S = 0.5
"""The shortest time between two notifications to watchers while a model writes an answer."""
STREAM_CHARS = 2_000

running: ContextVar[tuple[str, str] | None] = ContextVar("running", default=None)
"""Execution id and thread id of the run that the current task belongs to, for log lines."""


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """What every run of one engine shares."""

    store: Store
    performer: Performer
    lookups: LookupReader
    tasks: TaskGroup
    owner: str
    outbox: NotificationSource | None
    """None when nobody is notified."""
    observer: Observer | None
    """None when nothing observes the engine."""
    on_commit: Callable[["Run"], None]
    """Called after every commit, and when the run has nothing more to do."""
    is_closing: Callable[[], bool]
    may_run: Callable[[ExecutionState], bool]
    """Returns False when this process only records commands for the execution, and others continue it."""
    on_stream: Callable[["Run"], None]
    """Called when a model has written more of the final answer."""
    skip: Callable[[str], None]
    """Called with the id of an execution that must not run here for now, because an internal error stopped it."""


class _InDoubt(msgspec.Struct, frozen=True):
    """A transaction whose commit got no answer."""

    append: Append
    transaction: Transaction
    arrived: set[str]
    """Keys of the jobs whose outcomes the transaction records."""


class Run:
    """Exists while this process works on the execution. Everything that must outlive the run is in the log."""

    def __init__(
        self, context: RunContext, execution: ExecutionState, lease: Lease | None = None, *, seems_foreign: bool = False
    ) -> None:
        """With `seems_foreign`, another process owned the execution a moment ago: commands are recorded at once, and
        only then does the run find out whether that process is gone."""
        self._context = context
        self.execution = execution
        """The state as committed."""
        self._ownership = Ownership(lease, seems_foreign=seems_foreign)
        self._waiting: list[JobOutcome | Command] = []
        self._is_committing = False
        self._inflight: dict[str, anyio.CancelScope] = {}
        """Scopes of jobs by their keys, from the announcement of a job until its outcome is stored or given up."""
        self._unstored: list[JobOutcome] = []
        """Outcomes that could not be stored; `_retry` submits them again."""
        self._is_retrying = False
        self.failure: StoreError | None = None
        """Why nothing can be stored now."""
        self.failing_since = 0.0
        """Seconds of the event loop's clock."""
        self._in_doubt: _InDoubt | None = None
        self._is_stale = False
        self._may_run = False
        """Whether this process, rather than others, decides and performs what follows from the facts."""
        self.streamed_text = ""
        """The end of the final answer while a model writes it: progress, never recorded."""
        self._notified_at = -math.inf

    @property
    def lease(self) -> Lease | None:
        """The lease that this process believes it holds, or None."""
        return self._ownership.lease

    @property
    def is_foreign(self) -> bool:
        """Whether another process owns the execution, or seems to, so that this run can record only commands."""
        return self._ownership.is_elsewhere

    @property
    def is_busy(self) -> bool:
        """Whether something is running or waiting to be recorded here."""
        return bool(self._is_committing or self._waiting or self._inflight or self._in_doubt)

    def submit(self, fact: JobOutcome | Command | None) -> None:
        """Submit a fact, or None to decide again. Return at once; a command is settled later."""
        if fact is not None:
            self._waiting.append(fact)
        if not self._is_committing:
            self._is_committing = True
            self._context.tasks.start_soon(self._perform_and_commit, None)

    def refresh(self) -> None:
        """Read what another process appended, and continue from there."""
        self._is_stale = True
        # Submit a command: while a commit is under way, submitting None changes nothing.
        self.submit(Command(lambda execution, now, lookups: EventBatch()))

    async def _perform_and_commit(self, job: Job | None) -> None:
        """Perform the job, if any; record what waits; perform what follows. This is the outermost loop of a task."""
        running.set((self.execution.execution_id, self.execution.thread_id))
        try:
            while job is not None or self._is_committing:
                if job is not None:
                    outcome = await self._perform(job)
                    if self.is_foreign:
                        self._end_jobs(job.key)
                        self.submit(self._build_report(outcome))
                        return
                    self._waiting.append(outcome)
                    if self._is_committing:
                        return
                    self._is_committing = True
                jobs = await self._commit_waiting()
                for other in jobs[1:]:
                    self._context.tasks.start_soon(self._perform_and_commit, other)
                job = jobs[0] if jobs else None
                if job is None:
                    return
        # A fault in one execution must not take the others down with it; its log stays as committed.
        except Exception:
            logger.exception("execution %s stopped on an internal error", self.execution.execution_id)
            self._context.skip(self.execution.execution_id)
            await self._give_up()

    async def _perform(self, job: Job) -> JobOutcome:
        """Perform the job in its scope, so that cancelling the scope ends the job. Return what to record."""
        observer, scope = self._context.observer, self._inflight[job.key]
        if isinstance(job, ListingJob):
            with scope:
                await self._context.lookups.context.approval.tools.wait_for_tools(job.tools)
            return JobOutcome(job.key, ())
        prompt = None if isinstance(job, CallJob) else job.prompt
        with nullcontext() if observer is None else observer.performing(self.execution, job.key, prompt) as report:
            if isinstance(job, CallJob):
                confirm = partial(self.confirm_lease, job.key)
                outcome = await self._context.performer.call(self.execution, job, scope, confirm)
            else:
                outcome = JobOutcome(job.key, ())
                with scope:
                    outcome = JobOutcome(job.key, await self._prompt_model(job))
            if report is not None:
                report(outcome.events)
            return outcome

    async def _prompt_model(self, job: PromptJob) -> tuple[ev.Event, ...]:
        try:
            return await self._context.performer.prompt(self.execution, job.prompt, self._take_streamed_text)
        finally:
            self.streamed_text = ""

    def _take_streamed_text(self, text: str) -> None:
        self.streamed_text = text[-STREAM_CHARS:]
        now = anyio.current_time()
        if now - self._notified_at >= STREAM_NOTIFY_S:
            self._notified_at = now
            self._context.on_stream(self)

    async def _commit_waiting(self) -> list[Job]:
        """Commit until nothing is waiting. Start the jobs of all commits but the last, and return those of the last."""
        try:
            while True:
                facts, self._waiting = self._waiting, []
                jobs = await self._commit(facts)
                if not self._waiting:
                    return jobs
                for job in jobs:
                    self._context.tasks.start_soon(self._perform_and_commit, job)
        finally:
            self._is_committing = False
            self._context.on_commit(self)

    async def _commit(self, facts: list[JobOutcome | Command]) -> list[Job]:
        """Commit the facts and what follows from them in one transaction. Return the jobs that it announced."""
        try:
            if self._in_doubt is not None:
                facts = await self._settle_in_doubt(self._in_doubt, facts)
            if self.is_foreign:
                self._turn_into_reports(facts)
            if self._is_stale:
                await self._catch_up()
            if not (facts or self.execution.version):
                return []
            lookups = LookedUp(self._context.lookups.context)
            for _ in range(MAX_RETRIES):
                jobs = await self._try_to_commit(facts, lookups)
                if jobs is not None:
                    self.failure = None
                    return jobs
            raise StoreError(await self._context.lookups.explain_conflict(self.execution))
        except LogUnreadable as error:
            await self._hand_over(facts, error)
            return []
        except StoreError as error:
            self._handle_store_error(facts, error)
            return []
        except Exception:
            text = f"execution {self.execution.execution_id!r} stopped on an internal error; see the server's log"
            self._refuse_commands(facts, PlanwardenError(text))
            raise

    async def _try_to_commit(self, facts: list[JobOutcome | Command], lookups: LookedUp) -> list[Job] | None:
        """Return the announced jobs; None when another writer was first and the attempt must be repeated."""
        arrived = {fact.key for fact in facts if isinstance(fact, JobOutcome)}
        self._may_run = self._context.may_run(self.execution)
        transaction = await self._build_transaction(facts, arrived, lookups)
        gives_up = not self._may_run and not transaction.jobs and not self._inflight.keys() - arrived
        try:
            if transaction.recorded:
                await self._append(transaction, arrived, gives_up=gives_up)
            elif gives_up and (lease := self.lease) is not None:
                self._ownership.apply("released")
                await self._context.store.release(lease)
            elif transaction.jobs and self.lease is None and not await self._claim_from_dead():
                # Every call needs the lease. Appends take it, but a call can be repeated without an append.
                raise LeaseLost(f"execution {self.execution.execution_id!r} is owned by another process")
        except (UsageError, StartRefused, LeaseLost, VersionConflict, GuardFailed) as refusal:
            return await self._handle_refusal(refusal, facts, transaction, lookups)
        for command in transaction.commands:
            # Await `then` before any job that the command released.
            if command.then is not None and command.error is None:
                await command.then()
        self._end_jobs(*arrived)
        self._accept_commit(transaction)
        if self._ownership.state == "unproven" and self._may_run and self.execution.status == "running":
            await self._claim_if_owner_is_gone()
        return transaction.jobs

    async def _append(self, transaction: Transaction, arrived: set[str], *, gives_up: bool) -> None:
        """Store the transaction; with `gives_up`, also give the execution up, because others must continue it."""
        status, outbox = transaction.execution.status, self._context.outbox
        append = Append(
            execution=transaction.execution,
            recorded=transaction.recorded,
            expected_version=self.execution.version,
            lease=self.lease,
            acquire=self._acquires,
            release=(status != "running" or (gives_up and self.lease is not None)) and not self.is_foreign,
            owner=self._context.owner,
            guards=transaction.guards,
            start=transaction.start,
            policy=self._context.lookups.context.approval.policy.policy_digest,
            artifacts=transaction.artifacts,
            notifications=() if outbox is None else outbox.notifications(transaction.recorded, transaction.execution),
        )
        confirmed_at = self._context.store.clock.steady()
        try:
            lease = await self._context.store.append(append)
        except CommitUnknown:
            if self.is_foreign and not (append.acquire or append.lease is not None):
                # The transaction held only commands, and the log says whether they were stored.
                self._is_stale = True
            else:
                self._in_doubt = _InDoubt(append, transaction, arrived)
                if not self.is_foreign:
                    self._ownership.apply("commit_unknown")
            raise
        if not self.is_foreign:
            self._ownership.settle(lease, confirmed_at)

    def _end_jobs(self, *keys: str) -> None:
        for key in keys:
            del self._inflight[key]
        if self._ownership.state == "lost" and not self._inflight:
            self._ownership.apply("jobs_ended")

    async def _handle_refusal(
        self,
        refusal: UsageError | StartRefused | LeaseLost | VersionConflict | GuardFailed,
        facts: list[JobOutcome | Command],
        transaction: Transaction,
        lookups: LookedUp,
    ) -> list[Job] | None:
        """Handle a commit that the store refused. Return as `_try_to_commit` does: jobs, or None to try again."""
        if isinstance(refusal, VersionConflict | GuardFailed):
            self._remember_refusal(refusal, lookups)
            # Another writer was first, or a deadline passed: judge again on what the log says now.
            await self._catch_up()
            return None
        if isinstance(refusal, LeaseLost):
            if transaction.recorded and self._acquires and await self._claim_from_dead():
                return None
            # Leave the work to the process that owns the execution; outcomes among the facts become reports.
            self.lose_ownership()
            self._turn_into_reports(facts)
            await self._catch_up()
            return None if facts else []
        outcomes = [fact for fact in facts if isinstance(fact, JobOutcome)]
        if outcomes and isinstance(refusal, NotStorable):
            if len(outcomes) == len(facts):
                raise refusal
            # Record the outcomes of calls without the commands that arrived with them.
            self._refuse_commands(facts, refusal)
            facts[:] = outcomes
            return None
        # The store enforces rules that the state does not show: a thread has at most one unfinished execution.
        self._refuse_commands(facts, refusal)
        return []

    def _remember_refusal(self, refusal: VersionConflict | GuardFailed, lookups: LookedUp) -> None:
        """Remember what the store refused, so that the next attempt does not ask for it again."""
        if isinstance(refusal, GrantUsedUp):
            approval = self._context.lookups.context.approval
            approval.grants.refuse(refusal.grant_id, approval.clock.now())
        elif isinstance(refusal, BudgetExceeded):
            lookups.spent = {**lookups.spent, refusal.budget: refusal}
        elif isinstance(refusal, KeyHeld):
            # Do not look the key up again: by this process's clock, it may be free.
            holders = {**lookups.approval.holders, refusal.held_key.key: refusal.held_key}
            lookups.approval = replace(lookups.approval, holders=holders)

    async def _build_transaction(
        self, facts: list[JobOutcome | Command], arrived: set[str], lookups: LookedUp
    ) -> Transaction:
        """Build a transaction; whenever it lacks something, read that and build it again."""
        # The loop ends: each pass reads something that the transaction lacked, and it can lack only so much.
        while True:
            inflight = self._inflight.keys() - arrived if len(self._inflight) > len(arrived) else ()
            follow = self._may_run and self._ownership.rights.starts_jobs and not self._context.is_closing()
            is_gone, now = self._ownership.is_predecessor_gone, self._context.store.clock.now()
            transaction = Transaction(self.execution, lookups, now, inflight, follow, is_gone)
            try:
                transaction.build(facts)
                return transaction
            except Needed as needed:
                await self._context.lookups.read(needed, self.execution, lookups, transaction.artifacts)

    def _accept_commit(self, transaction: Transaction) -> None:
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

    async def _settle_in_doubt(self, commit: _InDoubt, facts: list[JobOutcome | Command]) -> list[JobOutcome | Command]:
        """Find out whether the transaction was stored. If so, start its jobs as after any commit: nobody else will, and
        none of its calls can have been made yet. Return the facts that are not stored yet."""
        append, store = commit.append, self._context.store
        tail = await store.read(self.execution.execution_id, self.execution.version)
        header = await store.header(self.execution.execution_id)
        self._in_doubt = None
        is_stored = tail[: len(append.recorded)] == tuple(append.recorded)
        if is_stored:
            self._is_stale = len(tail) > len(append.recorded)
            facts = [fact for fact in facts if not (isinstance(fact, JobOutcome) and fact.key in commit.arrived)]
            self._end_jobs(*commit.arrived)
        if self._ownership.state == "in_doubt":
            self._settle_ownership(append, header, is_stored=is_stored)
        if not is_stored or self.is_foreign:
            self._is_stale = self._is_stale or is_stored
            return facts
        self._accept_commit(commit.transaction)
        for job in commit.transaction.jobs:
            self._context.tasks.start_soon(self._perform_and_commit, job)
        return facts

    def _settle_ownership(self, append: Append, header: Header | None, *, is_stored: bool) -> None:
        """Work out who owns the execution after the append in doubt. `header` was read after the log."""
        if not is_stored:
            self._ownership.settle(append.lease)
        elif not (append.acquire or append.lease is not None) or append.release:
            self._ownership.settle(None)
        elif header is None or header.owner != self._context.owner:
            self.lose_ownership()
        else:
            self._ownership.settle(Lease(header.execution_id, self._context.owner, header.fence))

    @property
    def _acquires(self) -> bool:
        return self._may_run and self._ownership.rights.acquires

    async def _claim_from_dead(self) -> bool:
        """Claim the execution if nobody owns it or its owner is gone; return whether this process owns it now.

        Unlike an append, a claim finds out whether the owner is gone. If the owner is only silent, leave the execution
        to `Adoption`, which watches such processes.
        """
        store, confirmed_at = self._context.store, self._context.store.clock.steady()
        lease = await store.claim(self.execution.execution_id, self._context.owner, silent_s=math.inf)
        if lease is None:
            self._ownership.apply("denied")
        else:
            self._ownership.settle(lease, confirmed_at)
        return lease is not None

    async def _claim_if_owner_is_gone(self) -> None:
        """Continue the execution here if the process that seemed to own it is gone."""
        try:
            if await self._claim_from_dead():
                self.refresh()
        except StoreError as error:
            self._ownership.apply("denied")
            # The commands are stored already, and other processes look for executions that nobody owns.
            logger.warning("execution %s is left to other processes: %s", self.execution.execution_id, error.message)

    async def _catch_up(self) -> None:
        self._is_stale = False
        try:
            tail = await self._context.store.read(self.execution.execution_id, self.execution.version)
        except StoreError:
            self._is_stale = True
            raise
        self.execution = fold(self.execution, tail)
        if tail:
            self._ownership.apply("advanced")
        if self._context.observer is not None and self.lease is not None:
            now = self._context.store.clock.now()
            for entry in tail:
                if isinstance(entry.event, ev.SuspensionDecided):
                    self._context.observer.woke(self.execution, max(0.0, now - entry.at))

    def lose_ownership(self, keep: str | None = None) -> None:
        """Note that another process owns the execution; stop what is in flight here, except the job `keep`."""
        if self.lease is not None:
            logger.warning("execution %s was taken over by another process", self.execution.execution_id)
        self._cede(keep)
        self._context.on_commit(self)

    def _cede(self, keep: str | None = None) -> None:
        self._ownership.apply("ceded")
        if self._ownership.rights.cancels_jobs:
            for key, scope in self._inflight.items():
                if key != keep:
                    scope.cancel()
        self._end_jobs()

    async def confirm_lease(self, key: str) -> None:
        """Return once it is certain that this process owns the execution. If the last proof is too old, ask the store.

        Raises:
            LeaseLost: this process does not own it, so the job `key` must not act.
        """
        clock = self._context.store.clock
        if self._ownership.is_certain(clock.steady()):
            return
        confirmed_at = clock.steady()
        try:
            if self.lease is None:
                raise LeaseLost(f"execution {self.execution.execution_id!r} is no longer owned by this process")
            await self._context.store.confirm(self.lease)
        except LeaseLost:
            self.lose_ownership(keep=key)
            raise
        self._ownership.confirm(confirmed_at)

    def _turn_into_reports(self, facts: list[JobOutcome | Command]) -> None:
        """Turn outcomes into reports: the new owner settles the calls, and only commands are recorded here."""
        for index, fact in enumerate(facts):
            if isinstance(fact, JobOutcome):
                self._end_jobs(fact.key)
                facts[index] = self._build_report(fact)

    def _build_report(self, outcome: JobOutcome) -> Command:
        return Command(commands.report_late(self._context.lookups.context.approval, outcome))

    def _handle_store_error(self, facts: list[JobOutcome | Command], error: StoreError) -> None:
        """Refuse the commands; keep the outcomes for another attempt, because nobody else knows them.

        Even without an outcome, try again if this process owns the execution, or may own it through a commit that got
        no answer: nobody else will continue it.
        """
        logger.error("execution %s: %s", self.execution.execution_id, error.message)
        self._refuse_commands(facts, error)
        self._unstored.extend(fact for fact in facts if isinstance(fact, JobOutcome))
        if not (self._unstored or self._in_doubt or self._ownership.rights.tries_again):
            return
        if self.failure is None:
            self.failing_since = anyio.current_time()
        self.failure = error
        if not self._is_retrying:
            self._is_retrying = True
            self._context.tasks.start_soon(self._retry)

    async def _hand_over(self, facts: list[JobOutcome | Command], error: LogUnreadable) -> None:
        """Give the execution to a process that can read it, once the calls that run here are over.

        Their outcomes cannot be recorded. The new owner will ask what happened, so no call may still be running then.
        """
        logger.error("execution %s: %s", self.execution.execution_id, error.message)
        self._refuse_commands(facts, error)
        self._end_jobs(*(fact.key for fact in facts if isinstance(fact, JobOutcome)))
        if not self._inflight:
            await self._give_up()

    def _refuse_commands(self, facts: list[JobOutcome | Command], error: PlanwardenError) -> None:
        for fact in facts:
            if isinstance(fact, Command):
                fact.error = error
                fact.settle()

    async def _give_up(self) -> None:
        """Give the execution up, so that the process that takes it over, perhaps this one, starts from its log."""
        lease = self.lease
        self._cede()
        waiting, self._waiting = self._waiting, []
        self._refuse_commands(
            waiting, PlanwardenError(f"execution {self.execution.execution_id!r} stopped on an internal error")
        )
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
