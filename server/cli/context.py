"""What a command works with: the settings, tools and model of the operator's home.

A context opens a `Service` for reading or for writing. Reading starts no engine: it takes no lease, lets no deadline
pass and creates no file. Writing runs the engine for the executions that the command starts or decides on. It leaves
all other executions to the processes that own them.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import anyio

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.peers import Peers
from planwarden.agent.ports.store import Store
from planwarden.agent.ports.watchers import Observer
from planwarden.agent.runtime.adoption import find_missing_tools
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.observer import build_observer, close_at_end
from planwarden.server.api.peers import StorePeers
from planwarden.server.api.service import Service
from planwarden.server.api.waiting import describe_waiting
from planwarden.server.cli.reading import ReadingContext
from planwarden.server.cli.terminal.terminal import ScreenUpdate
from planwarden.server.notifications.outbox import build_outbox
from planwarden.server.plans.library import PlanLibrary, build_library
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import PLAN_FOLDER, Settings, load_settings
from planwarden.server.settings.models import build_model
from planwarden.server.settings.secrets import find_secrets, open_secrets
from planwarden.storage.opening import CompleteStore, open_store
from planwarden.storage.ports.processes import registry_of
from planwarden.storage.sqlite.memory import MemoryStore
from planwarden.tools.downstream.health import ServerHealth
from planwarden.tools.downstream.servers import DownstreamServers

Result = TypeVar("Result")

LEFT_S = 5.0


class CoroutineRunner(Protocol):
    """Runs a coroutine to its end, as `asyncio.run` does."""

    def __call__(self, work: Coroutine[Any, Any, Result], /) -> Result: ...


class CliContext(ReadingContext, frozen=True, kw_only=True):
    """Settings, tools, downstream servers and model of one command."""

    downstream: DownstreamServers
    model: Model

    @classmethod
    def load(
        cls,
        home: Path | None,
        model: str | None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Raises `UsageError` when the settings, a tool or the model are not usable."""
        settings = load_settings(home=home, model=model, environment=environment)
        return cls._build(settings, has_home_option=home is not None)

    @classmethod
    def _build(
        cls, settings: Settings, *, has_home_option: bool, mcp_config: Path | None = None, store: str | None = None
    ) -> Self:
        tools = build_registry(settings)
        return cls(
            settings,
            lambda: tools,
            downstream=build_downstream(settings, tools),
            model=build_model(settings.model, settings.environment),
            has_home_option=has_home_option,
            mcp_config=mcp_config,
            store=store,
        )

    @property
    def library(self) -> PlanLibrary:
        """The saved plans of the home and of `[plans] folders`; each time one that has not looked yet."""
        return build_library(self.settings.home / PLAN_FOLDER, self.settings.plan_folders)

    def build_catalogue_service(self) -> Service:
        """Returns a service for operations that need no stored executions, such as searching for tools."""
        return self._build_service(self._build_engine(MemoryStore()))

    @asynccontextmanager
    async def open_for_reading(self) -> AsyncGenerator[Service]:
        """Opens a service for operations that only read. It creates no database."""
        if not self.settings.store.is_made:
            yield self.build_catalogue_service()
            return
        async with AsyncExitStack() as stack:
            yield self._build_service(self._build_engine(await self._open_store(stack)))

    @asynccontextmanager
    async def open_for_writing(self, *, follows: bool = True) -> AsyncGenerator[Service]:
        """Opens a service for every operation, with a running engine. Downstream servers start when they are needed.

        Without `follows` the engine records decisions and leaves the execution to other processes.

        Raises:
            StoreError: the database cannot be used.
        """
        async with AsyncExitStack() as stack:
            store = await self._open_store(stack)
            observer = await stack.enter_async_context(
                close_at_end(build_observer(self.settings.observation, self.settings.model))
            )
            # Processes that run longer than a command send to them.
            secrets = find_secrets(self.settings, store)
            engine = self._build_engine(store, follows=follows, peers=await self._find_peers(store), observer=observer)
            if not self.downstream.is_open:
                self.downstream.secrets = secrets
                await stack.enter_async_context(self.downstream)
            await stack.enter_async_context(engine)
            stack.callback(self.downstream.stop_watching_agents)
            yield self._build_service(engine)

    @asynccontextmanager
    async def run_servers(self) -> AsyncGenerator[None]:
        """Runs downstream servers without a service. Raises `StoreError` when their logins cannot be read."""
        async with open_secrets(self.settings) as self.downstream.secrets, self.downstream:
            yield

    @contextmanager
    def keep_servers_running(self) -> Generator[CoroutineRunner]:
        """Keeps downstream servers, with their state, between several runs. Yields what runs each of them.

        All runs share one event loop, which does nothing between them.
        """
        with asyncio.Runner() as runner:
            is_open, may_close = asyncio.Event(), asyncio.Event()

            async def hold_open() -> None:
                async with self.run_servers():
                    is_open.set()
                    await may_close.wait()

            async def open_servers() -> asyncio.Task[None]:
                holder = asyncio.create_task(hold_open())
                await is_open.wait()
                return holder

            async def close_servers() -> None:
                may_close.set()
                await holder

            holder = runner.run(open_servers())
            try:
                yield runner.run
            finally:
                runner.run(close_servers())

    def check_tools(self, execution: ExecutionState) -> None:
        """Raises `UsageError` when the remaining steps need tools that are not known here: their calls would fail.

        On a shared store they would not: another process that has the tools makes the calls.
        """
        if self.settings.store.path is None:
            return
        missing = [name for name in find_missing_tools(execution, self.tools) if not self.downstream.owns(name)]
        if missing:
            raise UsageError(
                f"this execution needs the tool(s) {', '.join(map(repr, missing))}, which are not known here; name "
                "their file in [tools] python of planwarden.toml, or decide in the program that has them"
            )

    async def list_servers(self) -> tuple[ServerHealth, ...]:
        """Starts the servers whose tools were never listed, and returns the health of every server."""
        if self.downstream.never_listed_servers:
            async with self.run_servers():
                await self.downstream.wait_until_all_listed()
                return self.downstream.health()
        return self.downstream.health()

    async def _open_store(self, stack: AsyncExitStack) -> CompleteStore:
        return await stack.enter_async_context(open_store(self.settings.store))

    async def _find_peers(self, store: Store) -> Peers | None:
        """Returns the processes that share the store, as they are now; None for a store of one machine."""
        registry = registry_of(store)
        if registry is None:
            return None
        peers = StorePeers(registry, store.clock, self.tools, self.settings.policy.policy_digest)
        await peers.refresh()
        return peers

    def _build_engine(
        self,
        store: Store,
        *,
        follows: bool = True,
        peers: Peers | None = None,
        observer: Observer | None = None,
    ) -> Engine:
        return Engine(
            store,
            self.tools,
            self.model,
            self.settings.policy,
            max_steps=self.settings.max_steps,
            adopts=False,
            follows=follows,
            peers=peers,
            # Processes that run longer than a command send its notifications.
            outbox=build_outbox(self.settings.channels),
            observer=observer,
        )

    def _build_service(self, engine: Engine) -> Service:
        settings = self.settings
        return Service(
            engine,
            settings.options,
            max_steps=settings.max_steps,
            downstream=self.downstream,
            library=self.library,
            program=self.program,
        )


