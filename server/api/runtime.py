"""Opens the runtime of a process: store, downstream servers and engine, and the background tasks of a server.

This module imports most of planwarden, so a process imports it only to open a runtime. `Warden` does so in a thread.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from planwarden.agent.common.task_groups import run_beside
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.agent.ports.watchers import Observer
from planwarden.agent.runtime.engine import MAX_ADOPTED, Engine
from planwarden.server.api.home import DUTIES, Duties, Home, Role
from planwarden.server.api.peers import GatePeers, StorePeers
from planwarden.server.api.service import Service
from planwarden.server.api.tools import exchange_definitions
from planwarden.server.notifications.messages import build_outbox
from planwarden.server.notifications.sender import NotificationSender
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.server.settings.secrets import find_secrets
from planwarden.storage.opening import open_store
from planwarden.storage.schedules import ScheduleStore
from planwarden.storage.sql.notifications import HasNotifications
from planwarden.storage.sql.processes import registry_of
from planwarden.storage.sql.records import HasRecords


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
                await stack.enter_async_context(run_beside(partial(home.downstream.agents.watch, engine)))
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
            await stack.enter_async_context(run_beside(sender.run))
        if duties.serves is not None and isinstance(store, HasRecords):
            ticker = ScheduleTicker(store, ScheduleStore(store), service)
            await stack.enter_async_context(run_beside(ticker.run))
        yield service


def _build_peers(home: Home, store: Store, duties: Duties) -> StorePeers | GatePeers | None:
    """Return what watches other processes: all on a shared store, otherwise only gates; None if not needed."""
    registry = registry_of(store) if duties.has_engine else None
    if registry is not None:
        return StorePeers(registry, store.clock, home.tools, home.settings.policy.policy_digest)
    if duties.executes and isinstance(store, HasRecords):
        return GatePeers(store, home.settings.home, home.read_gated_tools)
    return None
