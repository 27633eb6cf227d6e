"""What a command works on: the operator's home, opened for looking or for acting.

Looking starts no engine: it takes over nothing, lets no deadline pass and creates no file. Acting runs the engine for
the executions that the command is about and leaves all others to whoever owns them.
"""

import asyncio
import math
import shlex
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio.to_thread

from planwarden.agent.common.errors import UnknownSuspension
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Store, SuspensionRow
from planwarden.agent.ports.watchers import Observer
from planwarden.server.api.observer import closing, observer_of
from planwarden.server.api.service import Service
from planwarden.server.settings.catalogue import build_downstream, build_registry
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.models import build_model
from planwarden.tools.registry import Registry

# A server does not wait for what only terminals need, nor for what it opens after its first answer.
if TYPE_CHECKING:
    from planwarden.agent.runtime.engine import Engine
    from planwarden.server.cli.terminal.screen import ScreenUpdate
    from planwarden.storage.sqlite.store import SqliteStore
    from planwarden.tools.downstream.health import ServerHealth
    from planwarden.tools.downstream.servers import DownstreamServers

DONE, FAILED, USAGE, WAITING, INTERRUPTED = 0, 1, 2, 3, 130
"""What a command's exit code says."""

Given = TypeVar("Given")


class RunLoop(Protocol):
    """Runs a coroutine to its end."""

    def __call__(self, work: Coroutine[Any, Any, Given], /) -> Given: ...


@dataclass(frozen=True, slots=True)
class CliHome:
    """Settings, tools and model of one process."""

    settings: Settings
    tools: Registry
    downstream: "DownstreamServers"
    model: Model
    is_named: bool = False
    """The command was told which home; so must be the next one."""
    mcp_config: Path | None = None
    """As `is_named`, for the file with the downstream servers."""

    @classmethod
    def load(
        cls,
        home: Path | None,
        model: str | None,
        environment: Mapping[str, str] | None = None,
        mcp_config: Path | None = None,
    ) -> "CliHome":
        """Raises `UsageError` when the settings, a tool or the model are not usable."""
        settings = load_settings(home=home, model=model, environment=environment, mcp_config=mcp_config)
        tools = build_registry(settings)
        downstream = build_downstream(settings, tools)
        chosen = build_model(settings.model, settings.environment)
        return cls(settings, tools, downstream, chosen, is_named=home is not None, mcp_config=mcp_config)

    def command(self, *words: str) -> str:
        """A command line that works on this home, to be copied."""
        named = ("--home", str(self.settings.home)) if self.is_named else ()
        servers = ("--mcp-config", str(self.mcp_config)) if self.mcp_config is not None else ()
        return shlex.join(["planwarden", *named, *servers, *words])

    def service(self) -> Service:
        """The verbs that need no store."""
        from planwarden.storage.memory.store import MemoryStore

        return self._service(self._engine(MemoryStore()))

    @asynccontextmanager
    async def looking(self) -> AsyncGenerator[Service]:
        """The verbs that only read."""
        async with AsyncExitStack() as stack:
            # A command that only looks must not leave a database behind.
            from planwarden.storage.memory.store import MemoryStore

            store: Store = MemoryStore()
            if self.settings.database.exists():
                store = await self._opened(stack)
            yield self._service(self._engine(store))

    @asynccontextmanager
    async def acting(self, *, follows: bool = True) -> AsyncGenerator[Service]:
        """Every verb, with a running engine and downstream servers that start when they are needed.

        Without `follows` it records and leaves what follows to others.

        Raises:
            StoreError: the database cannot be used.
        """
        async with AsyncExitStack() as stack:
            store = await self._opened(stack)
            observer = await stack.enter_async_context(
                closing(observer_of(self.settings.observation, self.settings.model))
            )
            engine = self._engine(store, follows=follows, observer=observer)
            if not self.downstream.is_open:
                await stack.enter_async_context(self.downstream)
            await stack.enter_async_context(engine)
            stack.callback(self.downstream.stop_watching_agents)
            yield self._service(engine)

    @contextmanager
    def kept(self) -> Generator["RunLoop"]:
        """One loop for several runs, and downstream servers that go on between them.

        A server that was started in one run is there in the next, with what it remembers. The loop stands still in between.
        """
        with asyncio.Runner() as runner:
            opened, left = asyncio.Event(), asyncio.Event()

            async def keep() -> None:
                async with self.downstream:
                    opened.set()
                    await left.wait()

            async def begin() -> asyncio.Task[None]:
                keeper = asyncio.create_task(keep())
                await opened.wait()
                return keeper

            async def end() -> None:
                left.set()
                await keeper

            keeper = runner.run(begin())
            try:
                yield runner.run
            finally:
                runner.run(end())

    async def listed(self, *, everything: bool = False) -> "tuple[ServerHealth, ...]":
        """Start the servers that were never listed, or all of them, and give the health of each."""
        if everything or self.downstream.never_listed_servers:
            async with self.downstream:
                await (self.downstream.start_all() if everything else self.downstream.wait_until_all_listed())
                return self.downstream.health()
        return self.downstream.health()

    async def _opened(self, stack: AsyncExitStack) -> "SqliteStore":
        from planwarden.storage.sqlite.store import SqliteStore

        store = await anyio.to_thread.run_sync(SqliteStore.open, self.settings.database)
        stack.push_async_callback(store.close)
        return store

    def _engine(self, store: Store, *, follows: bool = True, observer: Observer | None = None) -> "Engine":
        from planwarden.agent.runtime.engine import Engine
        from planwarden.server.notifications.outbox import outbox

        return Engine(
            store,
            self.tools,
            self.model,
            self.settings.policy,
            max_steps=self.settings.max_steps,
            adopts=False,
            follows=follows,
            # What a command decides is told by the processes that live longer.
            outbox=outbox(self.settings.channels),
            observer=observer,
        )

    def _service(self, engine: "Engine") -> Service:
        settings = self.settings
        return Service(engine, settings.options, max_steps=settings.max_steps, downstream=self.downstream)


