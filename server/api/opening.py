"""Builds what an open warden consists of: store, downstream servers, engine, sender of notifications, schedules.

This imports most of planwarden, so a warden imports it only when it opens, after a server's first answers.
"""

import shlex
from contextlib import AsyncExitStack
from functools import cache
from typing import TYPE_CHECKING

from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import MAX_ADOPTED, Engine
from planwarden.server.api.observer import close_at_end
from planwarden.server.api.peers import StorePeers
from planwarden.server.api.service import Service
from planwarden.server.notifications.outbox import build_outbox
from planwarden.server.notifications.sender import NotificationSender
from planwarden.server.plans.library import PlanLibrary
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import ProcessRole, Settings
from planwarden.server.settings.secrets import find_secrets
from planwarden.server.views.suspension import name_program
from planwarden.storage.opening import open_store
from planwarden.storage.ports.notifications import HasNotifications
from planwarden.storage.ports.processes import registry_of
from planwarden.storage.schedules import ScheduleStore
from planwarden.storage.sql.records import HasRecords
from planwarden.tools.downstream.servers import DownstreamServers
from planwarden.tools.registry import Registry

if TYPE_CHECKING:
    from planwarden.server.telemetry.telemetry import Telemetry


async def open_service(
    stack: AsyncExitStack,
    settings: Settings,
    *,
    store: Store | None,
    tools: Registry,
    downstream: DownstreamServers,
    library: PlanLibrary,
    model: Model,
    observer: "Telemetry | None",
    role: ProcessRole = "both",
    concurrency: int | None = None,
) -> Service:
    """Starts an engine and returns its service; the stack stops them. Takes over what a dead process left running.

    Without `store` it opens the one that the settings name. The engine takes over at most `concurrency` at a time.

    Raises:
        StoreError: the store cannot be used.
        UsageError: this process has not the key of the store's secrets.
    """
    program = name_program
    if store is None:
        program = cache(lambda: shlex.join(build_command_prefix(settings.home, settings.servers_file)))
        store = await stack.enter_async_context(open_store(settings.store))
        downstream.secrets = find_secrets(settings, store)
        await downstream.secrets.check()
    else:
        # A program that gave its own store needs the key of its secrets only for a login.
        downstream.secrets = find_secrets(settings, store)
    await stack.enter_async_context(downstream)
    if role != "front" and downstream.never_listed_servers and await store.orphans(1):
        # An execution that is taken over may need tools of a server that has not listed them yet.
        await downstream.wait_until_all_listed()
    await stack.enter_async_context(close_at_end(observer))
    registry = registry_of(store)
    peers = None
    if registry is not None:
        peers = StorePeers(registry, store.clock, tools, settings.policy.policy_digest)
    engine = Engine(
        store,
        tools,
        model,
        settings.policy,
        max_steps=settings.max_steps,
        outbox=build_outbox(settings.channels),
        observer=observer,
        adopts=role != "front",
        follows=role != "front",
        concurrency=MAX_ADOPTED if concurrency is None else concurrency,
        peers=peers,
    )
    if peers is not None:
        await stack.enter_async_context(peers.publish(engine.owner, role))
    await stack.enter_async_context(engine)
    service = Service(
        engine,
        settings.options,
        max_steps=settings.max_steps,
        downstream=downstream,
        library=library,
        is_caller_model=isinstance(model, CallerModel),
        retention_days=settings.retention_days,
        program=program,
    )
    if isinstance(store, HasNotifications) and settings.channels:
        sender = NotificationSender(store, store.notifications, settings.channels, inbox=lambda: service.inbox_url)
        await stack.enter_async_context(sender)
    if isinstance(store, HasRecords):
        await stack.enter_async_context(ScheduleTicker(store, ScheduleStore(store), service))
    return service
