"""The configuration of each MCP host: the text to paste, the place where it goes, and changes to a host's own files.

`make_changes` shows changes, asks (except with --yes), and never replaces a file that has changed since it was read.

Sources, read in November 2026: https://modelcontextprotocol.io/docs/develop/connect-local-servers (Claude Desktop),
https://code.claude.com/docs/en/mcp, https://code.visualstudio.com/docs/agents/reference/mcp-configuration,
https://cursor.com/docs/mcp, https://zed.dev/docs/ai/mcp (without `source`, which was dropped according to
https://github.com/zed-industries/zed/pull/62818), https://developers.openai.com/codex/mcp,
https://geminicli.com/docs/tools/mcp-server, https://goose-docs.ai/docs/guides/config-files,
https://opencode.ai/docs/mcp-servers (version 2 reads this form too: https://opencode.ai/docs/migrate-v1),
https://www.jetbrains.com/help/ai-assistant/mcp.html.
"""

import difflib
import json
import os
import re
import shutil
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, StoreError, UsageError
from planwarden.agent.common.paths import expand_home, replace_file
from planwarden.server.cli.output import DONE, FAILED, print_json
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal
from planwarden.server.guard.json_text import read_text
from planwarden.server.settings.configuration import build_home_option

NAME = "planwarden"
STARTUP_S = 60
"""How many seconds Codex waits for a server. Its default is 10, but `uvx` downloads planwarden at the first start."""


class LaunchCommand(msgspec.Struct, frozen=True):
    """How a host starts the server."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class HostBlock(msgspec.Struct, frozen=True):
    """Where the configuration of a host goes, and the function that writes its text."""

    where: str
    """The file, or the place in the settings of the host."""
    write: Callable[[LaunchCommand], str]


def find_launch_command() -> tuple[str, ...]:
    """Return the command of this installation if its environment is permanent, otherwise `uvx planwarden`."""
    # `uvx` creates environments in these folders of uv's cache, and may delete them.
    is_temporary = re.search(r"[\\/](archive|environments|builds)-v\d+[\\/]", f"{sys.prefix}/") is not None
    if sys.prefix == sys.base_prefix or is_temporary:
        return ("uvx", NAME)
    script = _find_script()
    return (str(script),) if script.exists() else (sys.executable, "-m", "planwarden.server.main")


def find_program() -> tuple[str, ...]:
    """Return the words that start this installation from a shell: just `planwarden` if that name leads to it."""
    words = find_launch_command()
    on_path = shutil.which(NAME)
    if on_path is not None and Path(on_path).resolve() in (Path(words[0]).resolve(), _find_script().resolve()):
        return (NAME,)
    return words


def _find_script() -> Path:
    return Path(sysconfig.get_path("scripts")) / f"{NAME}{'.exe' if sys.platform == 'win32' else ''}"


def quote(text: str) -> str:
    """Return the text as a quoted string for TOML and YAML, which both accept the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _write_servers(key: str, launch: LaunchCommand, *, is_typed: bool = False, has_env: bool = False) -> str:
    """Return JSON with the server under `key`; `is_typed` adds `type`; `has_env` adds `env` even if it is empty."""
    server: dict[str, JsonValue] = {"type": "stdio"} if is_typed else {}
    server |= {"command": launch.command, "args": list(launch.args)}
    if launch.env or has_env:
        server["env"] = dict(launch.env)
    return _write_json({key: {NAME: server}})


def _write_opencode(launch: LaunchCommand) -> str:
    server: dict[str, JsonValue] = {"type": "local", "command": [launch.command, *launch.args], "enabled": True}
    if launch.env:
        server["environment"] = dict(launch.env)
    return _write_json({"$schema": "https://opencode.ai/config.json", "mcp": {NAME: server}})


def _write_codex(launch: LaunchCommand) -> str:
    lines = [
        f"[mcp_servers.{NAME}]",
        f"command = {quote(launch.command)}",
        f"args = [{', '.join(map(quote, launch.args))}]",
        f"startup_timeout_sec = {STARTUP_S}",
    ]
    if launch.env:
        lines += ["", f"[mcp_servers.{NAME}.env]", *(f"{name} = {quote(text)}" for name, text in launch.env.items())]
    return "\n".join(lines)


def _write_goose(launch: LaunchCommand) -> str:
    args = ", ".join(map(quote, launch.args))
    env = ", ".join(f"{name}: {quote(text)}" for name, text in launch.env.items())
    return f"""\
extensions:
  {NAME}:
    type: stdio
    name: {NAME}
    enabled: true
    cmd: {quote(launch.command)}
    args: [{args}]
    env_keys: []
    envs: {{{env}}}
    timeout: 300"""


def _write_json(document: JsonValue) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


