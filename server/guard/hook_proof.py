"""Proves that hooks block a call if planwarden gives no answer, by running them with broken programs in place of
planwarden. docs/guard.md tells how real hosts react to the outcome. Facts that only the host knows, such as its trust
in the hook, are reported as unknown.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.guard.calls import BLOCKED
from planwarden.server.guard.hook_files import (
    SERVER,
    SHELL_LIMIT_S,
    HookFile,
    build_command,
    find_hook_files,
    read_toml,
)
from planwarden.server.guard.json_text import find_value, read_text
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, HostName

PATIENCE_S = 60
HANG_LIMIT_S = 1
BROKEN: Mapping[str, tuple[str, ...]] = {
    "not there": ("/nonexistent/planwarden",),
    "killed": ("sh", "-c", "kill -KILL $$"),
    "hanging": ("sh", "-c", "exec sleep 600"),
    "giving garbage": ("sh", "-c", "echo garbage"),
    "failing silently": ("sh", "-c", "exit 1"),
}
"""Programs that take planwarden's place."""
READ_TOOLS: Mapping[HostName, str] = {
    "claude-code": "Read",
    "codex": "update_plan",
    "gemini": "read_file",
    "opencode": "read",
    "cursor": "Read",
}
UNKNOWN: Mapping[HostName, str] = {
    "claude-code": "Claude Code before 2.1.295 ignores onFailure; `claude --version` says which one you have. "
    "`claude --bare` skips the hook",
    "codex": "whether Codex trusts the hook: until a person trusts it with `t` in `/hooks`, Codex skips it silently",
    "gemini": "whether the folder is trusted: in an untrusted one Gemini CLI skips the hooks of the project",
    "opencode": "whether opencode loads the plugin: it ignores one that it cannot load, and then only its own "
    "questions are left",
    "cursor": "everything that Cursor does with it: Cursor was never run with planwarden",
}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a hook."""

    what: str
    blocks: bool
    expected: bool
    """Whether the hook should block the call."""
    output: str

    @property
    def is_right(self) -> bool:
        return self.blocks == self.expected


class HookStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the guard of one host."""

    host: HostName
    path: str
    state: Literal["installed", "not installed", "damaged"]
    problem: str = ""
    trials: tuple[Trial, ...]
    unknown: str = ""

    @property
    def is_proven(self) -> bool:
        return self.state == "installed" and not self.problem and all(trial.is_right for trial in self.trials)


def check_hosts(
    environment: Mapping[str, str], project: Path | None, program: tuple[str, ...]
) -> tuple[HookStatus, ...]:
    """Run every installed hook, except Claude Code's and those switched off, and return the status of all hosts."""
    return tuple(_check_host(host, environment, project, program) for host in GUARDED_HOSTS)


def _check_host(
    host: HostName, environment: Mapping[str, str], project: Path | None, program: tuple[str, ...]
) -> HookStatus:
    files = find_hook_files(host, environment, project)
    path = str(files[0].path)
    try:
        texts = [_read(file) for file in files]
        states = [file.is_in(text) for file, text in zip(files, texts, strict=True)]
    except InvalidArguments as error:
        return HookStatus(host=host, path=path, state="damaged", problem=f"{path}: {error.message}", trials=())
    if not any(states):
        return HookStatus(host=host, path=path, state="not installed", trials=())
    problem = "" if all(states) else f"{files[states.index(False)].path} lacks its part; install it again"
    if not problem and any(file.is_outdated(text, program) for file, text in zip(files, texts, strict=True)):
        problem = "it is not what this installation of planwarden would write; install it again"
    if host == "claude-code":
        problem = problem or _find_claude_problem(environment, project)
        trials = ()
    else:
        switch = _find_switch(host, files[0], environment, project)
        problem = problem or switch
        # A trial of a hook that the host does not run proves nothing.
        trials = () if switch else tuple(_run_trials(files[0], program))
    unknown = UNKNOWN[host] + (_describe_shell_sessions(files[0].path.parent) if host == "codex" else "")
    return HookStatus(host=host, path=path, state="installed", problem=problem, trials=trials, unknown=unknown)