async def find(service: Service, suspension_id: str) -> tuple[SuspensionRow, ExecutionState]:
    """Where a question is and the execution that asked it, whoever owns it: the operator's terminal sees them all.

    Raises:
        UnknownSuspension: there is none with that id.
    """
    row = await service.engine.store.find_suspension(suspension_id)
    if row is None:
        raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r}; `planwarden list` shows the open ones")
    execution = await service.engine.find(row.execution_id)
    return row, execution


async def watch(
    service: Service, execution: ExecutionState, update: "ScreenUpdate", *, patience_s: float = math.inf
) -> ExecutionState:
    """Show every change until the execution is over or waits for somebody; gives its last state.

    When nobody but the clock can go on, it is waited for, unless that would take longer than `patience_s`.
    """
    engine = service.engine
    while True:
        update(execution, engine.streamed_text(execution.execution_id))
        left = _seconds_left(execution, engine.store.clock.now())
        if execution.status != "running" and (left is None or left > patience_s):
            return execution
        await engine.wait_for_change(execution.execution_id)
        execution = await engine.find(execution.execution_id)


def _seconds_left(execution: ExecutionState, now: float) -> float | None:
    """Until the clock goes on with a suspended execution that waits for nobody else; None for any other."""
    waiting = [found.question for found in execution.open_suspensions]
    if execution.status != "suspended" or any(question.addressee != "clock" for question in waiting):
        return None
    return min((question.expires_at for question in waiting if question.expires_at is not None), default=now) - now


def exit_code(execution: ExecutionState) -> int:
    """What became of it, as the exit code of the command that ran it."""
    if execution.status in ("completed", "planned"):
        return DONE
    return WAITING if execution.status in ("running", "suspended") else FAILED