async def watch_execution(
    service: Service, execution: ExecutionState, update: ScreenUpdate, *, patience_s: float = math.inf
) -> ExecutionState:
    """Shows every change until the execution ends or needs an answer, and returns its last state.

    An execution that only waits for a time is watched until then, unless that takes longer than `patience_s`; one that
    other processes must continue, until none of them has begun for `LEFT_S`.

    Raises:
        StoreError: the storage fails, or has refused for a while what becomes of the execution.
    """
    engine = service.engine
    while True:
        update(execution, engine.streamed_text(execution.execution_id))
        left_s = _seconds_until_deadline(execution, engine.store.clock.now())
        if execution.status != "running" and (left_s is None or left_s > patience_s):
            return execution
        is_left = execution.status == "running" and not engine.may_run(execution)
        with anyio.move_on_after(LEFT_S if is_left else math.inf) as waiting:
            execution = await engine.wait_for_change(execution)
            engine.check_recording(execution)
        if waiting.cancelled_caught and await describe_waiting(engine.store, execution) is not None:
            return execution


def _seconds_until_deadline(execution: ExecutionState, now: float) -> float | None:
    """Returns how long a suspended execution that only waits for a time still waits; None for every other execution."""
    waiting = [found.question for found in execution.open_suspensions]
    if execution.status != "suspended" or any(question.addressee != "clock" for question in waiting):
        return None
    return min((question.expires_at for question in waiting if question.expires_at is not None), default=now) - now
