"""What a command works with that only reads: the settings and tools of the operator's home, and what its store says.

It imports no engine. `planwarden.server.cli.context` is for commands that start executions or decide.
"""

import shlex
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec

from planwarden.agent.common.errors import UnknownSuspension, UsageError
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import Lookups, SuspensionRow
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.terminal.commands import shorten
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.facts import escape_text
from planwarden.server.views.suspension import name_program
from planwarden.storage.opening import open_at_once, open_lookups

# The operator's files run, and their schemas are made, for commands that show something of a tool.
if TYPE_CHECKING:
    from planwarden.tools.registry import Registry

Result = TypeVar("Result")

CANDIDATES = 5
"""Ids that are named where several begin as the user wrote."""


class ReadingContext(msgspec.Struct, frozen=True):
    """Settings and tools of one command."""

    settings: Settings
    load_tools: "Callable[[], Registry]"
    """Returns the same tools each time. Raises `UsageError` when one is not usable."""
    has_home_option: bool = False
    """The user gave --home, so a command line that planwarden prints needs it too."""
    mcp_config: Path | None = None
    """The value of --mcp-config, which a printed command line needs too."""
    store: str | None = None
    """The value of --store, as well."""

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> Self:
        """Raises `UsageError` when what `arguments` or the settings' files say is not usable."""
        return cls._build(
            read_settings(arguments),
            has_home_option=arguments.home is not None,
            mcp_config=arguments.mcp_config,
            store=arguments.store,
        )

    @classmethod
    def _build(
        cls, settings: Settings, *, has_home_option: bool, mcp_config: Path | None = None, store: str | None = None
    ) -> Self:
        load_tools = cache(partial(_load_tools, settings))
        return cls(settings, load_tools, has_home_option=has_home_option, mcp_config=mcp_config, store=store)

    @property
    def tools(self) -> "Registry":
        """All tools that are known without starting a server. Raises `UsageError` when one is not usable."""
        return self.load_tools()

    @property
    def definitions(self) -> "DefinitionsOnDemand":
        """What the tools say of themselves. Looking one up raises as `tools` does."""
        return DefinitionsOnDemand(self)

    def program(self) -> str:
        """Return what a command line on this home begins with."""
        home = ("--home", str(self.settings.home)) if self.has_home_option else ()
        servers = ("--mcp-config", str(self.mcp_config)) if self.mcp_config is not None else ()
        # Not the password of the URL: what is printed may be copied anywhere.
        store = ("--store", self.settings.store.safe_url) if self.store is not None else ()
        return shlex.join([name_program(), *home, *store, *servers])

    def command(self, *words: str) -> str:
        """Return a command line that works on this home, for people to copy; ids in it are short."""
        # The value of an option, such as a cursor, may look like an id and has to be whole.
        pairs = zip(("", *words), words, strict=False)
        short = [word if before.startswith("--") else shorten(word) for before, word in pairs]
        return f"{self.program()} {shlex.join(short)}"

    def read(self, work: Callable[[Lookups], Coroutine[Any, Any, Result]]) -> Result:
        """Returns what `work` finds in the store. Where nothing has to be waited for, no event loop is made."""
        if self.settings.store.is_made:
            found = open_at_once(self.settings.store)
        else:
            from planwarden.storage.sqlite.memory import MemoryStore

            found = MemoryStore()
        if found is None:
            import asyncio

            return asyncio.run(self._read_waiting(work))
        try:
            return _finish(work(found))
        finally:
            _finish(found.close())

    async def _read_waiting(self, work: Callable[[Lookups], Coroutine[Any, Any, Result]]) -> Result:
        async with self.open_lookups() as store:
            return await work(store)

    @asynccontextmanager
    async def open_lookups(self) -> AsyncGenerator[Lookups]:
        """Opens the store to read from it. It creates no database."""
        async with AsyncExitStack() as stack:
            if self.settings.store.is_made:
                yield await stack.enter_async_context(open_lookups(self.settings.store))
            else:
                from planwarden.storage.sqlite.memory import MemoryStore

                yield MemoryStore()

    async def find_id(self, store: Lookups, kind: Literal["suspension", "thread"], beginning: str) -> str:
        """Returns the id of that kind that begins so; the text itself where it is a whole id, or nothing begins so.

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

    async def find_suspension(self, store: Lookups, beginning: str) -> SuspensionRow:
        """Returns the row of the suspension whose id begins so, whose owner may be any principal.

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

    context: ReadingContext

    def get(self, name: str) -> ToolDefinition | None:
        # Most questions come from these, and no other tool may have their names.
        from planwarden.tools.builtin.human import ASKING_TOOLS

        if name in ASKING_TOOLS and name not in self.context.settings.tools:
            return ASKING_TOOLS[name].definition
        return self.context.tools.get(name)


def _load_tools(settings: Settings) -> "Registry":
    from planwarden.server.settings.catalogue import build_downstream, build_registry

    tools = build_registry(settings)
    if settings.servers.configs:
        build_downstream(settings, tools)
    return tools


def _finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("what reads a file waits for nothing")
