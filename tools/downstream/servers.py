"""All downstream MCP servers of one process: their tools in the catalogue, their health, their beginning and their end.

The tools are known from the last listing before any server runs. A server is started by the first call, or by whoever
asks for tools of a server that was never listed. What it then lists takes the place of what was known. A server that
is down makes its own tools unavailable, with the reason, and no others.
"""

import logging
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import anyio
from anyio.abc import TaskGroup
from pydantic import JsonValue

from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.watchers import Commit
from planwarden.tools.base import Tool, define
from planwarden.tools.downstream.agents import Agents, DelegatingEngine
from planwarden.tools.downstream.call import DownstreamCall, OnProgress, log_progress
from planwarden.tools.downstream.config import LoginLocation, ServerConfig
from planwarden.tools.downstream.connection import ConnectionTiming, ServerConnection
from planwarden.tools.downstream.exchange import Around, Ended, ObservedRequest, unobserved
from planwarden.tools.downstream.listing_cache import ListingCache, file_stem
from planwarden.tools.downstream.tools import offer
from planwarden.tools.downstream.transports.log import ServerLog
from planwarden.tools.registry import Registry

logger = logging.getLogger(__name__)

FOLDER = "downstream"
LISTING_WAIT_S = 15.0
"""How long somebody who looks for tools waits for servers that were never listed."""

REASON_S = 5.0

