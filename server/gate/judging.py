"""Judges the calls of gated servers once the store and the engine are open."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden
from planwarden.server.gate.calls import GatedCalls
from planwarden.server.gate.relay import Relay
from planwarden.server.gate.tools import GatedTools, SharedTools
from planwarden.server.inbox.launcher import with_launcher
from planwarden.server.settings.configuration import Settings
from planwarden.storage.hosts import RunningGates
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.gated_servers import describe_other_server, save_gated_server


@asynccontextmanager
async def judge_calls(relay: Relay, warden: Warden, principal: str = LOCAL) -> AsyncGenerator[None]:
    """Judge the calls of the principal while the block runs; the warden must be open."""
    tools = await _build_tools(relay, warden)
    calls = GatedCalls(warden.service, warden.settings, relay, tools, principal)
    async with anyio.create_task_group() as tasks:
        stop = warden.service.listen(calls.build_listener(tasks))
        try:
            relay.judge = calls
            yield
        finally:
            relay.judge = None
            stop()
            tools.close()
            tasks.cancel_scope.cancel()


async def _build_tools(relay: Relay, warden: Warden) -> GatedTools:
    service, settings, registry = warden.service, warden.settings, warden.tools
    if not relay.config.is_gated:
        assert service.downstream is not None
        return SharedTools(relay, registry, settings, service.downstream)
    on_listing = partial(RunningGates(service.store).open, service.owner, relay.config.slug)
    tools = GatedTools(relay, registry, settings, on_listing)
    await tools.load()
    return tools


@asynccontextmanager
async def open_gates(relays: Sequence[Relay], settings: Settings) -> AsyncGenerator[None]:
    """Open the store, the engine and the inbox, and answer calls while the block runs."""
    async with Warden(settings=settings, whole_process=True) as warden, AsyncExitStack() as stack:
        slug = ""
        for config in (relay.config for relay in relays if relay.config.is_gated):
            await _record_server(config, warden)
            slug = config.slug
        await stack.enter_async_context(announce_gate(warden.service, slug))
        await stack.enter_async_context(with_launcher(warden.settings, warden.service))
        for relay in relays:
            await stack.enter_async_context(judge_calls(relay, warden))
        yield


async def _record_server(config: ServerConfig, warden: Warden) -> None:
    """Store in the home how to reach the server. Raises `UsageError` if the gate of another server has that name."""
    home = warden.settings.home
    other = await anyio.to_thread.run_sync(describe_other_server, home, config)
    living = await RunningGates(warden.service.store).list_living() if other is not None else ()
    if any(gate.server == config.slug for gate in living):
        # Rules and pages could not tell the two servers apart.
        raise UsageError(
            f"a gate named {config.name!r} runs already, in front of {other}; choose another name with --name"
        )
    await anyio.to_thread.run_sync(save_gated_server, home, config)


@asynccontextmanager
async def announce_gate(service: Service, server: str) -> AsyncGenerator[None]:
    """Announce the gate to other processes while the block runs. `server` is empty for servers of planwarden.json."""
    running = RunningGates(service.store)
    await running.open(service.owner, server)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await running.close(service.owner)
