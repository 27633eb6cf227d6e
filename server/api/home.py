"""Gives access to what one home holds, to its store, and to the telemetry of its runtimes. `read` starts no engine: it
takes no lease, acts on no deadline and creates no file. `run` opens a runtime. By default, its engine runs only the
executions that the command starts or decides on. The module of the runtime is imported when a runtime is first opened,
because a command that only reads does not need it.
"""

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from planwarden.agent.common.errors import (
    InvalidArguments,
    PlanwardenError,
    UnknownSuspension,
    UnknownThread,
    UsageError,
)
from planwarden.agent.common.imports import LazyModule
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.model import Model
from planwarden.agent.ports.store import Header, Lookups, SuspensionRow
from planwarden.server.plans.library import PlanLibrary, build_library
from planwarden.server.settings.configuration import PLAN_FOLDER, ProcessRole, Settings, load_settings
from planwarden.server.settings.secrets import find_secrets
from planwarden.server.telemetry.settings import TelemetrySettings
from planwarden.server.views.escaping import MAX_NAMED_IDS, complete_id, escape_text, shorten_id
from planwarden.server.views.suspension import Program, name_program
from planwarden.storage.opening import CompleteStore, open_at_once, open_store
from planwarden.storage.sqlite.store import MemoryStore
from planwarden.tools.builtin.human import ASKING_TOOLS
from planwarden.tools.downstream.gated_servers import read_gated_servers

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from planwarden.server.api.service import Service
    from planwarden.server.settings import catalogue, models
    from planwarden.server.telemetry.telemetry import Telemetry
    from planwarden.tools.downstream.servers import DownstreamServers
    from planwarden.tools.registry import Registry
else:
    catalogue = LazyModule("planwarden.server.settings.catalogue")
    models = LazyModule("planwarden.server.settings.models")

runtime = LazyModule("planwarden.server.api.runtime")
logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Role = ProcessRole | Literal["command", "recorder", "checker", "reader"]


class Duties(NamedTuple):
    """What a process does with the executions of its store."""

    serves: ProcessRole | None = None
    """The role that others see. A process with a role keeps running, sends notifications and starts scheduled runs."""
    adopts: bool = False
    """Whether the process continues executions that other processes left behind."""
    executes: bool = False
    """Whether the process itself continues the executions that its callers start or name."""
    has_engine: bool = True
    has_servers: bool = True


DUTIES: dict[Role, Duties] = {
    "both": Duties("both", adopts=True, executes=True),
    "worker": Duties("worker", adopts=True, executes=True),
    "front": Duties("front"),
    "command": Duties(executes=True),
    "recorder": Duties(),
    "checker": Duties(has_engine=False),
    "reader": Duties(has_engine=False, has_servers=False),
}

_EXTRA_PACKAGES = frozenset({"opentelemetry", "grpc", "google"})
"""Top-level packages that the extras for telemetry install."""


