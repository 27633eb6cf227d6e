"""Work in the background: deadlines, alarms, leases, abandoned executions, and commits of other processes."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from planwarden.agent.common.errors import PlanwardenError, StoreError, StoreReplaced
from planwarden.agent.ports.store import Store, SuspensionRow
from planwarden.agent.runtime.adoption import LATE_S, RENEW_S, Adoption
from planwarden.agent.runtime.execution_cache import ChangeNotifier, ExecutionCache

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

TICK_S = 0.5
MAX_ROWS = 100
"""The most rows of one kind that one tick handles."""
RECHECK_PAUSE_S = 0.01
"""Seconds to sleep after a check for commits of other processes, so that the next check covers several commits."""
CLAIMED_AT_ONCE = 16
"""The most executions to claim at once: other processes get some too. After a full claim, the next follows at once."""
AT_ONCE = 16
"""The most due questions that are handled at the same time: their commits then share one wait for the disk."""


@dataclass(eq=False)
class Scheduler:
    """Does the background work of one process, in a tick every `TICK_S` seconds."""

    store: Store
    owner: str
    cache: ExecutionCache
    notifier: ChangeNotifier
    adoption: Adoption
    adopts: bool
    """Whether the scheduler looks after all executions of the store; if not, only after those in `cache`."""
    refresh_grants: Callable[[], Awaitable[None]]
    wake: Callable[[SuspensionRow], Awaitable[None]]
    """Lets a question time out or its alarm fire."""
    _tick_lock: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    """Held during a tick, so that no two ticks handle the same rows."""
    _changes: int = field(default=0, init=False)
    """The number of the store's last change that this process has seen."""
    _due: frozenset[str] = field(default=frozenset(), init=False)
    """The questions that were due in the last tick."""
    _renewed_at: float = field(default=-math.inf, init=False)
    """When leases were last renewed, in seconds of the steady clock."""
    _next_search_at: float = field(default=-math.inf, init=False)
    """When the next search for late leases begins, in seconds of the steady clock."""
    _search_began_at: float = field(default=-math.inf, init=False)
    """When the current search for late leases began, in seconds of the steady clock."""
    _late: list[str] = field(default_factory=list[str], init=False)
    """Ids of the executions whose late leases the current search has found so far; a search may take several ticks."""

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            has_more = False
            try:
                has_more = await self.tick()
            except StoreReplaced:
                # The store would refuse everything from now on, so the engine ends.
                raise
            except StoreError as error:
                logger.error("%s", error.message)
            # The scheduler must outlive one bad row; the next tick tries that row again.
            except Exception:
                logger.exception("a tick of the scheduler failed; the next tick tries again")
            await self._rest(0 if has_more else TICK_S)

    async def _rest(self, rest_s: float) -> None:
        """Wait `rest_s` seconds; check for commits of other processes as soon as the store reports one."""
        until = anyio.current_time() + rest_s
        while (left_s := until - anyio.current_time()) > 0:
            try:
                await self.store.wait_for_changes(self._changes, left_s)
                if anyio.current_time() < until:
                    async with self._tick_lock:
                        if await self._check_other_processes() and self.adopts:
                            while await self._adopt():
                                pass
                    await anyio.sleep(RECHECK_PAUSE_S)
            except StoreError as error:
                logger.error("%s", error.message)
                await anyio.sleep(left_s)

    async def tick(self) -> bool:
        """Handle what is due, at most `MAX_ROWS` of a kind; wait first for a tick that is already running.

        Return True if more may be due, so that the next tick must follow at once.
        """
        async with self._tick_lock:
            await self._check_other_processes()
            now = self.store.clock.steady()
            is_time_to_renew = now - self._renewed_at >= RENEW_S
            if is_time_to_renew:
                self._renewed_at = now
                if self.cache.runs:
                    await self.store.renew(self.owner, list(self.cache.runs))
            due = await self._find_due()
            await _for_each(self.wake, due, at_once=AT_ONCE)
            if self.adopts:
                await self.store.expire_dead()
            has_more = self.adopts and await self._adopt()
            if self.adopts and now >= self._next_search_at:
                await self._take_over_orphans()
            elif not self.adopts and is_time_to_renew:
                # `take_over` leaves an execution alone if its owner is alive.
                running = [name for name, state in self.cache.idle.items() if state.status == "running"]
                await _for_each(self.adoption.take_over, running)
            before, self._due = self._due, frozenset(row.suspension_id for row in due)
            # A question that was due in the last tick too could not be handled: try it again at the usual pace.
            return has_more or (len(due) == MAX_ROWS and self._due.isdisjoint(before))

    async def _adopt(self) -> bool:
        """Take over executions that no process owns. Return True if more may be left."""
        limit = min(CLAIMED_AT_ONCE, self.adoption.count_claimable())
        if limit <= 0:
            return False
        leases = await self.store.claim_many(self.owner, limit, skip=self.adoption.list_skipped())
        await _for_each(self.adoption.adopt, leases)
        return len(leases) == CLAIMED_AT_ONCE

    async def _take_over_orphans(self) -> None:
        """Watch late leases, and continue executions whose lease has ended: at most `MAX_ROWS` in each tick.

        Each tick goes on after the last row of the tick before. So executions that cannot be continued hide no others.
        """
        if not self._late:
            self._search_began_at = self.store.clock.steady()
        late = await self.store.orphans(MAX_ROWS, ahead_s=LATE_S, after=self._late[-1] if self._late else "")
        self._late += late
        await _for_each(self.adoption.watch_lease, late)
        if len(late) < MAX_ROWS:
            self._next_search_at = self.adoption.plan_search(frozenset(self._late), self._search_began_at)
            self._late = []

    async def _find_due(self) -> Sequence[SuspensionRow]:
        """Return the rows of due questions: without `adopts`, only the expired questions of executions in `cache`."""
        if self.adoption.is_outdated:
            # A due question may be approved by silence, which this process cannot judge under an outdated policy.
            return ()
        if self.adopts:
            return await self.store.due(MAX_ROWS)
        now = self.store.clock.now()
        states = [*(run.execution for run in self.cache.runs.values()), *self.cache.idle.values()]
        questions = [suspension.question for state in states for suspension in state.open_suspensions]
        due = [
            question.suspension_id
            for question in questions
            if question.expires_at is not None and question.expires_at <= now
        ]
        rows = [await self.store.find_suspension(suspension_id) for suspension_id in dict.fromkeys(due)]
        return [row for row in rows if row is not None and row.status == "pending"]

    async def _check_other_processes(self) -> bool:
        """Wake the watchers of executions that run elsewhere, and make each run here read what others appended.

        Return True if there may be an unfinished execution without an owner.
        """
        changes = await self.store.changes(self._changes)
        if changes.number == self._changes:
            return False
        self._changes, changed = changes.number, changes.executions
        if changed is None:
            await self.refresh_grants()
        for execution_id in self.notifier.watched:
            if execution_id not in self.cache.runs and (changed is None or execution_id in changed):
                self.cache.drop_idle(execution_id)
                self.notifier.wake(execution_id)
        owned = [name for name, run in self.cache.runs.items() if run.lease is not None]
        if changed is not None:
            owned = [name for name in owned if name in changed]
        # One query for all executions takes less time: a run learns of a new answer only when its query returns.
        for header in await self.store.headers(owned) if owned else ():
            run = self.cache.runs.get(header.execution_id)
            if run is None or run.lease is None:
                continue
            if header.fence > run.lease.fence:
                run.lose_ownership()
            elif header.version > run.execution.version:
                run.refresh()
        self.notifier.notify(None)
        return changes.has_unowned


async def _for_each(handle: Callable[[Row], Awaitable[None]], rows: Sequence[Row], *, at_once: int = 1) -> None:
    """Handle every row, in order, `at_once` at a time.

    If handling one row raises a `PlanwardenError`, the others are still handled; the next tick tries that row again.
    """
    remaining = iter(rows)

    async def work() -> None:
        for row in remaining:
            try:
                await handle(row)
            except PlanwardenError as error:
                logger.error("%s", error.message)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, len(rows))):
            tasks.start_soon(work)
