"""The processes that share a store: what each of them can do, and which of them an execution waits for.

On one machine only gates matter: a living gate makes the calls of its server, because the gate's server process may
have state that another process of the same server lacks, such as a browser or a login.
"""

import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio
from msgspec.structs import replace

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.task_groups import run_beside
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.execution.verify import find_needed_tools
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.store import Lookups
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.settings.configuration import ProcessRole
from planwarden.storage.hosts import RunningGate, RunningGates
from planwarden.storage.sql.processes import ProcessFacts, ProcessRegistry, merge_tools, registry_of
from planwarden.tools.downstream.gated_servers import FOLDER

logger = logging.getLogger(__name__)

REFRESH_S = 2.0
"""Seconds between two reads of what other processes publish."""
GATE_REFRESH_S = 1.0


class StorePeers:
    """Implements `Peers` with what processes publish in the store. Before the first `refresh`, it knows no process."""

    def __init__(self, registry: ProcessRegistry, clock: Clock, tools: Toolbox, policy: str) -> None:
        """`policy` is the digest of the policy of this process."""
        self._registry = registry
        self._clock = clock
        self._tools = tools
        self._policy = policy
        self._current: dict[str, str] = {}
        """By tool name, the digest of the definition that the last-started process with that tool has."""
        self.generation = 0
        self.is_outdated = False
        self.are_tools_known = True

    async def look_for(self, context: str | None) -> None:
        """Do nothing: on a shared store, each process publishes its tools."""

    def are_current(self, names: Iterable[str], tools: Toolbox, context: str | None) -> bool:
        return all(self._current.get(d.name, d.digest) == d.digest for d in filter(None, map(tools.get, names)))

    async def refresh(self, owner: str | None = None) -> None:
        """Read what the living processes have published. `owner` is this process; None if it publishes nothing.

        Raises:
            StoreError: the store cannot be read.
        """
        living = await self._registry.living()
        if owner is not None and all(process.owner != owner for process in living):
            # The database has just started, or a sign of life failed: other living processes may be missing too.
            return
        current = merge_tools(living)
        is_outdated = bool(living) and living[0].owner != owner and living[0].policy != self._policy
        if (current, is_outdated) != (self._current, self.is_outdated):
            if is_outdated and not self.is_outdated:
                logger.warning(
                    "%s:%d started later with another policy; this process ends what it has begun and begins nothing",
                    living[0].host,
                    living[0].pid,
                )
            self._current, self.is_outdated = current, is_outdated
            self.generation += 1

    @asynccontextmanager
    async def watch(self, owner: str, role: ProcessRole | None) -> AsyncGenerator[None]:
        """Publish what this process can do, and read what others can do, while the block runs. Raises `StoreError`.

        A process without a role publishes nothing and reads once.
        """
        if role is None:
            await self.refresh()
            yield
            return
        # The version is read once: the code that runs has this version, even if another version is installed later.
        begun = ProcessFacts(
            owner=owner,
            role=role,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("planwarden"),
            started_at=self._clock.now(),
            policy=self._policy,
            tools={},
        )
        published: ProcessFacts | None = None

        async def look() -> None:
            nonlocal published
            tools = {tool.name: tool.digest for tool in self._tools.definitions() if not tool.unavailable}
            facts = replace(begun, tools=tools)
            if facts != published:
                await self._registry.publish(facts)
                published = facts
            await self.refresh(owner)

        await look()
        async with run_beside(partial(_look_again, look, REFRESH_S, lambda error: logger.error("%s", error.message))):
            yield


async def _look_again(
    look: Callable[[], Awaitable[None]], pause_s: float, report: Callable[[StoreError], None]
) -> None:
    while True:
        await anyio.sleep(pause_s)
        try:
            await look()
        except StoreError as error:
            report(error)


async def describe_waiting(store: Lookups, execution: ExecutionState) -> str | None:
    """Return a sentence on which process the execution waits for; None if it waits for none, or the store is local."""
    registry = registry_of(store)
    if registry is None or execution.status != "running":
        return None
    header = await store.header(execution.execution_id)
    if header is None or header.status != "running" or header.owner is not None:
        return None
    return describe_missing(execution, await registry.living())