def _read(file: HookFile) -> str:
    try:
        return read_text(file.path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArguments(f"it cannot be read: {error}") from None


def _find_claude_problem(environment: Mapping[str, str], project: Path | None) -> str:
    """Return why Claude Code would not ask planwarden, or would block every call; empty if no reason is found."""
    home = Path(environment.get("HOME") or Path.home())
    config = environment.get("CLAUDE_CONFIG_DIR")
    folder = project or Path.cwd()
    settings = Path(config) if config else home / ".claude"
    project_settings = (folder / ".claude" / name for name in ("settings.json", "settings.local.json"))
    for file in (settings / "settings.json", *project_settings):
        if _read_value(file, "disableAllHooks") is True:
            return f"{file} has disableAllHooks, so Claude Code asks nobody; a person has to remove it"
    user_config = (Path(config) if config else home) / ".claude.json"
    user_entry = _read_value(user_config, "mcpServers", SERVER)
    project_entry = _read_value(folder / ".mcp.json", "mcpServers", SERVER)
    # The hook knows only the server's name, and Claude Code prefers a server of that name in the folder's .mcp.json.
    if project is None and project_entry is not None and project_entry != user_entry:
        return (
            f"{folder / '.mcp.json'} names a server {SERVER!r} of its own, which Claude Code asks instead of yours; "
            "remove it there"
        )
    if user_entry is None and project_entry is None:
        return (
            f"no MCP server {SERVER!r} is in {user_config} or .mcp.json, so Claude Code blocks every call; "
            "`planwarden config print claude-code` prints the entry to add"
        )
    return ""


def _read_value(file: Path, *keys: str) -> JsonValue:
    """Return the value under these keys of a JSON file; None if there is none, or the file cannot be read."""
    try:
        return find_value(file.read_text(encoding="utf-8"), keys)
    except (OSError, ValueError, InvalidArguments):
        return None


def _find_switch(host: HostName, file: HookFile, environment: Mapping[str, str], project: Path | None) -> str:
    """Return which setting of the user or the folder switches the host's hooks off; empty if there is none."""
    user = find_hook_files(host, environment, None)[0].path.parent
    folders = dict.fromkeys((user, file.path.parent, (project or Path.cwd()) / user.name))
    if host == "codex":
        switches = (_find_codex_switch(folder / "config.toml", file) for folder in folders)
    elif host == "gemini":
        switches = (_find_gemini_switch(folder / "settings.json") for folder in folders)
    else:
        return ""
    return next((f"{switch}, so {host} asks nobody; a person has to remove it" for switch in switches if switch), "")


def _find_codex_switch(path: Path, file: HookFile) -> str:
    config = read_toml(path)
    profile = _get_table(config, "profiles", str(config.get("profile")))
    for table in (config, profile):
        features = _get_table(table, "features")
        # `codex_hooks` is the old name of the feature, and still works.
        if features.get("hooks", features.get("codex_hooks")) is False:
            return f"{path} has features.hooks = false"
    states = _get_table(config, "hooks", "state")
    if any(key.startswith(str(file.path)) and _get_table(states, key).get("enabled") is False for key in states):
        return f"{path} has switched this hook off"
    return ""


def _find_gemini_switch(path: Path) -> str:
    for keys in (("hooksConfig", "enabled"), ("tools", "enableHooks")):
        if _read_value(path, *keys) is False:
            return f"{path} has {'.'.join(keys)} = false"
    for keys in (("hooksConfig", "disabled"), ("hooks", "disabled")):
        names = _read_value(path, *keys)
        if isinstance(names, list) and any(name == SERVER or "guard hook gemini" in str(name) for name in names):
            return f"{path} names this hook in {'.'.join(keys)}"
    return ""


def _get_table(table: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        value = table.get(key)
        table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return table


def _describe_shell_sessions(base: Path) -> str:
    """Return a warning about shell sessions of Codex; empty if they are switched off."""
    if _get_table(read_toml(base / "config.toml"), "features").get("unified_exec_tty") is False:
        return ""
    return (
        "; nobody is asked about what a model types into a shell that you let it open. With `unified_exec_tty = false` "
        f"under `[features]` in {base / 'config.toml'}, it cannot open such a shell"
    )


def _run_trials(file: HookFile, program: tuple[str, ...]) -> Iterator[Trial]:
    """Run the hook as its host would, twice with planwarden, then once with each broken program. Yield the trials."""
    event = json.dumps({"tool_name": READ_TOOLS[file.host], "tool_input": {}, "cwd": os.getcwd()})
    yield _run(file, program, SHELL_LIMIT_S, "a call that only reads", event, blocks=False)
    yield _run(file, program, SHELL_LIMIT_S, "something odd from the host", "garbage", blocks=True)
    for what, words in BROKEN.items():
        yield _run(file, words, HANG_LIMIT_S, f"planwarden {what}", event, blocks=True)


def _run(file: HookFile, program: tuple[str, ...], limit_s: int, what: str, event: str, *, blocks: bool) -> Trial:
    with tempfile.TemporaryDirectory() as folder:
        command = _build_argv(file, program, limit_s, event, Path(folder))
        try:
            ended = subprocess.run(command, input=event.encode(), capture_output=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            reason = f"no answer within {PATIENCE_S} s; the host would wait even longer"
            return Trial(what=what, blocks=False, expected=blocks, output=reason)
        except OSError as error:
            return Trial(what=what, blocks=True, expected=blocks, output=f"cannot be run here: {error.strerror}")
    reason = ended.stderr.decode("utf-8", "replace").strip()
    # Without a reason on standard error, Codex and Gemini CLI let a call run in spite of exit code 2.
    is_blocked = ended.returncode == BLOCKED and bool(reason)
    return Trial(what=what, blocks=is_blocked, expected=blocks, output=reason[-300:] or f"exit code {ended.returncode}")


def _build_argv(file: HookFile, program: tuple[str, ...], limit_s: int, event: str, folder: Path) -> list[str]:
    if file.host != "opencode":
        return ["sh", "-c", build_command(file.host, program, limit_s=limit_s)]
    plugin = folder / "plugin.mjs"
    plugin.write_text(file.add("", program).replace("LIMIT_MS = 30_000", f"LIMIT_MS = {limit_s * 1000}"))
    driver = folder / "driver.mjs"
    driver.write_text(_DRIVER)
    tool = "" if event == "garbage" else READ_TOOLS[file.host]
    return ["node", str(driver), str(plugin), tool, os.getcwd()]


_DRIVER = """\
const [, , plugin, tool, directory] = process.argv
try {
  const { PlanwardenGuard } = await import(plugin)
  const hooks = await PlanwardenGuard({ directory })
  await hooks["tool.execute.before"]({ tool, callID: "1" }, { args: {} })
} catch (error) {
  console.error(error.message)
  process.exit(2)
}
"""
