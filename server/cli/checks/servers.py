"""The checks of `doctor` about downstream servers: their file, whether they start, and which calls ask a person."""

import shlex
from collections.abc import Iterator, Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError, count_of
from planwarden.agent.core.tool import ToolDefinition
from planwarden.server.cli.checks.report import HealthCheck
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.settings.catalogue import build_command_prefix, build_downstream, build_registry
from planwarden.server.settings.configuration import SERVERS_FILE, Settings
from planwarden.server.settings.secrets import open_secrets
from planwarden.tools.downstream.listing import says_it_only_reads
from planwarden.tools.downstream.servers import ServerHealth
from planwarden.tools.registry import Registry


def check_downstream(settings: Settings, *, needs: str | None, has_home: bool) -> Iterator[HealthCheck]:
    """Yield a check for the file and for each server in it, or a single check that says why nothing was checked."""
    path, servers = settings.servers_file, settings.servers
    if needs is not None or not has_home:
        # Servers keep listings and logs in the home, which doctor does not create.
        text = f"not checked, because {needs or 'there is no home'}"
        yield HealthCheck("downstream", "off", text)
        return
    if path is None or not (path.exists() or servers.notes):
        yield HealthCheck("downstream", "off", f"no {SERVERS_FILE}; no downstream MCP servers")
        return
    facts: dict[str, JsonValue] = {"file": str(path), "notes": list(servers.notes)}
    count = count_of(len(servers.configs), "downstream server")
    text = "; ".join([f"{path}: {count}", *servers.notes])
    yield HealthCheck("downstream", "warning" if servers.notes else "ok", text, facts)
    if servers.configs:
        prefix = build_command_prefix(settings)
        try:
            registry = build_registry(settings)
            states = anyio.run(_start_servers, settings, registry)
        except PlanwardenError as error:
            yield HealthCheck("servers", "broken", error.message)
            return
        definitions = registry.definitions()
        for server in states:
            own = [definition for definition in definitions if definition.source == server.name]
            yield _check_server(server, own, shlex.join([*prefix, "trust", server.name]))


async def _start_servers(settings: Settings, registry: Registry) -> tuple[ServerHealth, ...]:
    downstream = build_downstream(settings, registry)
    async with open_secrets(settings) as downstream.secrets, downstream:
        await downstream.start_all()
        return downstream.health()


def _check_server(server: ServerHealth, tools: Sequence[ToolDefinition], trust_command: str) -> HealthCheck:
    asking = [tool for tool in tools if tool.risk != "read"]
    reading = [tool for tool in asking if says_it_only_reads(tool)]
    facts: dict[str, JsonValue] = {
        "health": server.health,
        "tools": server.tools,
        "asking": len(asking),
        "asksAlthoughItOnlyReads": len(reading),
        "trusted": server.trusted,
        "log": server.log,
    }
    name = f"server {one_line(server.name, 48)}"
    if server.health == "disabled":
        return HealthCheck(name, "off", f"disabled: {server.reason}" if server.reason else "disabled", facts)
    if server.health != "ready":
        log = f"; its log is {server.log}" if server.log else ""
        return HealthCheck(name, "broken", f"down: {server.reason or 'it did not start in time'}{log}", facts)
    parts = [f"{server.tools} tools", *(["trusted: its hints may lower risks"] if server.trusted else [])]
    if tools and len(asking) == len(tools):
        parts.append("asks a person before every call")
    elif asking:
        parts.append(f"calls of {len(asking)} ask a person")
    if reading:
        parts.append(f"it claims that {len(reading)} tools only read: `{trust_command}` lets them run without asking")
    text = "; ".join([*parts, *([server.reason] if server.reason else [])])
    return HealthCheck(name, "warning" if server.reason else "ok", text, facts)