Health = Literal["ready", "starting", "idle", "down", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHealth:
    """How one server is doing."""

    name: str
    health: Health
    """`idle` is not started, which is no fault: the first call starts it."""
    tools: int
    """Known, from its listing or from the last one."""
    trusted: bool
    reason: str | None = None
    """Why it is down, or what was left out of its listing."""
    log: str | None = None
    """The file with what it wrote to its standard error."""


class DownstreamServers:
    """The servers and their part of a registry. The tools are there at once; calls need it entered with `async with`.

    It can be entered again after it was left; each time the servers begin anew.
    """

    def __init__(
        self,
        configs: Iterable[ServerConfig],
        registry: Registry,
        *,
        home: Path | None = None,
        applied: Callable[[ToolDefinition], ToolDefinition] = lambda definition: definition,
        on_progress: OnProgress = log_progress,
        pace: ConnectionTiming | None = None,
        program: Sequence[str] = ("planwarden",),
    ) -> None:
        """`home` keeps listings, logs and logins; `applied` puts the operator's settings on a definition.

        `program` is how a command line begins that works on this home.
        """
        self.configs = tuple(configs)
        self._registry = registry
        self._applied = applied
        self._on_progress = on_progress
        self.around: Around = unobserved
        """Entered around each request of a tool's call."""
        self._pace = pace or ConnectionTiming()
        self._program = tuple(program)
        self._folder = None if home is None else home / FOLDER
        self._cache = ListingCache(self._folder)
        self._taken = frozenset(definition.name for definition in registry.definitions())
        self._links = {config.name: self._link(config) for config in self.configs}
        self._notes: dict[str, tuple[str, ...]] = {}
        self._known: set[str] = set()
        """Servers whose tools are in the catalogue, from a listing of now or of before."""
        self._settled = anyio.Event()
        """Set and replaced whenever a link changes."""
        self._tasks: TaskGroup | None = None
        self._agents: Agents | None = None
        self._following: anyio.CancelScope | None = None
        for config in self.configs:
            listing = None if config.is_disabled else self._cache.load(config)
            if listing is not None:
                self._put(config, listing)
            if config.problem is not None:
                self._registry.mark_group(config.name, config.problem)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        for config in self.configs:
            link = self._links[config.name]
            link.reset()
            if _can_start(config):
                self._tasks.start_soon(link.run)
                if config.settings.start == "eager":
                    link.want()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End every server; each gets a moment to end by itself."""
        assert self._tasks is not None
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel()
        # What the body raised is the body's own; a task group would wrap it in a group.
        if isinstance(error, Exception):
            await tasks.__aexit__(None, None, None)
        else:
            await tasks.__aexit__(kind, error, traceback)

    @property
    def is_open(self) -> bool:
        """It was entered and not left."""
        return self._tasks is not None

    def link(self, server: str) -> ServerConnection:
        """The connection to the named server."""
        return self._links[server]

    def heard(self, commit: Commit | None) -> None:
        """End the calls of a finished execution that wait for an answer which will not come any more."""
        if commit is None or not commit.execution.is_finished:
            return
        execution = commit.execution
        for link in self._links.values():
            link.talks.drop(execution.execution_id)
        if self._agents is not None and self._tasks is not None and self._agents.has_children(execution):
            self._tasks.start_soon(self._agents.cancel, execution)

    def add_agents(self, agents: Agents) -> None:
        """The tool that hands goals to those of the servers that are agents."""
        self._agents = agents
        agents.over(self.link, self._schema_of)

    def follow(self, executions: DelegatingEngine) -> None:
        """Look after what agents ask for these executions, and for no others any more, until `unfollow`."""
        self.unfollow()
        if self._agents is not None and self._tasks is not None:
            self._following = anyio.CancelScope()
            self._tasks.start_soon(_within, self._following, self._agents, executions)

    def unfollow(self) -> None:
        """Look after nobody's executions: their engine is about to close."""
        if self._following is not None:
            self._following.cancel()
            self._following = None

    def _schema_of(self, server: str, told_name: str) -> dict[str, JsonValue] | None:
        """How the arguments of a server's own tool look; None when it is not known."""
        config = self._links[server].config
        known = self._registry.get(f"{config.slug}_{told_name}")
        return known.input_schema if known is not None and known.source == server else None

    def owns(self, name: str) -> bool:
        """True when a tool of that name could only come from one of the servers."""
        return self._server_of(name) is not None

    def why_not(self, name: str) -> str | None:
        """Why the tool of that name, known or not, cannot be called now; None when no server of ours stands in the way."""
        server = self._server_of(name)
        known = self._registry.get(name)
        if server is None or (known is not None and (known.source != server or not known.unavailable)):
            return None
        link = self._links[server]
        if link.config.is_disabled:
            return f"server {server!r} is disabled" + (f": {link.config.problem}" if link.config.problem else "")
        if link.state == "down" or link.config.problem is not None:
            return f"server {server!r} is down: {link.reason}"
        return f"server {server!r} is starting" if server in self.unlisted else None

    async def settle(self, names: Iterable[str]) -> None:
        """Wait, bounded, until the servers that the named tools would come from were listed at least once.

        Names of known tools are not waited for.
        """
        servers = {self._server_of(name) for name in names if self._registry.get(name) is None}
        await self._listed(config for config in self.configs if config.name in servers)

    async def settle_all(self) -> None:
        """Wait, bounded, until every server was listed at least once, now or before."""
        await self._listed(self.configs)

    async def start_all(self) -> None:
        """Start every server and wait, bounded by each one's time to start, until it runs or is down."""

        async def start(link: ServerConnection) -> None:
            try:
                # A little longer than the start itself may take, so that its own reason is heard.
                await link.session(link.config.settings.start_timeout_s + REASON_S)
            except ToolError as error:
                logger.debug("%s", error.message)

        async with anyio.create_task_group() as tasks:
            for config in self.configs:
                if _can_start(config) and self._tasks is not None:
                    tasks.start_soon(start, self._links[config.name])

    def _exchanging(self, exchange: ObservedRequest) -> AbstractContextManager[Ended]:
        return self.around(exchange)

    def health(self) -> tuple[ServerHealth, ...]:
        """Of every server, in the order of the configuration."""
        return tuple(self._health(config) for config in self.configs)

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Servers that could run and were never listed."""
        return tuple(c.name for c in self.configs if _can_start(c) and c.name not in self._known)

    def listed(self, link: ServerConnection, tools: list[JsonValue], note: str | None) -> None:
        self._put(link.config, tools, note)
        self._cache.save(link.config, tools)

    def changed(self, link: ServerConnection) -> None:
        if link.state == "ready":
            self._registry.mark_group(link.config.name, None)
        elif link.state == "down":
            self._registry.mark_group(link.config.name, link.reason)
        settled, self._settled = self._settled, anyio.Event()
        settled.set()

    async def _listed(self, configs: Iterable[ServerConfig]) -> None:
        waiting = [self._links[c.name] for c in configs if _can_start(c) and c.name not in self._known]
        if not waiting or self._tasks is None:
            return
        for link in waiting:
            link.want()
        with anyio.move_on_after(LISTING_WAIT_S):
            while any(link.state in ("idle", "starting") for link in waiting):
                await self._settled.wait()

    def _put(self, config: ServerConfig, listing: list[JsonValue], note: str | None = None) -> None:
        """The listing's tools into the catalogue; what is not usable is noted."""
        made = offer(config, listing, taken=self._taken, slugs=tuple(other.slug for other in self.configs))
        link = self._links[config.name]
        notes = [*([note] if note else []), *made.notes]
        tools: dict[str, Tool] = {}
        for found in made.tools:
            definition = define(self._applied(found.definition))
            other = self._registry.get(definition.name)
            # Only servers that take pains to meet get here; whoever came first keeps the name.
            if definition.name in tools or (other is not None and other.source != config.name):
                notes.append(f"tool {definition.name!r} was left out: the name is taken")
                continue
            if config.problem is None and link.state == "down":
                definition = replace(definition, unavailable=link.reason)
            call = DownstreamCall(link, found, definition, self._registry.get, self._on_progress, self._exchanging)
            tools[definition.name] = Tool(definition, call, call.resume)
        self._registry.replace_group(config.name, tools.values())
        self._known.add(config.name)
        if tuple(notes) != self._notes.get(config.name, ()):
            for text in notes[:10]:
                logger.warning("server %r: %s", config.name, text)
        self._notes[config.name] = tuple(notes)

    def _link(self, config: ServerConfig) -> ServerConnection:
        path = None if self._folder is None else self._folder / f"{file_stem(config)}.log"
        return ServerConnection(config, self, ServerLog(path), self._pace, self.login_place(config))

    def login_place(self, config: ServerConfig) -> LoginLocation | None:
        """Where a person's login to the server is kept; None without a home, and for a local server."""
        if self._folder is None or config.is_local:
            return None
        command = shlex.join([*self._program, "login", config.name])
        return LoginLocation(path=self._folder / f"{file_stem(config)}.login", command=command)

    def _server_of(self, name: str) -> str | None:
        """The server whose names begin like this; of several the one with the longest name."""
        fitting = [config for config in self.configs if name.casefold().startswith(f"{config.slug}_".casefold())]
        return max(fitting, key=lambda config: len(config.slug)).name if fitting else None

    def _health(self, config: ServerConfig) -> ServerHealth:
        link = self._links[config.name]
        health: Health = "disabled" if config.is_disabled else "down" if config.problem else _health_of(link)
        notes = self._notes.get(config.name, ())
        reason = link.reason if health == "down" else config.problem
        if notes and reason is None:
            reason = notes[0] if len(notes) == 1 else f"{notes[0]} (and {len(notes) - 1} more)"
        path = link.log.path
        return ServerHealth(
            name=config.name,
            health=health,
            tools=sum(1 for known in self._registry.definitions() if known.source == config.name),
            trusted=config.settings.trusted,
            reason=reason,
            log=str(path) if path is not None and path.exists() else None,
        )


async def _within(
    scope: anyio.CancelScope,
    agents: Agents,
    executions: DelegatingEngine,
) -> None:
    with scope:
        await agents.watch(executions)


def _can_start(config: ServerConfig) -> bool:
    return not config.is_disabled and config.problem is None


def _health_of(link: ServerConnection) -> Health:
    return "idle" if link.state == "closed" else link.state
