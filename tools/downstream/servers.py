"""All downstream MCP servers of one process: their tools in the catalogue, their health, their start and their end.

Before a server runs, its tools are known from its last listing. A server starts when one of its tools is called, or
when a plan needs a tool that is not in that listing. A server that has never listed its tools also starts at the first
search. Each listing replaces the one before. While a server is down, only its tools are unavailable, and each says why.
"""

import logging
import shlex
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, ToolError
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.common.task_groups import cancel_tasks
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.environment import SecretStore
from planwarden.agent.ports.watchers import Commit
from planwarden.tools.base import Tool, define
from planwarden.tools.downstream.call import DownstreamCall
from planwarden.tools.downstream.child_process import ServerLog
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.listing import (
    FOLDER,
    DownstreamTool,
    build_tools,
    file_stem,
    load_listing,
    save_listing,
)
from planwarden.tools.registry import Registry

if TYPE_CHECKING:
    from planwarden.agent.runtime.engine import Engine

logger = logging.getLogger(__name__)

LISTING_WAIT_S = 30.0
"""How long a plan or a search waits for servers to list their tools."""
REASON_S = 5.0
"""Seconds added to the time that a start may take, so that a failed start can still report its own reason."""


Health = Literal["ready", "starting", "idle", "down", "disabled"]


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is doing, as `tools` and `doctor` show it."""

    name: str
    health: Health
    """`idle` means that the server does not run, and starts when it is needed."""
    tools: int
    """Number of its tools in the catalogue."""
    trusted: bool
    reason: str | None
    """Why the server is down, or what was left out of its listing."""
    log: str | None
    """The file that holds the server's standard error."""


class Agents(Protocol):
    """The part of the delegation tool (`tools/delegate`) that follows executions."""

    async def cancel(self, execution: ExecutionState) -> None:
        """Tell every agent that works for this execution to stop."""
        ...

    async def watch(self, engine: "Engine") -> None:
        """Close each open suspension that an agent has settled elsewhere. Run until cancelled."""
        ...


