"""How each host of MCP servers writes planwarden down: the document to paste, and where it goes.

Sources, read in November 2026: https://modelcontextprotocol.io/docs/develop/connect-local-servers (Claude Desktop),
https://code.claude.com/docs/en/mcp, https://code.visualstudio.com/docs/agents/reference/mcp-configuration,
https://cursor.com/docs/mcp, https://zed.dev/docs/ai/mcp (without `source`, which https://github.com/zed-industries/zed/pull/62818
calls dropped), https://developers.openai.com/codex/mcp,
https://geminicli.com/docs/tools/mcp-server, https://goose-docs.ai/docs/guides/config-files,
https://opencode.ai/docs/mcp-servers (version 2 reads this form too: https://opencode.ai/docs/migrate-v1),
https://www.jetbrains.com/help/ai-assistant/mcp.html.
"""

import json
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

NAME = "planwarden"
STARTUP_S = 60
"""Codex waits 10 s for a server; the first start of `uvx` downloads."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How a host starts the server."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class HostGuide:
    """One host."""

    where: str
    """The file, or the place in its settings."""
    write: Callable[[LaunchCommand], str]


def launch(env: Mapping[str, str]) -> LaunchCommand:
    """`uvx planwarden`, or this very installation when it runs from an environment that will still be there."""
    prefix = Path(sys.prefix)
    if sys.prefix == sys.base_prefix or _is_passing(prefix):
        return LaunchCommand("uvx", (NAME,), env)
    suffix = ".exe" if sys.platform == "win32" else ""
    script = Path(sysconfig.get_path("scripts")) / f"{NAME}{suffix}"
    if script.exists():
        return LaunchCommand(str(script), (), env)
    return LaunchCommand(sys.executable, ("-m", "planwarden.server.main"), env)


def _is_passing(prefix: Path) -> bool:
    """True for an environment in uv's cache, which `uvx` made and may sweep away."""
    return re.search(r"[\\/](archive|environments|builds)-v\d+[\\/]", f"{prefix}/") is not None


def _mcp_servers(launch: LaunchCommand) -> str:
    return _json({"mcpServers": {NAME: _stdio(launch)}})


def _typed_mcp_servers(launch: LaunchCommand) -> str:
    return _json({"mcpServers": {NAME: {"type": "stdio", **_stdio(launch)}}})


def _vscode(launch: LaunchCommand) -> str:
    return _json({"servers": {NAME: {"type": "stdio", **_stdio(launch)}}})


def _zed(launch: LaunchCommand) -> str:
    return _json({"context_servers": {NAME: {**_stdio(launch), "env": dict(launch.env)}}})


def _opencode(launch: LaunchCommand) -> str:
    server: dict[str, JsonValue] = {"type": "local", "command": [launch.command, *launch.args], "enabled": True}
    if launch.env:
        server["environment"] = dict(launch.env)
    return _json({"$schema": "https://opencode.ai/config.json", "mcp": {NAME: server}})


def _codex(launch: LaunchCommand) -> str:
    lines = [
        f"[mcp_servers.{NAME}]",
        f"command = {_quoted(launch.command)}",
        f"args = [{', '.join(map(_quoted, launch.args))}]",
        f"startup_timeout_sec = {STARTUP_S}",
    ]
    if launch.env:
        lines += ["", f"[mcp_servers.{NAME}.env]", *(f"{name} = {_quoted(text)}" for name, text in launch.env.items())]
    return "\n".join(lines)


def _goose(launch: LaunchCommand) -> str:
    args = ", ".join(map(_quoted, launch.args))
    env = ", ".join(f"{name}: {_quoted(text)}" for name, text in launch.env.items())
    return "\n".join(
        [
            "extensions:",
            f"  {NAME}:",
            "    type: stdio",
            f"    name: {NAME}",
            "    enabled: true",
            f"    cmd: {_quoted(launch.command)}",
            f"    args: [{args}]",
            "    env_keys: []",
            f"    envs: {{{env}}}",
            "    timeout: 300",
        ]
    )


def _stdio(launch: LaunchCommand) -> dict[str, JsonValue]:
    server: dict[str, JsonValue] = {"command": launch.command, "args": list(launch.args)}
    if launch.env:
        server["env"] = dict(launch.env)
    return server


def _json(document: JsonValue) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def _quoted(text: str) -> str:
    """A string as TOML and YAML both read it: JSON's escapes are a part of either's."""
    return json.dumps(text, ensure_ascii=False)


CLIENTS: dict[str, HostGuide] = {
    "claude-desktop": HostGuide("claude_desktop_config.json (Settings > Developer > Edit Config)", _mcp_servers),
    "claude-code": HostGuide(".mcp.json in the project", _typed_mcp_servers),
    "vscode": HostGuide(".vscode/mcp.json in the project, or `MCP: Open User Configuration`", _vscode),
    "cursor": HostGuide("~/.cursor/mcp.json, or .cursor/mcp.json in the project", _typed_mcp_servers),
    "zed": HostGuide("settings.json (`zed: open settings file`)", _zed),
    "codex": HostGuide("~/.codex/config.toml, or .codex/config.toml in a trusted project", _codex),
    "gemini": HostGuide("~/.gemini/settings.json, or .gemini/settings.json in the project", _mcp_servers),
    "goose": HostGuide(
        "~/.config/goose/config.yaml, or %APPDATA%\\Block\\goose\\config\\config.yaml on Windows", _goose
    ),
    "opencode": HostGuide("opencode.json in the project, or ~/.config/opencode/opencode.json", _opencode),
    "jetbrains": HostGuide(
        "Settings > Tools > AI Assistant > Model Context Protocol (MCP) > Add > As JSON", _mcp_servers
    ),
}
