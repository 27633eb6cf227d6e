"""Builds the catalogue from built-in tools, an embedding program, the operator's files, packages and MCP servers.

Each tool gets the operator's settings before it is registered, so that its digest covers them.
"""

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.agent.core.prompts import DELEGATE
from planwarden.server.settings.configuration import Settings, build_home_option
from planwarden.tools.base import Tool, as_tool, find_tools
from planwarden.tools.builtin.tools import list_builtin_tools
from planwarden.tools.registry import Registry

# Imported only when servers are configured or a warden opens, because planwarden gives its first answer without it.
if TYPE_CHECKING:
    from planwarden.tools.downstream.servers import DownstreamServers

GROUP = "planwarden.tools"
"""The group of entry points through which installed packages add tools."""


def build_registry(settings: Settings, extra: Iterable[object] = ()) -> Registry:
    """Return a registry of all tools except downstream ones, with the operator's settings applied.

    Raises:
        UsageError: a file or entry point cannot be loaded, a name is taken, or a setting names an unknown tool.
    """
    tools = [
        *list_builtin_tools(settings.environment),
        *map(as_tool, extra),
        *_load_files(settings.python_files),
        *_load_entry_points(),
    ]
    registry = Registry(Tool(settings.apply_to(t.definition), t.call, t.resume, t.question) for t in tools)
    # The tools of a downstream server are unknown until the server has listed them.
    slugs = tuple(f"{config.slug}_" for config in settings.servers.configs)
    tool_names = {name for name in settings.tools if not name.startswith(slugs)}
    if any(config.settings.agent for config in settings.servers.configs):
        tool_names.discard(DELEGATE)
    names = sorted(tool.definition.name for tool in tools)
    # A name such as SERVER_TOOL may be a tool of a gate that has not run yet, unless it looks like a misspelling.
    unknown = sorted(name for name in tool_names - {*names} if "_" not in name or did_you_mean(name, names))
    if unknown:
        raise InvalidArguments(
            f"planwarden.toml has settings for tools that do not exist: {', '.join(map(repr, unknown))}"
            f"{did_you_mean(unknown[0], names)}; "
            f"correct the name or remove them; the tools are: {', '.join(names[:40])}{' …' if len(names) > 40 else ''}"
        )
    return registry


def build_downstream(settings: Settings, registry: Registry) -> "DownstreamServers":
    """Return the configured downstream servers, and register their known tools."""
    from planwarden.tools.downstream.servers import DownstreamServers

    downstream = DownstreamServers(
        settings.servers.configs,
        registry,
        home=settings.home,
        apply_settings=settings.apply_to,
        program=partial(build_command_prefix, settings),
    )
    if any(config.settings.agent for config in settings.servers.configs):
        from planwarden.tools.delegate.delegation import DelegationTool

        downstream.agents = delegation = DelegationTool(downstream)
        tool = delegation.tool()
        registry.add(Tool(settings.apply_to(tool.definition), tool.call, tool.resume))
    return downstream


def build_command_prefix(settings: Settings) -> tuple[str, ...]:
    """Return the words that begin a command for this home, this store and these servers."""
    return ("planwarden", *build_home_option(settings.home), *settings.other_options)


def _load_files(paths: Iterable[Path]) -> Iterator[Tool]:
    for path in paths:
        tools = find_tools(vars(_load(path)))
        if not tools:
            raise UsageError(f"{str(path)!r} defines no tool; decorate a function with @planwarden.tool")
        yield from tools


class _SourceLoader(SourceFileLoader):
    """Ignores bytecode: after an edit of the same length within one second, Python would run the old code."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _load(path: Path) -> ModuleType:
    name = f"planwarden_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, str(path)))
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"there is no Python file {str(path)!r} (named in [tools] python)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except PlanwardenError:
        raise
    # The operator's file may raise anything, or exit as a script does; the message must name the file.
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise UsageError(f"{str(path)!r} could not be loaded: {type(error).__name__}: {error}{where}") from error
    return module


def _load_entry_points() -> Iterator[Tool]:
    for entry in entry_points(group=GROUP):
        try:
            loaded = entry.load()
        # The package may raise anything, or exit; the message must name the entry point.
        except (Exception, SystemExit) as error:
            raise UsageError(f"entry point {entry.value!r} could not be loaded: {error}") from error
        tools = find_tools(vars(loaded)) if isinstance(loaded, ModuleType) else [as_tool(loaded)]
        for tool in tools:
            source = entry.dist.name if entry.dist is not None else entry.name
            yield Tool(replace(tool.definition, source=source, digest=""), tool.call, tool.resume, tool.question)