def describe_missing(execution: ExecutionState, living: tuple[ProcessFacts, ...]) -> str:
    """Return a sentence on what the living processes lack to continue an execution that none of them runs.

    One process must have the policy of the newest process, and each tool as the newest process with that tool has it.
    """
    runners = [process for process in living if process.role != "front"]
    if not runners:
        return "It waits for a process that runs executions: `planwarden worker`, or `serve` without `--role front`."
    newest, current = living[0], merge_tools(living)
    names = {(name, current.get(name, "")) for name in find_needed_tools(execution)}
    drained = [process for process in runners if process.policy != newest.policy]
    lacking = [names - process.tools.items() for process in runners if process.policy == newest.policy]
    if not all(lacking):
        return "It waits for a process that can take it."
    if any(names <= process.tools.items() for process in drained):
        tools = f", and has {_join(names)}" if lacking else ""
        return f"It waits for a process that runs under the policy of {_name(newest)}, which started last{tools}."
    missing = names.intersection(*lacking)
    everywhere = {name for process in runners for name in process.tools}
    if nowhere := {tool for tool in missing if tool[0] not in everywhere}:
        return f"It waits for a process that has {_join(nowhere)}; no living one that runs executions does."
    for process in living:
        if has := missing & process.tools.items():
            newest_with_it = f"{_name(process)}, the newest process with it"
            return f"It waits for a process that has {_join(has)} in the version of {newest_with_it}."
    return f"It waits for one process that has all of {_join(names)}; each living one lacks some, or has an older one."


def _join(tools: Collection[tuple[str, str]]) -> str:
    return ", ".join(sorted(name for name, _ in tools))


def _name(process: ProcessFacts) -> str:
    return f"{process.host}:{process.pid}"


class GatePeers:
    """Implements `Peers` for a store of one machine. Before the first `refresh`, it knows no gate."""

    def __init__(self, store: object, home: Path, read_tools: Callable[[Collection[str]], Awaitable[None]]) -> None:
        """`read_tools` takes the slugs of gated servers and reads their tools from the home again."""
        self._gates = RunningGates(store)
        self._folder = home / FOLDER
        self._lock = anyio.Lock()
        self._read_tools = read_tools
        self._living: tuple[RunningGate, ...] = ()
        self._owner: str | None = None
        self.generation = 0
        self.is_outdated = False
        self.are_tools_known = False

    async def look_for(self, context: str | None) -> None:
        if context is not None and context not in {gate.owner for gate in self._living}:
            await self.refresh(self._owner)

    def are_current(self, names: Iterable[str], tools: Toolbox, context: str | None) -> bool:
        return not self._living or all(self._is_current(name, context) for name in names)

    def _is_current(self, name: str, context: str | None) -> bool:
        gates = {
            gate.owner
            for gate in self._living
            if (name.startswith(f"{gate.server}_") if gate.server else gate.owner == context)
        }
        # The gate whose host asked makes the call. When that gate is gone, any other gate of the server does.
        return not gates or (self._owner in gates and (context == self._owner or context not in gates))

    async def refresh(self, owner: str | None = None) -> None:
        """Read which gates are alive; `owner` is this process. Raises `StoreError`."""
        self._owner = owner
        async with self._lock:
            # If the home never had a gate, the store is not asked.
            living = await self._gates.list_living() if self._living or self._folder.exists() else ()
            if living != self._living:
                await self._read_tools({gate.server for gate in living if gate.owner != owner})
                self._living = living
                self.generation += 1

    @asynccontextmanager
    async def watch(self, owner: str, role: ProcessRole | None) -> AsyncGenerator[None]:
        """Keep reading which gates are alive while the block runs. Each gate records itself in the store."""
        await self.refresh(owner)
        # Errors of the store are not reported here, because the engine's scheduler reports them.
        async with run_beside(partial(_look_again, partial(self.refresh, owner), GATE_REFRESH_S, lambda _: None)):
            yield
