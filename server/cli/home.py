"""The home that a command works with, and the two ways to its store.

`read` starts no engine: it takes no lease, lets no deadline pass and creates no file. `run` opens a runtime: its engine
runs the executions that the command starts or decides on, and leaves all others to the processes that own them. What is
slow to import is imported when it is first needed, because a command that only reads needs none of it.
"""

import shlex
from argparse import Namespace
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from planwarden.agent.common.errors import PlanwardenError, UnknownSuspension, UnknownThread, UsageError
from planwarden.agent.common.imports import LazyModule
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import Header, Lookups, SuspensionRow
from planwarden.server.api.home_parts import HomeParts
from planwarden.server.cli.arguments import read_settings
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.views.facts import escape_text, shorten_id
from planwarden.server.views.suspension import name_program
from planwarden.storage.opening import open_at_once, open_store

if TYPE_CHECKING:
    import asyncio

    from planwarden.server.api import observer as observers
    from planwarden.server.api import runtime
    from planwarden.server.api.runtime import Role
    from planwarden.server.api.service import Service
    from planwarden.storage.opening import CompleteStore
    from planwarden.storage.sqlite import memory
    from planwarden.tools.builtin import human
else:
    human = LazyModule("planwarden.tools.builtin.human")
    observers = LazyModule("planwarden.server.api.observer")
    asyncio = LazyModule("asyncio")
    memory = LazyModule("planwarden.storage.sqlite.memory")
    runtime = LazyModule("planwarden.server.api.runtime")

Result = TypeVar("Result")

CANDIDATES = 5
"""Ids that are named where several begin as the user wrote."""


class Home(HomeParts):
    """Everything of one home, and what its store says."""

    def __init__(self, settings: Settings, **given: Any) -> None:
        super().__init__(settings, **given)
        self._held: _HeldOpen | None = None

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> "Home":
        """Return the home that a command line names. Raises `UsageError` when the settings are not usable."""
        settings = read_settings(arguments)
        words = [] if arguments.home is None else ["--home", str(settings.home)]
        # Not the password of the URL: what is printed may be copied anywhere.
        words += [] if arguments.store is None else ["--store", settings.store.safe_url]
        words += [] if arguments.mcp_config is None else ["--mcp-config", str(arguments.mcp_config)]
        return cls(settings, program=lambda: shlex.join([name_program(), *words]))

    @classmethod
    def load(cls, folder: Path, model: str | None = None, environment: Mapping[str, str] | None = None) -> "Home":
        """Return the home in a folder. Raises as `from_arguments`."""
        settings = load_settings(home=folder, model=model, environment=environment)
        return cls(settings, program=lambda: shlex.join([name_program(), "--home", str(settings.home)]))

    @property
    def definitions(self) -> "DefinitionsOnDemand":
        """What the tools say of themselves. Looking one up raises as `tools` does."""
        return DefinitionsOnDemand(self)

    def check(self) -> None:
        """Raise `UsageError` when a tool or the model is not usable."""
        _ = self.tools, self.model

    def command(self, *words: str) -> str:
        """Return a command line that works on this home, for people to copy; ids in it are short."""
        # The value of an option, such as a cursor, may look like an id and has to be whole.
        pairs = zip(("", *words), words, strict=False)
        short = [word if before.startswith("--") else shorten_id(word) for before, word in pairs]
        return f"{self.program()} {shlex.join(short)}"

    def read(self, work: Callable[[Lookups], Coroutine[Any, Any, Result]]) -> Result:
        """Return what `work` finds in the store. Where nothing has to be waited for, no event loop is made."""
        if self._held is not None:
            return self._held.runner.run(self._read(self._held, work))
        lookups = open_at_once(self.settings.store) if self.settings.store.is_made else memory.MemoryStore()
        if lookups is None:
            with self.stay_open():
                return self.read(work)
        try:
            return _finish(work(lookups))
        finally:
            _finish(lookups.close())

    def run(self, work: "Callable[[Service], Coroutine[Any, Any, Result]]", role: "Role" = "command") -> Result:
        """Return what `work` returns, which has a service while it runs.

        Raises:
            StoreError: the store cannot be used.
        """
        if self._held is not None:
            return self._held.runner.run(self._run(self._held, work, role))
        with self.stay_open():
            return self.run(work, role)

    @contextmanager
    def stay_open(self) -> Generator[None]:
        """Keep the store and the downstream servers open, with their state, between what is read and run in the block.

        All of it shares one event loop, which does nothing in between: while a person thinks, no engine runs here, and
        no lease or transaction is held.
        """
        if self._held is not None:
            yield
            return
        with asyncio.Runner() as runner:
            self._held = held = _HeldOpen(runner)
            try:
                yield
            finally:
                self._held = None
                runner.run(held.close())

    async def _run(
        self, held: "_HeldOpen", work: "Callable[[Service], Coroutine[Any, Any, Result]]", role: "Role"
    ) -> Result:
        duties, observer = runtime.DUTIES[role], None
        store = await self._find_store(held, creates=duties.has_engine)
        if duties.has_servers:
            await self.open_servers(store, held.enter)
        if duties.has_engine:
            observer = observers.build_observer(self.settings.observation, self.settings.model)
        async with runtime.open_runtime(self, role, store=store, observer=observer) as service:
            return await work(service)

    async def _read(self, held: "_HeldOpen", work: Callable[[Lookups], Coroutine[Any, Any, Result]]) -> Result:
        return await work(await self._find_store(held, creates=False))

    async def _find_store(self, held: "_HeldOpen", *, creates: bool) -> "CompleteStore":
        if held.store is None:
            if not (creates or self.settings.store.is_made):
                return memory.MemoryStore()
            held.store = await held.enter(open_store(self.settings.store))
        return held.store

    async def find_id(self, store: Lookups, kind: Literal["suspension", "thread"], beginning: str) -> str:
        """Return the id of that kind that begins so; the text itself where it is a whole id, or nothing begins so.

        Raises:
            UsageError: several ids begin so, or it is an id of another kind.
        """
        found = await store.find_ids(beginning, CANDIDATES + 1) if beginning else ()
        ids = [entry.id for entry in found if entry.kind == kind]
        if beginning in ids or len(ids) == 1:
            return beginning if beginning in ids else ids[0]
        if ids:
            shown = ", ".join(map(escape_text, ids[:CANDIDATES])) + (", …" if len(ids) > CANDIDATES else "")
            raise UsageError(f"several ids begin with {beginning[:64]!r}: {shown}; write more of the one that you mean")
        for entry in found:
            where = {"thread": "a thread", "execution": "an execution", "suspension": "a question"}[entry.kind]
            wanted = "this command wants a thread" if kind == "thread" else "this command wants a question"
            raise UsageError(
                f"{entry.id!r} is the id of {where}, and {wanted}; its thread is {entry.thread_id!r}: "
                f"`{escape_text(self.command('show', entry.thread_id))}`"
            )
        return beginning

    async def find_thread(self, store: Lookups, beginning: str, advice: str) -> tuple[Header, ...]:
        """Return the executions of the thread whose id begins so, oldest first.

        Raises:
            UnknownThread: there is none; `advice` ends the sentence.
            UsageError: as for `find_id`.
        """
        thread_id = await self.find_id(store, "thread", beginning)
        headers = await store.thread(thread_id)
        if not headers:
            raise UnknownThread(f"there is no thread {thread_id[:64]!r}; {advice}")
        return headers

    async def find_suspension(self, store: Lookups, beginning: str) -> SuspensionRow:
        """Return the row of the suspension whose id begins so, whose owner may be any principal.

        Raises:
            UnknownSuspension: there is no suspension with that id.
            UsageError: as for `find_id`.
        """
        suspension_id = await self.find_id(store, "suspension", beginning)
        row = await store.find_suspension(suspension_id)
        if row is None:
            raise UnknownSuspension(
                f"there is no suspension {suspension_id[:64]!r}; `{self.command('list')}` shows the open ones"
            )
        return row