class DownstreamServers:
    """The servers, and their tools in a registry. The tools are registered at once; calling them needs `async with`.

    After the end of `async with`, the object can be entered again, and its servers can start again.
    """

    def __init__(
        self,
        configs: Iterable[ServerConfig],
        registry: Registry,
        *,
        home: Path,
        apply_settings: Callable[[ToolDefinition], ToolDefinition] = lambda definition: definition,
        program: Callable[[], tuple[str, ...]] = lambda: ("planwarden",),
    ) -> None:
        """`home` is the folder for listings and logs; `apply_settings` adds the operator's settings to a definition.
        `program` returns the first words of a command line that works on this home.
        """
        self.configs = tuple(configs)
        self._registry = registry
        self._apply_settings = apply_settings
        self.secrets: SecretStore | None = None
        """The store of logins; set before the servers start."""
        self.agents: Agents | None = None
        """Set if any server is an agent."""
        self._program = program
        self._folder = home / FOLDER
        self._other_tools = frozenset(definition.name for definition in registry.definitions())
        """Names of the tools that come from no server."""
        self._connections = {config.name: self._build_connection(config) for config in self.configs}
        self._notes: dict[str, tuple[str, ...]] = {}
        self._listed: set[str] = set()
        """Servers whose tools are in the catalogue, whether this process or an earlier one received the listing."""
        self._listed_here: set[str] = set()
        """Servers that listed their tools to this process."""
        self._tasks: TaskGroup | None = None
        for config in self.configs:
            listing = None if config.is_disabled else load_listing(self._folder, config)
            if listing is not None:
                self._register_tools(config, *self._build_tools(config, listing))
            if config.problem is not None:
                self._registry.mark_group(config.name, config.problem)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._registry.listings = self
        for connection in self._connections.values():
            connection.reset()
            if connection.config.can_start:
                self._tasks.start_soon(connection.run)
                if connection.config.settings.start == "eager":
                    connection.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End every server; each gets a moment to end by itself."""
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        self._registry.listings = None
        await cancel_tasks(tasks, error)

    @property
    def is_open(self) -> bool:
        """True inside `async with`."""
        return self._tasks is not None

    def find_config(self, name: str) -> ServerConfig:
        """Return the configured server of that name. Raises `InvalidArguments` when there is none."""
        if name not in self._connections:
            names = ", ".join(map(repr, self._connections)) or "none; planwarden.json names them"
            hint = did_you_mean(name, self._connections)
            raise InvalidArguments(f"there is no server {name[:64]!r}{hint}; configured: {names}")
        return self._connections[name].config

    def connection(self, server: str) -> ServerConnection:
        """Return the connection to the named server."""
        return self._connections[server]

    async def load_saved_listing(self, config: ServerConfig) -> None:
        """Load the listing that another process saved for a server. This process may not know the server yet."""
        connection = self._connections.get(config.name)
        if connection is not None and connection.config.fingerprint != config.fingerprint:
            # In this process, the name belongs to another server.
            return
        if connection is None:
            connection = self._connections[config.name] = self._build_connection(config)
            self.configs = (*self.configs, config)
            if self._tasks is not None:
                self._tasks.start_soon(connection.run)
        listing = await anyio.to_thread.run_sync(load_listing, self._folder, config)
        if listing is not None:
            self._register_tools(config, *await anyio.to_thread.run_sync(self._build_tools, config, listing))

    def handle_commit(self, commit: Commit | None) -> None:
        """If the commit finished an execution, cancel its calls that still wait for an answer, and stop its agents."""
        if commit is not None and commit.execution.is_finished:
            for connection in self._connections.values():
                connection.calls.cancel_held(commit.execution.execution_id)
            if self.agents is not None and self._tasks is not None:
                self._tasks.start_soon(self.agents.cancel, commit.execution)

    def list_arguments(self, server: str, remote_name: str) -> frozenset[str]:
        """Return the argument names of a server's tool; an empty set when the server does not list the tool."""
        definition = self._registry.get(f"{self._connections[server].config.slug}_{remote_name}")
        if definition is None or definition.source != server:
            return frozenset()
        return frozenset(read_properties(definition.input_schema))

    def owns(self, name: str) -> bool:
        """Return whether the name belongs to one of the servers, that is, begins with its slug."""
        return self._server_of(name) is not None

    def unavailable_reason(self, name: str) -> str | None:
        """Return why a server makes the named tool unavailable now; None if no server does. The tool may be unknown."""
        server = self._server_of(name)
        definition = self._registry.get(name)
        if server is None or (definition is not None and (definition.source != server or not definition.unavailable)):
            return None
        connection = self._connections[server]
        config = connection.config
        if config.is_disabled:
            return f"server {server!r} is disabled" + (f": {config.problem}" if config.problem else "")
        if connection.state == "down" or config.problem is not None:
            return f"server {server!r} is down: {connection.reason}"
        return f"server {server!r} is starting" if server in self.never_listed_servers else None

    def may_still_be_listed(self, name: str) -> bool:
        """Return whether the name belongs to a server that has not listed its tools to this process but still may."""
        server = self._server_of(name)
        return server is not None and self._may_list(self._connections[server])

    def _may_list(self, connection: ServerConnection) -> bool:
        """Return whether the server can run, has not listed its tools to this process, and is not down."""
        is_waiting = connection.state in ("idle", "starting")
        return is_waiting and connection.config.can_start and connection.config.name not in self._listed_here

    async def wait_until_listed(self, names: Iterable[str]) -> None:
        """Wait until the servers of the named tools have listed their tools, for `LISTING_WAIT_S` at most.

        Known tools need no wait. An unknown tool may be newer than the cached listing, so its server lists again.
        """
        servers = {self._server_of(name) for name in names if self._registry.get(name) is None}
        await self._wait_for_listings(name for name in self._connections if name in servers)

    async def wait_until_all_listed(self) -> None:
        """Wait until every server has listed its tools at least once, for `LISTING_WAIT_S` at most."""
        await self._wait_for_listings(self.never_listed_servers)

    async def start_all(self) -> None:
        """Start every server, and wait until each runs or is down, or the time for its start is over."""

        async def start(connection: ServerConnection) -> None:
            with suppress(ToolError):
                await connection.connect(connection.config.settings.start_timeout_s + REASON_S)

        async with anyio.create_task_group() as tasks:
            for config in self.configs:
                if config.can_start and self._tasks is not None:
                    tasks.start_soon(start, self._connections[config.name])

    def health(self) -> tuple[ServerHealth, ...]:
        """Return how every server is doing, in the order of the configuration."""
        sources = [definition.source for definition in self._registry.definitions()]
        return tuple(
            self._describe_health(connection, sources.count(name)) for name, connection in self._connections.items()
        )

    def _describe_health(self, connection: ServerConnection, tools: int) -> ServerHealth:
        config, path, notes = connection.config, connection.log.path, self._notes.get(connection.config.name, ())
        health: Health = "idle" if connection.state == "closed" else connection.state
        if not config.can_start:
            health = "disabled" if config.is_disabled else "down"
        reason = connection.reason if health == "down" else config.problem
        if notes and reason is None:
            reason = notes[0] if len(notes) == 1 else f"{notes[0]} (and {len(notes) - 1} more)"
        log = str(path) if path.exists() else None
        is_trusted = config.settings.trusted
        return ServerHealth(name=config.name, health=health, tools=tools, trusted=is_trusted, reason=reason, log=log)

    @property
    def never_listed_servers(self) -> tuple[str, ...]:
        """Names of the servers that can start and have never listed their tools."""
        return tuple(config.name for config in self.configs if config.can_start and config.name not in self._listed)

    def login_location(self, config: ServerConfig) -> LoginLocation | None:
        """Return where a person's login to the server is kept; None for a local server."""
        if config.is_local:
            return None
        server = config.login_name or config.name
        name = f"{FOLDER}/{file_stem(server)}.login"
        command = shlex.join([*self._program(), "login", server])
        return LoginLocation(config=config, find_secrets=self._find_secrets, name=name, command=command)

    def _find_secrets(self) -> SecretStore:
        if self.secrets is None:
            raise ToolError("the store of logins is not open in this process")
        return self.secrets

    async def _handle_listing(self, connection: ServerConnection, tools: list[JsonValue], note: str | None) -> None:
        await self.register_listing(connection.config, tools, note)
        # This comes last, so that whatever waited for the listing finds the tools registered.
        self._listed_here.add(connection.config.name)

    async def register_listing(
        self, config: ServerConfig, tools: list[JsonValue], note: str | None = None
    ) -> list[DownstreamTool]:
        """Store the server's new listing in the catalogue and the home, and return the usable tools."""
        listed, notes = await anyio.to_thread.run_sync(self._build_tools, config, tools)
        names = self._register_tools(config, listed, [*([note] if note else []), *notes])
        await anyio.to_thread.run_sync(save_listing, self._folder, config, tools)
        return [tool for tool in listed if tool.definition.name in names]

    def _handle_state_change(self, connection: ServerConnection) -> None:
        if connection.state == "ready":
            self._registry.mark_group(connection.config.name, None)
        elif connection.state == "down":
            self._registry.mark_group(connection.config.name, connection.reason)

    async def _wait_for_listings(self, servers: Iterable[str]) -> None:
        waiting = [connection for name in servers if self._may_list(connection := self._connections[name])]
        if self._tasks is None or not waiting:
            return
        for connection in waiting:
            connection.start()
        with anyio.move_on_after(LISTING_WAIT_S):
            for connection in waiting:
                while self._may_list(connection):
                    await connection.state_changed.wait()

    def _build_tools(self, config: ServerConfig, listing: list[JsonValue]) -> tuple[list[DownstreamTool], list[str]]:
        """Return the listing's tools with the operator's settings, and notes on unusable ones. May run on a thread."""
        slugs = tuple(other.slug for other in self.configs)
        tools, notes = build_tools(config, listing, other_tools=self._other_tools, slugs=slugs)
        return [replace(tool, definition=define(self._apply_settings(tool.definition))) for tool in tools], notes

    def _register_tools(self, config: ServerConfig, listed: list[DownstreamTool], notes: list[str]) -> Collection[str]:
        """Put the tools into the catalogue and return their names; note what cannot be used."""
        connection = self._connections[config.name]
        tools: dict[str, Tool] = {}
        for tool in listed:
            definition = tool.definition
            other = self._registry.get(definition.name)
            # Names collide only if a server intends it. The first tool keeps the name.
            if definition.name in tools or (other is not None and other.source != config.name):
                notes.append(f"tool {definition.name!r} was left out: the name is taken")
                continue
            if config.problem is None and connection.state == "down":
                definition = replace(definition, unavailable=connection.reason)
            call = DownstreamCall(connection, tool, self._registry.get)
            tools[definition.name] = Tool(definition, call, call.resume, schema=tool.input)
        self._registry.replace_group(config.name, tools.values())
        self._listed.add(config.name)
        if tuple(notes) != self._notes.get(config.name, ()):
            for text in notes[:10]:
                logger.warning("server %r: %s", config.name, text)
        self._notes[config.name] = tuple(notes)
        return tools

    def _build_connection(self, config: ServerConfig) -> ServerConnection:
        return ServerConnection(
            config,
            self._handle_listing,
            self._handle_state_change,
            ServerLog(self._folder / f"{file_stem(config.name)}.log"),
            self.login_location(config),
        )

    def _server_of(self, name: str) -> str | None:
        """Return the server whose slug the name begins with; the one with the longest slug if several fit."""
        fitting = [config for config in self.configs if name.casefold().startswith(f"{config.slug}_".casefold())]
        return max(fitting, key=lambda config: len(config.slug)).name if fitting else None