_write_mcp_servers = partial(_write_servers, "mcpServers")
_write_typed_mcp_servers = partial(_write_servers, "mcpServers", is_typed=True)
CLIENTS: dict[str, HostBlock] = {
    "claude-desktop": HostBlock("claude_desktop_config.json (Settings > Developer > Edit Config)", _write_mcp_servers),
    "claude-code": HostBlock(".mcp.json in the project", _write_typed_mcp_servers),
    "vscode": HostBlock(
        ".vscode/mcp.json in the project, or `MCP: Open User Configuration`",
        partial(_write_servers, "servers", is_typed=True),
    ),
    "cursor": HostBlock("~/.cursor/mcp.json, or .cursor/mcp.json in the project", _write_typed_mcp_servers),
    "zed": HostBlock(
        "settings.json (`zed: open settings file`)", partial(_write_servers, "context_servers", has_env=True)
    ),
    "codex": HostBlock("~/.codex/config.toml, or .codex/config.toml in a trusted project", _write_codex),
    "gemini": HostBlock("~/.gemini/settings.json, or .gemini/settings.json in the project", _write_mcp_servers),
    "goose": HostBlock(
        "~/.config/goose/config.yaml, or %APPDATA%\\Block\\goose\\config\\config.yaml on Windows", _write_goose
    ),
    "opencode": HostBlock("opencode.json in the project, or ~/.config/opencode/opencode.json", _write_opencode),
    "jetbrains": HostBlock(
        "Settings > Tools > AI Assistant > Model Context Protocol (MCP) > Add > As JSON", _write_mcp_servers
    ),
}


def build_hook_program(home: Path) -> tuple[str, ...]:
    """Return the words that start planwarden on this home, whatever the environment of the host is."""
    return (*find_launch_command(), *build_home_option(home))


class FileChange(msgspec.Struct, frozen=True):
    """The text of a file before and after a change."""

    path: Path
    before: str
    after: str
    """Empty if the change deletes the file."""


def build_change(path: Path, change: Callable[[str], str], *, is_project: bool) -> FileChange:
    """Return the change to make to the file. Raises `UsageError` if the file must not or cannot be changed."""
    try:
        _check_owner(path, is_project=is_project)
        before = read_text(path)
        return FileChange(path, before, change(before))
    except (InvalidArguments, UnicodeDecodeError, OSError) as error:
        reason = str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8"
        reason = error.message if isinstance(error, InvalidArguments) else reason
        raise UsageError(f"{str(path)!r} was left as it is, because {reason}") from None


def make_changes(arguments: Namespace, listed: Sequence[FileChange], nothing: str, outcome: str) -> int:
    """Show the changes, ask, write them, and say `outcome`; say `nothing` if no file changes. Return the exit code."""
    terminal = build_terminal(arguments)
    changes = [change for change in listed if change.after != change.before]
    for change in changes:
        _draw_change(terminal, change)
    if not changes:
        terminal.say(nothing)
    elif not terminal.confirm("Write this?", "Nothing was written.", says_yes=arguments.yes):
        return FAILED
    for change in changes:
        replace_text(expand_home(change.path), change.before, change.after)
    if changes:
        terminal.line((outcome, "good"), mark="done")
    if arguments.json:
        print_json({"host": arguments.host, "files": [str(change.path) for change in changes]})
    return DONE


def replace_text(path: Path, before: str, after: str) -> None:
    """Replace the file's text in one step, keeping its mode; a new file is private. An empty `after` deletes the file.

    Raises:
        UsageError: the file's text is no longer `before`.
        StoreError: the file cannot be written.
    """
    try:
        if read_text(path) != before:
            raise UsageError(f"{str(path.resolve())!r} has been changed; nothing was written, so run the command again")
        if not after:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        replace_file(target, after.encode(), mode=target.stat().st_mode & 0o777 if target.exists() else 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _check_owner(path: Path, *, is_project: bool) -> None:
    """Raise `UsageError` for a link in a project, another user's file or folder, and anything but a regular file."""
    if is_project and any(part.is_symlink() for part in (path, path.parent)):
        raise UsageError(f"{str(path)!r} is a link; a project's link could lead anywhere, so nothing was written")
    if not hasattr(os, "getuid"):
        return
    real = path.resolve()
    for checked in filter(Path.exists, (real, real.parent)):
        if checked.stat().st_uid != os.getuid():
            raise UsageError(f"{str(checked)!r} belongs to another user; nothing was written")
        if checked == real and not real.is_file():
            raise UsageError(f"{str(checked)!r} is not a file; nothing was written")


def _draw_change(terminal: Terminal, change: FileChange) -> None:
    path = change.path
    terminal.line((f"{path}{'' if change.before else ' (new)' if change.after else ''}:", "bold"))
    if not change.after:
        terminal.line(("the file is deleted", "dim"), indent=1)
        return
    lines = difflib.unified_diff(change.before.splitlines(), change.after.splitlines(), lineterm="", n=2)
    for line in list(lines)[2:]:
        style = "good" if line.startswith("+") else "bad" if line.startswith("-") else "dim"
        terminal.line((one_line(line, 2_000), style), indent=1)
