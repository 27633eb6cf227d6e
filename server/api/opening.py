"""Builds what an open warden consists of: store, downstream servers, engine, and the sender of notifications.

This imports most of planwarden, so a warden imports it only when it opens, after a server's first answers.
"""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.observer import close_at_end
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
    """Opens the store of the home; the stack closes it. Raises `StoreError`."""
    store = await anyio.to_thread.run_sync(SqliteStore.open, settings.database)
    stack.push_async_callback(_close, store)
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
    """Starts an engine and returns its service; the stack stops them. Takes over what a dead process left running.

    Raises:
        StoreError: the store cannot be used.
    """
    await stack.enter_async_context(downstream)
    if downstream.never_listed_servers and await store.orphans(1):
        # An execution that is taken over may need tools of a server that has not listed them yet.
        await downstream.wait_until_all_listed()
    await stack.enter_async_context(close_at_end(observer))
    if observer is not None:
        downstream.observe_request = observer.observe_exchange
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
        await stack.enter_async_context(observer.count_open_questions(store))
    service = Service(
        engine,
        settings.options,
        max_steps=settings.max_steps,
        downstream=downstream,
        is_caller_model=isinstance(model, CallerModel),
        retention_days=settings.retention_days,
    )
    if settings.channels and isinstance(store, HasNotifications):
        sender = NotificationSender(store, store.notifications, settings.channels, inbox=lambda: service.inbox_url)
        await stack.enter_async_context(sender)
    return service


async def _close(store: SqliteStore) -> None:
    """Closes the store even if the task was cancelled."""
    with anyio.CancelScope(shield=True):
        await store.close()
