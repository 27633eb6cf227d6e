"""What an open warden consists of: its store, its downstream servers, its engine, and who tells people.

That is most of planwarden, and nothing that has to be known before a first answer: a warden imports it when it opens.
"""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.observer import closing
from planwarden.server.api.service import Service
from planwarden.server.notifications.outbox import build_outbox
from planwarden.server.notifications.sender import NotificationSender
from planwarden.server.settings.configuration import Settings
from planwarden.storage.ports.notifications import HasNotifications
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.downstream.servers import DownstreamServers
from planwarden.tools.registry import Registry

if TYPE_CHECKING:
    from planwarden.server.telemetry.telemetry import Telemetry


async def open_store(stack: AsyncExitStack, settings: Settings) -> Store:
    """The store of the home, closed with the stack. Raises `StoreError`."""
    store = await anyio.to_thread.run_sync(SqliteStore.open, settings.database)
    stack.push_async_callback(_closed, store)
    return store


async def open_service(
    stack: AsyncExitStack,
    settings: Settings,
    *,
    store: Store,
    tools: Registry,
    downstream: DownstreamServers,
    model: Model,
    observer: "Telemetry | None",
) -> Service:
    """The verbs over a running engine, all ended with the stack; takes over what a dead process left running.

    Raises:
        StoreError: the store cannot be used.
    """
    await stack.enter_async_context(downstream)
    if downstream.never_listed_servers and await store.orphans(1):
        # What is taken over may need tools of a server that nobody has listed yet.
        await downstream.wait_until_all_listed()
    await stack.enter_async_context(closing(observer))
    if observer is not None:
        downstream.observe_request = observer.exchanging
    engine = Engine(
        store,
        tools,
        model,
        settings.policy,
        max_steps=settings.max_steps,
        outbox=build_outbox(settings.channels),
        observer=observer,
    )
    await stack.enter_async_context(engine)
    if observer is not None:
        await stack.enter_async_context(observer.counting(store))
    service = Service(
        engine,
        settings.options,
        max_steps=settings.max_steps,
        downstream=downstream,
        caller_thinks=isinstance(model, CallerModel),
        retention_days=settings.retention_days,
    )
    if settings.channels and isinstance(store, HasNotifications):
        courier = NotificationSender(store, store.notifications, settings.channels, inbox=lambda: service.inbox)
        await stack.enter_async_context(courier)
    return service


async def _closed(store: SqliteStore) -> None:
    """The store has to be closed whatever happens to the task that leaves."""
    with anyio.CancelScope(shield=True):
        await store.close()
