"""Takes over executions whose process is gone or silent, unless another process must continue them (see `Peers`).

A silent process has not ended but does not respond. When it wakes up, it may still send a call, as a paused container
does. Therefore its executions are left to it for some time.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from planwarden.agent.common.errors import LogUnreadable, UndecidableHere
from planwarden.agent.core.control.decide import find_running_calls
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.verify import find_needed_tools
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import Header, Lease, Store
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime.execution_cache import ExecutionCache
from planwarden.agent.runtime.log_reader import fold_log, load_execution

logger = logging.getLogger(__name__)

SKIPPED_S = 30.0
"""Seconds for which a process skips an execution that it could not continue."""
MAX_SKIPPED = 1_000
"""The most executions to skip at a time; at this limit, the process claims no execution that it has not read."""
RENEW_S = 5.0
"""Seconds between renewals of a process's leases; also how long a silent owner must be late before it is replaced."""
SEARCH_S = 2.5
"""Seconds between searches for late leases: each late lease must be found at least `RENEW_S` before it ends."""
LATE_S = 8.0
"""A lease (of 15 s) is late when it has less time left than this: a process that responds renews sooner."""
SILENT_S = 60.0
"""Seconds for which a silent process keeps an execution with a running effect after the lease has ended."""
UNLIMITED_S = 600.0
"""The time limit, in seconds, to assume for a call that has no limit, when its owner is silent."""


class Peers(Protocol):
    """What this process knows about the other processes that share the store. It may be some seconds out of date."""

    @property
    def generation(self) -> int:
        """A number that grows with each change of what this object knows."""
        ...

    @property
    def is_outdated(self) -> bool:
        """Whether the process that started last has another policy than this one."""
        ...

    @property
    def are_tools_known(self) -> bool:
        """Whether this process knows the others' tools; if so, it leaves an execution to them when it lacks a tool."""
        ...

    async def look_for(self, context: str | None) -> None:
        """Learn about a process that has just started, if an execution's `context` may name it. Raises `StoreError`."""

    def are_current(self, names: Iterable[str], tools: Toolbox, context: str | None) -> bool:
        """Return False if another process must call one of the named tools: it has another definition than `tools`, or
        state that this process lacks. `context` is that of the execution."""
        ...


def has_needed_tools(execution: ExecutionState, tools: Toolbox) -> bool:
    """Return whether this process has each tool that the remaining steps name, or waits for the server of the tool."""
    return all(tools.get(name) is not None or tools.is_awaited(name) for name in find_needed_tools(execution))


def refuse_outdated(execution: ExecutionState, suspension_id: str) -> None:
    """Raise `UndecidableHere` if the suspension is a question to a person, since its answer depends on the policy."""
    suspension = execution.suspensions.get(suspension_id)
    if suspension is not None and suspension.question.addressee == "human":
        raise UndecidableHere(
            f"suspension {suspension_id!r} can only be rejected here: a process that started later runs under another "
            "policy; decide there, or restart this one with its planwarden.toml"
        )


StartRun = Callable[[ExecutionState, Lease, bool], None]
"""Continues the execution in this process; the flag says whether its state was read while the lease was held."""