class Home:
    """The settings, tools, downstream servers, saved plans and model of one home, and what its store says.

    Its properties raise `UsageError` when what they build is not usable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tools: Sequence[object] = (),
        model: Model | None = None,
        program: Program = name_program,
    ) -> None:
        """Add `tools` to those of the settings; use `model` instead of theirs. `program` returns how commands begin."""
        self.settings = settings
        self.program = program
        self._given_tools = tools
        self._given_model = model
        self._held: _HeldOpen | None = None

    @classmethod
    def load(cls, folder: Path, model: str | None = None, environment: Mapping[str, str] | None = None) -> "Home":
        """Return the home in a folder. Raises `UsageError` when the settings are not usable."""
        settings = load_settings(home=folder, model=model, environment=environment)
        return cls(settings, program=lambda: shlex.join([name_program(), "--home", str(settings.home)]))

    @cached_property
    def tools(self) -> "Registry":
        """All tools that are known without starting a server, including those that servers listed earlier."""
        tools = self._registry
        if self.settings.servers.configs:
            _ = self.downstream
        return tools

    @cached_property
    def downstream(self) -> "DownstreamServers":
        return catalogue.build_downstream(self.settings, self._registry)

    @cached_property
    def _registry(self) -> "Registry":
        return catalogue.build_registry(self.settings, self._given_tools)

    @cached_property
    def library(self) -> PlanLibrary:
        """The saved plans."""
        return build_library(self.settings.home / PLAN_FOLDER, self.settings.plan_folders)

    @cached_property
    def model(self) -> Model:
        return self._given_model or models.build_model(self.settings.model, self.settings.environment)

    async def read_gated_tools(self, slugs: Collection[str]) -> None:
        """Read the tools of these gated servers again, because their gates may have listed new ones since."""
        settings = self.settings
        own = [config for config in settings.servers.configs if not config.is_gated or config.is_disabled]
        for config in read_gated_servers(settings.home, settings.environment, settings.tables.servers, own):
            if config.slug in slugs:
                await self.downstream.load_saved_listing(config)

    @property
    def definitions(self) -> "DefinitionsOnDemand":
        """The definitions of the tools. Looking a definition up may raise what `tools` raises."""
        return DefinitionsOnDemand(self)

    async def open_servers(
        self, store: object, enter: "Callable[[DownstreamServers], Awaitable[DownstreamServers]]"
    ) -> None:
        """Open the downstream servers, with the secrets of the store, unless they are open."""
        if not self.downstream.is_open:
            self.downstream.secrets = find_secrets(self.settings, store)
            await enter(self.downstream)

    def check(self) -> None:
        """Raise `UsageError` when a tool or the model is not usable."""
        _ = self.tools, self.model

    def command(self, *words: str) -> str:
        """Return a command line that works on this home, for people to copy; ids in it are short."""
        # The value of an option, such as a cursor, may look like an id but must not be shortened.
        pairs = zip(("", *words), words, strict=False)
        short = [word if before.startswith("--") else shorten_id(word) for before, word in pairs]
        return f"{self.program()} {shlex.join(short)}"

    def read(self, work: Callable[[Lookups], Coroutine[Any, Any, Result]]) -> Result:
        """Return what `work` returns for the store. Start an event loop only if the store needs one."""
        lookups = None
        if self._held is None:
            lookups = open_at_once(self.settings.store) if self.settings.store.is_made else MemoryStore()
        if lookups is None:
            with self.stay_open() as resources:
                return resources.runner.run(self._read(resources, work))
        try:
            return _finish(work(lookups))
        finally:
            _finish(lookups.close())

    def run(self, work: "Callable[[Service], Coroutine[Any, Any, Result]]", role: Role = "command") -> Result:
        """Run `work` with a service, and return what it returns.

        Raises:
            StoreError: the store cannot be used.
        """
        with self.stay_open() as resources:
            return resources.runner.run(self._run(resources, work, role))

    @contextmanager
    def stay_open(self) -> "Generator[_HeldOpen]":
        """Keep the store and the downstream servers open, with their state, for all that is read and run in the block.

        All reads and runs share one event loop, which is idle between them: while a person thinks, this process runs no
        engine and holds no lease or transaction.
        """
        if self._held is not None:
            yield self._held
            return
        with asyncio.Runner() as runner:
            self._held = resources = _HeldOpen(runner)
            try:
                yield resources
            finally:
                self._held = None
                runner.run(resources.close())

    async def _run(
        self, resources: "_HeldOpen", work: "Callable[[Service], Coroutine[Any, Any, Result]]", role: Role
    ) -> Result:
        duties = DUTIES[role]
        store = await self._find_store(resources, creates=duties.has_engine)
        if duties.has_servers:
            await self.open_servers(store, resources.enter)
        async with AsyncExitStack() as stack:
            observer = build_observer(self.settings.observation, self.settings.model) if duties.has_engine else None
            if observer is not None:
                stack.push_async_callback(observer.aclose)
            opening = runtime.open_runtime(self, role, store=store, observer=observer)
            return await work(await stack.enter_async_context(opening))

    async def _read(self, resources: "_HeldOpen", work: Callable[[Lookups], Coroutine[Any, Any, Result]]) -> Result:
        return await work(await self._find_store(resources, creates=False))

    async def _find_store(self, resources: "_HeldOpen", *, creates: bool) -> CompleteStore:
        if resources.store is None:
            if not (creates or self.settings.store.is_made):
                return MemoryStore()
            resources.store = await resources.enter(open_store(self.settings.store, self.settings.policy.policy_digest))
        return resources.store

    async def find_id(self, store: Lookups, kind: Literal["suspension", "thread"], beginning: str) -> str:
        """Return the only id of that kind with this beginning; `beginning` itself if it is a whole id, or if no id
        fits.

        Raises:
            UsageError: several ids of that kind have this beginning, or only ids of another kind do.
        """
        entries = await store.find_ids(beginning, MAX_NAMED_IDS + 1) if beginning else ()
        ids = [entry.id for entry in entries if entry.kind == kind]
        if entries and not ids:
            entry, nouns = entries[0], {"thread": "a thread", "execution": "an execution", "suspension": "a question"}
            raise UsageError(
                f"{entry.id!r} is the id of {nouns[entry.kind]}, and this command wants {nouns[kind]}; its thread is "
                f"{entry.thread_id!r}: `{escape_text(self.command('show', entry.thread_id))}`"
            )
        return complete_id(beginning, ids)

    async def find_thread(self, store: Lookups, beginning: str, advice: str = "") -> tuple[Header, ...]:
        """Return the executions of the thread whose id has this beginning, oldest first.

        Raises:
            UnknownThread: no thread has such an id; in the message, `advice` replaces the hint to use `list`.
            UsageError: as for `find_id`.
        """
        thread_id = await self.find_id(store, "thread", beginning)
        headers = await store.thread(thread_id)
        if not headers:
            advice = advice or f"`{self.command('list')}` shows the newest ones"
            raise UnknownThread(f"there is no thread {thread_id[:64]!r}; {advice}")
        return headers

    async def find_suspension(self, store: Lookups, beginning: str) -> SuspensionRow:
        """Return the row of the suspension whose id has this beginning, whatever its owner.

        Raises:
            UnknownSuspension: no suspension has such an id.
            UsageError: as for `find_id`.
        """
        suspension_id = await self.find_id(store, "suspension", beginning)
        row = await store.find_suspension(suspension_id)
        if row is None:
            raise UnknownSuspension(
                f"there is no question {suspension_id[:64]!r}; `{self.command('list')}` shows the open ones"
            )
        return row


class DefinitionsOnDemand(msgspec.Struct, frozen=True):
    """Implements the `Definitions` port, and loads the operator's tools when one of them is looked up."""

    home: Home

    def get(self, name: str) -> ToolDefinition | None:
        # Most questions come from the asking tools, whose names no other tool may have, so no file has to be loaded.
        if name in ASKING_TOOLS and name not in self.home.settings.tools:
            return ASKING_TOOLS[name].definition
        return self.home.tools.get(name)


