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
from planwarden.server.gate import frames
from planwarden.server.gate.calls import GatedCalls
from planwarden.server.gate.frames import Frame
from planwarden.server.gate.relay import Relay
from planwarden.server.gate.serving import Gate
from planwarden.server.gate.tools import GatedTools, SharedTools
from planwarden.server.inbox.launcher import with_launcher
from planwarden.server.settings.configuration import Settings
from planwarden.storage.hosts import RunningGates
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.gated_servers import describe_other_server, save_gated_server


class ServerJudge:
    """Judges the calls of one server for one principal."""

    def __init__(self, relay: Relay, service: Service, calls: GatedCalls, tools: GatedTools) -> None:
        self.calls = calls
        self.tools = tools
        self._relay = relay
        self._service = service

    async def handle(self, frame: Frame) -> bytes | None:
        calls = self.calls
        result = await (calls.answer(frame) if frame.method == "tools/call" else calls.answer_task(frame))
        if result is None:
            return None
        if self._relay.host.envelope:
            result = {"resultType": "complete", **result}
        return frames.build_result(frame.request_id, result)

    async def note_written(self, frame: Frame) -> None:
        await self.calls.note_written(frame)

    def note_change(self) -> None:
        self.tools.note_change()

    async def find_login(self) -> LoginLocation | None:
        downstream = self._service.downstream
        return None if downstream is None else downstream.login_location(self._relay.config)


@asynccontextmanager
async def judge_calls(gate: Gate, warden: Warden, principal: str = LOCAL) -> AsyncGenerator[None]:
    """Answer the calls of the principal while the block runs; the warden is open."""
    service, relay = warden.service, gate.relay
    tools = await _build_tools(gate, warden)
    calls = GatedCalls(service, warden.settings, relay, tools, principal)
    async with anyio.create_task_group() as tasks:
        stop = service.listen(calls.build_listener(tasks))
        try:
            gate.judge = ServerJudge(relay, service, calls, tools)
            yield
        finally:
            gate.judge = None
            stop()
            tools.close()
            tasks.cancel_scope.cancel()


async def _build_tools(gate: Gate, warden: Warden) -> GatedTools:
    service, settings, registry = warden.service, warden.settings, warden.tools
    if not gate.config.is_gated:
        assert service.downstream is not None
        return SharedTools(gate.relay, registry, service.downstream)
    on_listing = partial(RunningGates(service.store).open, service.owner, gate.config.slug)
    slugs = [config.slug for config in settings.servers.configs]
    tools = GatedTools(gate.relay, registry, settings.apply_to, settings.home, on_listing, slugs)
    await tools.load()
    return tools


@asynccontextmanager
async def open_gates(gates: Sequence[Gate], settings: Settings) -> AsyncGenerator[None]:
    """Open the store, the engine and the inbox, and answer calls while the block runs."""
    async with Warden(settings=settings, whole_process=True) as warden, AsyncExitStack() as stack:
        slug = ""
        for config in (gate.config for gate in gates if gate.config.is_gated):
            await _keep(config, warden)
            slug = config.slug
        await stack.enter_async_context(announce_gate(warden.service, slug))
        await stack.enter_async_context(with_launcher(warden.settings, warden.service))
        for gate in gates:
            await stack.enter_async_context(judge_calls(gate, warden))
        yield


async def _keep(config: ServerConfig, warden: Warden) -> None:
    """Record in the home how to reach the wrapped server. Raises `UsageError`: another has its name."""
    home = warden.settings.home
    other = await anyio.to_thread.run_sync(describe_other_server, home, config)
    living = await RunningGates(warden.service.store).list_living() if other is not None else ()
    if any(gate.server == config.slug for gate in living):
        # Rules and pages could not tell the two apart.
        raise UsageError(
            f"a gate named {config.name!r} runs already, in front of {other}; choose another name with --name"
        )
    await anyio.to_thread.run_sync(save_gated_server, home, config)


@asynccontextmanager
async def announce_gate(service: Service, server: str) -> AsyncGenerator[None]:
    """Tell other processes of the gate while the block runs; an empty `server` means all of planwarden.json."""
    running = RunningGates(service.store)
    await running.open(service.owner, server)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await running.close(service.owner)
