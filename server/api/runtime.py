"""Opens the runtime of a process: store, downstream servers and engine, what watches other processes that share the
store, and the background tasks of a server.

On one machine only gates are watched: a living gate makes the calls of its server, because the gate's server process
may have state that another process of the same server lacks, such as a browser or a login.

This module imports most of planwarden, so a process imports it only to open a runtime. `Warden` does so in a thread.
"""

import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio
from msgspec.structs import replace

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.task_groups import keep_running
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.ports.watchers import Observer
from planwarden.agent.runtime.engine import MAX_ADOPTED, Engine
from planwarden.server.api.home import DUTIES, Duties, Home, Role
from planwarden.server.api.service import Service
from planwarden.server.api.tools import exchange_definitions
from planwarden.server.notifications.messages import build_outbox
from planwarden.server.notifications.sender import NotificationSender
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.server.settings.configuration import ProcessRole
from planwarden.server.settings.secrets import find_secrets
from planwarden.storage.hosts import RunningGate, RunningGates
from planwarden.storage.opening import open_store
from planwarden.storage.schedules import ScheduleStore
from planwarden.storage.sql.notifications import HasNotifications
from planwarden.storage.sql.processes import ProcessFacts, ProcessRegistry, merge_tools, registry_of
from planwarden.storage.sql.records import HasRecords
from planwarden.tools.downstream.gated_servers import FOLDER

logger = logging.getLogger(__name__)

REFRESH_S = 2.0
"""Seconds between two reads of what other processes publish."""
GATE_REFRESH_S = 1.0


@asynccontextmanager
async def open_runtime(
    home: Home, role: Role, *, store: Store | None, observer: Observer | None, concurrency: int | None = None
) -> AsyncGenerator[Service]:
    """Yield the service of a process with this role. Without a `store`, open the one that the settings name.

    The engine takes over at most `concurrency` executions at a time.

    Raises:
        StoreError: the store cannot be used.
        UsageError: this process does not have the key of the store's secrets.
    """
    settings, duties = home.settings, DUTIES[role]
    async with AsyncExitStack() as stack:
        if store is None:
            # For a store that the caller passed in, the key of the secrets is not checked: only a login needs it.
            store = await stack.enter_async_context(open_store(settings.store))
            await find_secrets(settings, store).check()
        if isinstance(store, HasRecords):
            store.records.policy = settings.policy.policy_digest
            await exchange_definitions(store, home.tools, adds=duties.executes)
        if duties.has_servers:
            await home.open_servers(store, stack.enter_async_context)
        if duties.adopts and home.downstream.never_listed_servers and await store.orphans(1):
            # An execution that is taken over may need tools of a server that has not listed them yet.
            await home.downstream.wait_until_all_listed()
        peers = _build_peers(home, store, duties)
        engine = Engine(
            store,
            home.tools,
            home.model,
            settings.policy,
            max_steps=settings.tables.execution.max_steps,
            # A command only stores its notifications; processes that run longer send them.
            outbox=build_outbox(settings.channels),
            observer=observer,
            adopts=duties.adopts,
            executes=duties.executes,
            concurrency=MAX_ADOPTED if concurrency is None else concurrency,
            peers=peers,
        )
        if peers is not None:
            # When a gate is gone, a command that waited for one of its calls continues the execution itself.
            await stack.enter_async_context(peers.watch(engine.owner, duties.serves))
        if duties.has_engine:
            await stack.enter_async_context(engine)
            if home.downstream.agents is not None:
                await stack.enter_async_context(keep_running(partial(home.downstream.agents.watch, engine)))
        service = Service(
            engine,
            settings,
            downstream=home.downstream,
            library=home.library,
            is_caller_model=isinstance(home.model, CallerModel),
            program=home.program,
        )
        if duties.serves is not None and isinstance(store, HasNotifications) and settings.channels:
            sender = NotificationSender(store, store.notifications, settings.channels, inbox=lambda: service.inbox_url)
            await stack.enter_async_context(keep_running(sender.run))
        if duties.serves is not None and isinstance(store, HasRecords):
            ticker = ScheduleTicker(store, ScheduleStore(store), service)
            await stack.enter_async_context(keep_running(ticker.run))
        yield service


class StorePeers:
    """Implements `Peers` with what processes publish in the store. Before the first `refresh`, it knows no process."""

    def __init__(self, registry: ProcessRegistry, clock: Clock, tools: Toolbox, policy: str) -> None:
        """`policy` is the digest of the policy of this process."""
        self._registry = registry
        self._clock = clock
        self._tools = tools
        self._policy = policy
        self._current: dict[str, str] = {}
        """By tool name: the digest of the tool's definition in the newest process that has the tool."""
        self.generation = 0
        self.is_outdated = False
        self.are_tools_known = True

    async def look_for(self, context: str | None) -> None:
        """Do nothing: on a shared store, each process publishes its tools."""

    def are_current(self, names: Iterable[str], tools: Toolbox, context: str | None) -> bool:
        definitions = [definition for name in names if (definition := tools.get(name)) is not None]
        return all(self._current.get(each.name, each.digest) == each.digest for each in definitions)

    async def refresh(self, owner: str | None = None) -> None:
        """Read what the living processes have published. `owner` is this process; None if it publishes nothing.

        Raises:
            StoreError: the store cannot be read.
        """
        living = await self._registry.living()
        if owner is not None and all(process.owner != owner for process in living):
            # If this process is missing, others may be too: the database has just started, or a sign of life failed.
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
        # Read the version only once: if another version is installed later, this process still runs the old code.
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
        async with keep_running(partial(_look_again, look, REFRESH_S, lambda error: logger.error("%s", error.message))):
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
        # The gate whose host asked makes the call. If it is gone, any other gate of the server may.
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
        async with keep_running(partial(_look_again, partial(self.refresh, owner), GATE_REFRESH_S, lambda _: None)):
            yield


def _build_peers(home: Home, store: Store, duties: Duties) -> StorePeers | GatePeers | None:
    """Return what watches other processes: all on a shared store, otherwise only gates; None if not needed."""
    registry = registry_of(store) if duties.has_engine else None
    if registry is not None:
        return StorePeers(registry, store.clock, home.tools, home.settings.policy.policy_digest)
    if duties.executes and isinstance(store, HasRecords):
        return GatePeers(store, home.settings.home, home.read_gated_tools)
    return None