@dataclass(eq=False)
class Adoption:
    """Takes over executions as long as the process runs fewer than `concurrency`.

    With `peers`, it leaves an execution to them if the remaining steps name a tool that this process lacks, or whose
    definition the process that started last has changed. If that process has another policy, nothing is taken over.
    """

    store: Store
    owner: str
    tools: Toolbox
    cache: ExecutionCache
    executes: bool
    """Whether this process takes over executions at all."""
    concurrency: int
    peers: Peers | None
    start: StartRun
    _left: set[str] = field(default_factory=set[str], init=False)
    """Ids of executions that this process has already left to others once."""
    _skipped: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """For each execution that cannot be read or continued here: until when to skip it, in steady seconds."""
    _skipped_with: tuple[Sequence[ToolDefinition], int] = field(default=((), 0), init=False)
    """This process's tools and the peers' generation when `_skipped` was filled; it is cleared when either changes."""
    _late: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]], init=False)
    """For each execution with a late lease: when the lease ends, and when it was first seen late, in steady seconds."""

    def _leaves_first(self, execution: ExecutionState) -> bool:
        """Return True once for each execution whose tools this process lacks, if no peer says who has them.

        Another process may have these tools. If none takes the execution, it continues here later, and its calls fail.
        """
        are_tools_known = self.peers is not None and self.peers.are_tools_known
        if are_tools_known or execution.execution_id in self._left or has_needed_tools(execution, self.tools):
            return False
        if len(self._left) >= MAX_SKIPPED:
            self._left.clear()
        self._left.add(execution.execution_id)
        return True

    def may_run(self, execution: ExecutionState) -> bool:
        """Return False when other processes must continue the execution."""
        if not self.executes or self.peers is None:
            return self.executes
        if self.peers.is_outdated or (self.peers.are_tools_known and not has_needed_tools(execution, self.tools)):
            return False
        return self.peers.are_current(find_needed_tools(execution), self.tools, execution.context)

    async def look_for_owner(self, execution: ExecutionState) -> None:
        """Look for a process that has just started and that must make the calls of the execution."""
        if self.peers is not None:
            await self.peers.look_for(execution.context)

    @property
    def is_outdated(self) -> bool:
        """Whether a process that started later has another policy; this one then only finishes what it has begun."""
        return self.peers is not None and self.peers.is_outdated

    def count_room(self) -> int:
        """Return how many more executions this process can take."""
        return 0 if self.is_outdated else self.concurrency - len(self.cache.runs)

    def count_claimable(self) -> int:
        """Return how many unowned executions to claim: none once `MAX_SKIPPED` are skipped, because a claimed execution
        that cannot be continued must be skipped too."""
        definitions, now = self.tools.definitions(), self.store.clock.steady()
        generation = 0 if self.peers is None else self.peers.generation
        before, before_generation = self._skipped_with
        if definitions is not before or generation != before_generation:
            self._skipped.clear()
            self._skipped_with = (definitions, generation)
        self._skipped = {name: until for name, until in self._skipped.items() if until > now}
        return min(self.count_room(), MAX_SKIPPED - len(self._skipped))

    def list_skipped(self) -> Collection[str]:
        """Return the executions not to claim: those that this process skips for now, and those that run here."""
        return self._skipped.keys() | self.cache.runs.keys()

    def skip(self, execution_id: str) -> None:
        """Do not take the execution over for `SKIPPED_S`."""
        if len(self._skipped) < MAX_SKIPPED:
            self._skipped[execution_id] = self.store.clock.steady() + SKIPPED_S

    async def adopt(self, lease: Lease) -> None:
        """Continue an execution whose lease this process has just taken, or give the lease back."""
        execution_id = lease.execution_id
        if execution_id in self.cache.runs:
            # A command has just started a run of the execution here; a later tick takes the execution over.
            await self.store.release(lease)
            return
        is_mine = False
        try:
            log = await self.store.log(execution_id)
            if log is not None:
                execution = fold_log(log.header, log.recorded)
                await self.look_for_owner(execution)
                may_run = self.may_run(execution) and not self._leaves_first(execution)
                is_mine = may_run and execution_id not in self.cache.runs
                if is_mine:
                    logger.info("taking over execution %s", execution_id)
                    self.start(execution, lease, True)
        finally:
            if not is_mine:
                self.skip(execution_id)
                await self.store.release(lease)

    def plan_search(self, late: Collection[str], began_at: float) -> float:
        """Return when the next search for late leases begins, in steady seconds.

        `late` has the executions that the last search found, which began at `began_at`. The next search comes early if
        one of them can be taken over before then.
        """
        self._late = {name: times for name, times in self._late.items() if name in late}
        due = (max(leased_until, seen_at + RENEW_S) for leased_until, seen_at in self._late.values())
        return min([began_at + SEARCH_S, *(at for at in due if at > began_at)])

    def _is_still_late(self, header: Header) -> bool:
        """Record a late lease. Return whether it was already late `RENEW_S` ago and has not been renewed since.

        Only then is a silent owner replaced: after the machine has slept, the leases of living owners have ended too.
        """
        now = self.store.clock.steady()
        leased_until, seen_at = self._late.setdefault(header.execution_id, (header.leased_until, now))
        if leased_until != header.leased_until:
            self._late[header.execution_id] = (header.leased_until, now)
            return False
        return now - seen_at >= RENEW_S

    async def watch_lease(self, execution_id: str) -> None:
        """Record a late lease, and continue the execution if the lease has ended."""
        header = await self.store.header(execution_id)
        if header is None:
            return
        if header.owner not in (None, self.owner):
            self._is_still_late(header)
        if not header.is_leased(self.store.clock.steady()) and self.count_room() > 0:
            await self._take_over(header)

    async def take_over(self, execution_id: str) -> None:
        """Continue an execution unless its owner is alive, or silent and may still act."""
        header = await self.store.header(execution_id)
        if header is not None:
            await self._take_over(header)

    async def _take_over(self, header: Header) -> None:
        execution_id = header.execution_id
        run = self.cache.runs.get(execution_id)
        if not self.executes or (run is not None and run.is_busy):
            return
        if self._skipped.get(execution_id, -math.inf) > self.store.clock.steady():
            return
        # Read before claiming: a process must continue what it claims, and it cannot continue an unreadable execution.
        try:
            execution = await load_execution(self.store, header)
        except LogUnreadable:
            self.skip(execution_id)
            raise
        await self.look_for_owner(execution)
        if not self.may_run(execution) or self._leaves_first(execution):
            self.skip(execution_id)
            return
        # If this process owns the execution without running it, the answer to its earlier claim was lost.
        is_own = header.owner == self.owner
        grace_s = 0.0 if is_own else math.inf
        if not is_own and self._is_still_late(header):
            grace_s = longest_call_s(execution, self.tools)
        lease = await self.store.claim(execution_id, self.owner, silent_s=grace_s)
        if lease is None:
            return
        if is_own:
            lease = replace(lease, silent_s=None)
        self._late.pop(execution_id, None)
        logger.info("taking over execution %s", execution_id)
        # The log may have grown before the execution was claimed.
        self.start(execution, lease, False)


def longest_call_s(execution: ExecutionState, tools: Toolbox) -> float:
    """Return how many seconds must pass before a silent owner can no longer send an effect that it has begun."""
    longest = 0.0
    for call in find_running_calls(execution):
        definition = tools.get(call.tool_name)
        limit_s = None if definition is None else definition.timeout_s
        if call.effect == "effect":
            longest = max(longest, SILENT_S, UNLIMITED_S if limit_s is None else limit_s)
    return longest