class DefinitionsOnDemand(msgspec.Struct, frozen=True):
    """Implements the `Definitions` port, and loads the operator's tools when one of them is looked up."""

    home: Home

    def get(self, name: str) -> ToolDefinition | None:
        # Most questions come from these, and no other tool may have their names.
        if name in human.ASKING_TOOLS and name not in self.home.settings.tools:
            return human.ASKING_TOOLS[name].definition
        return self.home.tools.get(name)


class _HeldOpen:
    """The event loop of a command, and what stays open on it: in one task, because task groups require that."""

    def __init__(self, runner: "asyncio.Runner") -> None:
        self.runner = runner
        self.store: CompleteStore | None = None
        self._wishes: asyncio.Queue[tuple[AbstractAsyncContextManager[Any], asyncio.Future[Any]] | None]
        self._wishes = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, context: AbstractAsyncContextManager[Result]) -> Result:
        """Return what the context yields, which is open until `close`."""
        if self._task is None:
            self._task = asyncio.create_task(self._hold())
        entered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._wishes.put_nowait((context, entered))
        await asyncio.wait((entered, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            # What was open has failed, and says why.
            await self._task
        return entered.result()

    async def _hold(self) -> None:
        async with AsyncExitStack() as stack:
            while (wish := await self._wishes.get()) is not None:
                context, entered = wish
                try:
                    entered.set_result(await stack.enter_async_context(context))
                except PlanwardenError as error:
                    entered.set_exception(error)

    async def close(self) -> None:
        """Close what was entered, in the reverse order."""
        if self._task is not None:
            self._wishes.put_nowait(None)
            await self._task


def _finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("what reads a file waits for nothing")