class _HeldOpen:
    """The event loop of a command, and what stays open on it. One task opens and closes all, as task groups require."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.store: CompleteStore | None = None
        self._requests: asyncio.Queue[tuple[AbstractAsyncContextManager[Any], asyncio.Future[Any]] | None]
        self._requests = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, context: AbstractAsyncContextManager[Result]) -> Result:
        """Enter the context, which stays open until `close`, and return what it yields."""
        if self._task is None:
            self._task = asyncio.create_task(self._hold())
        entered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((context, entered))
        await asyncio.wait((entered, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            # The task has failed; awaiting it raises its error.
            await self._task
        return entered.result()

    async def _hold(self) -> None:
        async with AsyncExitStack() as stack:
            while (request := await self._requests.get()) is not None:
                context, entered = request
                try:
                    entered.set_result(await stack.enter_async_context(context))
                except PlanwardenError as error:
                    entered.set_exception(error)

    async def close(self) -> None:
        """Close what was entered, in reverse order."""
        if self._task is not None:
            self._requests.put_nowait(None)
            await self._task


def _finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("what reads a file waits for nothing")


def build_observer(
    observation: TelemetrySettings,
    model: str,
    *,
    tracer_provider: "TracerProvider | None" = None,
    meter_provider: "MeterProvider | None" = None,
    whole_process: bool = False,
) -> "Telemetry | None":
    """Return an observer, which the caller must close; None without telemetry. Given providers override settings.

    Raises:
        InvalidArguments: planwarden.toml names an endpoint, but a package is missing or a setting is not supported.
        ImportError: providers are given, but OpenTelemetry cannot be imported.
    """
    is_given = tracer_provider is not None or meter_provider is not None
    if not is_given:
        for problem in observation.problems:
            if observation.is_demanded:
                raise InvalidArguments(f"[otel] endpoint: {problem}")
            logger.warning("%s; no telemetry is sent", problem)
        if not observation.is_on:
            return None
    try:
        from planwarden.server.telemetry.telemetry import Telemetry, build_exporting_telemetry

        if is_given:
            records = observation.record_arguments
            return Telemetry(tracer_provider, meter_provider, model=model, record_arguments=records)
        return build_exporting_telemetry(observation, model, whole_process=whole_process)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        # A missing module of planwarden itself is a bug: no extra would help.
        if is_given or package == "planwarden":
            raise
        targets = (observation.traces, observation.metrics)
        is_grpc = any(target is not None and target.protocol == "grpc" for target in targets)
        extra = f"'planwarden[{'otel-grpc' if is_grpc else 'otel'}]'"
        why = f"fails because OpenTelemetry cannot be imported ({error}): pip install --upgrade {extra}"
        if isinstance(error, ModuleNotFoundError) and package in _EXTRA_PACKAGES:
            why = f"needs an extra: pip install {extra}"
        if observation.is_demanded:
            raise InvalidArguments(f"[otel] endpoint {why}") from error
        # A host often sets variables like OTEL_EXPORTER_OTLP_ENDPOINT for itself, and this process inherits them.
        logger.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, but sending anything there %s", why)
        return None
