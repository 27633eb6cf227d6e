"""Work that no caller asks for: deadlines, alarms, leases, abandoned executions, and commits of other processes."""

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
"""The most rows of one kind that one turn takes care of."""
RECHECK_PAUSE_S = 0.01
"""Seconds to sleep after a check for commits of other processes, so that the next check covers several."""
CLAIMED_AT_ONCE = 16
"""The most executions to claim in one go, leaving some to others; after so many, the next claim follows at once."""
AT_ONCE = 16
"""The most due questions that are handled at the same time, so that their commits share one wait for the disk."""


@dataclass(eq=False)
class Scheduler:
    """Takes a turn every `TICK_S` seconds."""

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
    _turn: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    """Held during a turn, so that no other turn acts on what this one has found."""
    _changes: int = field(default=0, init=False)
    _due: frozenset[str] = field(default=frozenset(), init=False)
    """The questions that the last turn found due."""
    _renewed_at: float = field(default=-math.inf, init=False)
    """When leases were last renewed, in seconds of the steady clock."""
    _look_at: float = field(default=-math.inf, init=False)
    """When to start the next look at the leases of others, in seconds of the steady clock."""
    _looked_at: float = field(default=-math.inf, init=False)
    """When the current look began, in seconds of the steady clock."""
    _late: list[str] = field(default_factory=list[str], init=False)
    """Ids of the executions with late leases that the current look has found so far; a look may take several turns."""

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            has_more = False
            try:
                has_more = await self.tick()
            except StoreReplaced:
                # Nothing that this process does counts from now on; the engine ends.
                raise
            except StoreError as error:
                logger.error("%s", error.message)
            # The scheduler must outlive one bad row; the next turn tries it again.
            except Exception:
                logger.exception("the scheduler's turn failed; the next turn tries again")
            await self._rest(0 if has_more else TICK_S)

    async def _rest(self, rest_s: float) -> None:
        """Wait `rest_s` seconds for the next turn; check for commits of other processes when the store reports one."""
        until = anyio.current_time() + rest_s
        while (left_s := until - anyio.current_time()) > 0:
            try:
                await self.store.wait_for_changes(self._changes, left_s)
                if anyio.current_time() < until:
                    async with self._turn:
                        if await self._check_other_processes() and self.adopts:
                            while await self._adopt():
                                pass
                    await anyio.sleep(RECHECK_PAUSE_S)
            except StoreError as error:
                logger.error("%s", error.message)
                await anyio.sleep(left_s)

    async def tick(self) -> bool:
        """Wait for the current turn to end, then take another.

        Return True when more is due than this turn took care of, so that the next turn must not wait.
        """
        async with self._turn:
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
            if self.adopts and now >= self._look_at:
                await self._take_over_orphans()
            elif not self.adopts and is_time_to_renew:
                # `take_over` leaves alone those that have a living owner.
                running = [name for name, state in self.cache.idle.items() if state.status == "running"]
                await _for_each(self.adoption.take_over, running)
            before, self._due = self._due, frozenset(row.suspension_id for row in due)
            # A question that the last turn found due too could not be handled: try it again at the usual pace.
            return has_more or (len(due) == MAX_ROWS and self._due.isdisjoint(before))

    async def _adopt(self) -> bool:
        """Take over executions that no process owns. Return True when there may be more of them."""
        limit = min(CLAIMED_AT_ONCE, self.adoption.count_claimable())
        if limit <= 0:
            return False
        leases = await self.store.claim_many(self.owner, limit, skip=self.adoption.list_skipped())
        await _for_each(self.adoption.adopt, leases)
        return len(leases) == CLAIMED_AT_ONCE

    async def _take_over_orphans(self) -> None:
        """Watch late leases, and continue executions without a valid lease, at most `MAX_ROWS` in each turn.

        Each turn goes on after the last row of the turn before, so rows that cannot be continued do not hide others.
        """
        if not self._late:
            self._looked_at = self.store.clock.steady()
        late = await self.store.orphans(MAX_ROWS, ahead_s=LATE_S, after=self._late[-1] if self._late else "")
        self._late += late
        await _for_each(self.adoption.look_at, late)
        if len(late) < MAX_ROWS:
            self._look_at = self.adoption.next_look(frozenset(self._late), self._looked_at)
            self._late = []

    async def _find_due(self) -> Sequence[SuspensionRow]:
        """Return the due rows: none under an outdated policy; without `adopts`, only expired questions of `cache`."""
        if self.adoption.is_outdated:
            # Silence may count as approval only under the policy under which the question was asked.
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
        """Wake the watchers of executions that run elsewhere; make those that run here read what others appended.

        Return True when an execution may be running without an owner.
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
        # Make one query for all executions: each execution acts on a new answer only after its query returns.
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


async def _for_each(care: Callable[[Row], Awaitable[None]], rows: Sequence[Row], *, at_once: int = 1) -> None:
    """Take care of every row, in order, `at_once` at a time.

    A `PlanwardenError` with one row does not stop the others; the next turn tries that row again.
    """
    remaining = iter(rows)

    async def work() -> None:
        for row in remaining:
            try:
                await care(row)
            except PlanwardenError as error:
                logger.error("%s", error.message)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, len(rows))):
            tasks.start_soon(work)
