"""The files with the hooks of each host, and the entries that make the host ask planwarden before a call.

Each host needs its own way to block a call when planwarden gives no answer. Claude Code: an `mcp_tool` hook with
`onFailure: block`. Codex and Gemini CLI run a call even if the hook crashed, was silent, took too long, or ended with
exit code 2 without a reason. So the shell around planwarden's command checks the output, gives a reason itself, and
ends the command before the host would. opencode: a plugin that throws. Cursor: `failClosed`.
"""

import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.server.guard.hook_client import STOPS
from planwarden.server.guard.json_text import add_item, find_value, read_json_text, remove_at, set_member
from planwarden.server.settings.configuration import SETTINGS_FILE, find_home
from planwarden.tools.guarded.hosts import GUARD_TOOL, HostName

PLUGIN_MARK = "planwarden guard: this file is written by `planwarden guard install opencode`"
HOST_LIMIT_S = 60
"""How long a host waits for a hook that only reports, or for a hook whose failure blocks the call."""
ENDLESS_S = 86_400
"""How long Codex and Gemini CLI wait for a hook before they run the call anyway. The hook ends long before."""
SHELL_LIMIT_S = 30
"""Seconds after which the shell's `timeout`, if installed, kills planwarden; planwarden itself gives up earlier."""
SERVER = "planwarden"
PLUGIN_FILE = "planwarden-guard.js"
ASK_PERMISSIONS = ("bash", "edit", "webfetch")
"""Permissions of opencode that become `ask` unless they have a value. They help if opencode cannot load the plugin."""
_BEGIN, _END = "# planwarden guard: begin", "# planwarden guard: end"
_CLOSED = """^[[:blank:]]*stop[[:blank:]]*=[[:blank:]]*["']closed["']"""
"""The pattern of the line in planwarden.toml that the shell searches for."""
_EVENTS: Mapping[HostName, tuple[str, ...]] = {
    "claude-code": ("PreToolUse", "PostToolUse", "PostToolUseFailure", "Stop"),
    "codex": ("PreToolUse", "Stop"),
    "gemini": ("BeforeTool", "AfterTool", "AfterAgent"),
    "cursor": ("preToolUse",),
}
"""The events with a hook of planwarden: first the event before a call, then events that report what the host did, from
which promises are checked. Codex itself records how its commands ended, and opencode has a plugin."""


def build_plugin(command: tuple[str, ...], added: tuple[str, ...]) -> str:
    """Return the text of a plugin that runs the command and lists the permissions that were added with the plugin."""
    source = (files("planwarden.server.guard") / "opencode_plugin.js").read_text(encoding="utf-8")
    source = source.replace('["ADDED"]', json.dumps(list(added)))
    return source.replace('["COMMAND"]', json.dumps(list(command), ensure_ascii=True))


def read_added(text: str) -> tuple[str, ...]:
    """Return the permissions that planwarden added with the plugin, as the plugin's text lists them."""
    match = re.search(r"^const ADDED = (\[[^\n]*\])$", text, re.MULTILINE)
    try:
        names = read_json(match[1]) if match is not None else []
    except PlanwardenError:
        return ()
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


class HookFile(msgspec.Struct, frozen=True):
    """One file of a host, and how planwarden changes it. A `floor` file sets permissions of opencode to `ask`."""

    host: HostName
    path: Path
    kind: Literal["json", "toml", "plugin", "floor"]
    added: tuple[str, ...] = ()
    """For opencode: the permissions that planwarden adds, or has added; empty for other hosts."""

    def add(self, text: str, program: tuple[str, ...]) -> str:
        """Return the text with planwarden's part; unchanged if it has exactly this part. Raises `InvalidArguments`."""
        if self.kind == "plugin":
            return build_plugin((*program, "guard", "hook", self.host), self.added)
        if self.kind == "toml":
            return _add_to_toml(text, program)
        if self.kind == "floor":
            for name in self.added:
                text = set_member(text, ("permission", name), "ask")
            return text
        if self.host == "cursor" and not text.strip():
            text = '{\n  "version": 1\n}\n'
        for keys, entry in build_entries(self.host, program).items():
            if [own for _, own in _list_own(text, keys, self.host)] != [entry]:
                text = add_item(_remove_own(text, keys, self.host), keys, entry)
        return text

    def remove(self, text: str) -> str:
        """Return the text without planwarden's part. Raises `InvalidArguments`."""
        if self.kind == "plugin":
            return ""
        if self.kind == "toml":
            return _remove_from_toml(text)
        if self.kind == "floor":
            for path in (("permission", name) for name in self.added):
                text = remove_at(text, path) if find_value(text, path) == "ask" else text
            return text
        for keys in build_entries(self.host, ()):
            text = _remove_own(text, keys, self.host)
        return text

    def is_outdated(self, text: str, program: tuple[str, ...]) -> bool:
        """Return whether planwarden's part in the text differs from what `add` would write, such as the command of
        another installation. False without such a part, and always for the kind `floor`."""
        return self.kind != "floor" and self.is_in(text) and text != self.add(text, program)

    def is_in(self, text: str) -> bool:
        """Return whether the text has planwarden's part. Raises `InvalidArguments` for a text that cannot be read."""
        if self.kind == "plugin":
            return PLUGIN_MARK in text
        if self.kind == "toml":
            return _BEGIN in text
        if self.kind == "floor":
            permissions = find_value(text, ["permission"])
            return set(self.added) <= set(permissions if isinstance(permissions, dict) else ())
        return bool(_list_own(text, ("hooks", _EVENTS[self.host][0]), self.host))


def _list_own(text: str, keys: tuple[str, ...], host: HostName) -> list[tuple[int, JsonValue]]:
    """Return planwarden's entries in the list of hooks at `keys`, each with its index in the list."""
    entries = find_value(text, keys)
    return [pair for pair in enumerate(entries if isinstance(entries, list) else []) if _is_ours(pair[1], host)]


def _remove_own(text: str, keys: tuple[str, ...], host: HostName) -> str:
    for index, _ in reversed(_list_own(text, keys, host)):
        text = remove_at(text, (*keys, index))
    return text


def find_hook_files(host: HostName, environment: Mapping[str, str], project: Path | None) -> tuple[HookFile, ...]:
    """Return the files of the host that planwarden changes: the project's, or the user's if `project` is None."""
    home = Path(environment.get("HOME") or Path.home())
    base = project or home
    match host:
        case "claude-code":
            folder = base / ".claude" if project else Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude")
            return (HookFile(host, folder / "settings.json", "json"),)
        case "codex":
            folder = base / ".codex" if project else Path(environment.get("CODEX_HOME") or home / ".codex")
            # Codex warns when two files of one folder have hooks.
            is_toml = bool(read_toml(folder / "config.toml").get("hooks")) and not (folder / "hooks.json").exists()
            return (
                HookFile(host, folder / ("config.toml" if is_toml else "hooks.json"), "toml" if is_toml else "json"),
            )
        case "gemini":
            return (HookFile(host, base / ".gemini" / "settings.json", "json"),)
        case "opencode":
            config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
            folder, settings = (base / ".opencode", base) if project else (config, config)
            name = "opencode.jsonc" if (settings / "opencode.jsonc").exists() else "opencode.json"
            path = folder / "plugins" / PLUGIN_FILE
            added = _find_added(path, settings / name)
            return (HookFile(host, path, "plugin", added), HookFile(host, settings / name, "floor", added))
        case "cursor":
            return (HookFile(host, base / ".cursor" / "hooks.json", "json"),)


def _find_added(plugin: Path, settings: Path) -> tuple[str, ...]:
    """Return the permissions that the installed plugin lists; without a plugin, the `ASK_PERMISSIONS` not set yet."""
    with suppress(OSError, ValueError):
        return read_added(plugin.read_text(encoding="utf-8"))
    try:
        root = read_json_text(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError, InvalidArguments):
        return ASK_PERMISSIONS
    node = root.find("permission")
    if node is not None and node.kind != "object":
        # A single text is the value of all permissions.
        return ()
    return tuple(name for name in ASK_PERMISSIONS if node is None or node.find(name) is None)


def build_entries(host: HostName, program: tuple[str, ...]) -> dict[tuple[str, ...], JsonValue]:
    """Return the entry for each of the host's lists of hooks, by the keys that lead to that list in the file."""
    before, *after = _EVENTS[host]
    others = {("hooks", event): build_done_entry(host, event, program) for event in after}
    return {("hooks", before): build_entry(host, program), **others}


def build_entry(host: HostName, program: tuple[str, ...]) -> JsonValue:
    """Return the entry of the hook that asks planwarden before a call."""
    if host == "claude-code":
        entry: dict[str, JsonValue] = {
            "host": host,
            "tool_name": "${tool_name}",
            "tool_input": "${tool_input}",
            "cwd": "${cwd}",
            "session_id": "${session_id}",
        }
        hook: dict[str, JsonValue] = {
            "type": "mcp_tool",
            "server": SERVER,
            "tool": GUARD_TOOL,
            "input": entry,
            "timeout": HOST_LIMIT_S,
            "onFailure": "block",
        }
        return {"hooks": [hook]}
    command = build_command(host, program)
    if host == "cursor":
        return {"command": command, "timeout": HOST_LIMIT_S, "failClosed": True}
    if host == "gemini":
        return {"hooks": [{"name": SERVER, "type": "command", "command": command, "timeout": ENDLESS_S * 1000}]}
    return {"hooks": [{"type": "command", "command": command, "timeout": ENDLESS_S, "statusMessage": SERVER}]}


def build_done_entry(host: HostName, event: str, program: tuple[str, ...]) -> JsonValue:
    """Return the entry of a hook that reports what the host did. If planwarden fails, only a stop is blocked, once, and
    only with `[guard] stop = "closed"`. If planwarden was killed or took too long, the shell blocks the stop."""
    limit = ("timeout", "-s", "KILL", str(SHELL_LIMIT_S)) if shutil.which("timeout") else ()
    words = shlex.join((*limit, *program, "guard", "hook", host))
    script = f'answer=$({words}) && echo "$answer" || exit 0'
    if event in STOPS:
        home = find_home(Path(program[-1]) if "--home" in program else None, {})
        script = (
            f'event=$(cat); answer=$(printf %s "$event" | {words}) && echo "$answer" && exit 0; '
            f"grep -Eqs {shlex.quote(_CLOSED)} {shlex.quote(str(home / SETTINGS_FILE))} || exit 0; "
            """case "$event" in *'"stop_hook_active":false'*|*'"stop_hook_active": false'*) """
            'echo "planwarden: Not done: what was promised could not be checked: no answer" >&2; exit 2;; esac'
        )
    hook: dict[str, JsonValue] = {
        "type": "command",
        "command": f"sh -c {shlex.quote(script)}",
        "timeout": HOST_LIMIT_S * (1_000 if host == "gemini" else 1),
    }
    return {"hooks": [{"name": SERVER, **hook} if host == "gemini" else hook]}


def build_command(host: HostName, program: tuple[str, ...], *, limit_s: int = SHELL_LIMIT_S) -> str:
    """Return the command line of a hook: it lets the call run only if planwarden printed exactly `{}`."""
    limit = ("timeout", "-s", "KILL", str(limit_s)) if shutil.which("timeout") else ()
    words = shlex.join((*limit, *program, "guard", "hook", host))
    refusal = '{ echo "planwarden: this call is blocked" >&2; exit 2; }'
    if host == "cursor":
        # Cursor reads a refusal from the output, not from standard error.
        refusal = f'{{ case "$answer" in *deny*) echo "$answer";; esac; {refusal[2:]}'
        refusal = f'echo "{{}}" || {refusal}'
        script = f'answer=$({words}) && [ "$answer" = "{{}}" ] && {refusal}'
    else:
        script = f'answer=$({words}) && [ "$answer" = "{{}}" ] || {refusal}'
    return f"sh -c {shlex.quote(script)} || exit 2"


def _is_ours(entry: JsonValue, host: HostName) -> bool:
    if not isinstance(entry, dict):
        return False
    hooks = entry.get("hooks", [entry])
    if not isinstance(hooks, list) or not hooks:
        return False
    return all(isinstance(hook, dict) and _is_our_hook(hook, host) for hook in hooks)


def _is_our_hook(hook: dict[str, JsonValue], host: HostName) -> bool:
    if hook.get("type") == "mcp_tool":
        return hook.get("tool") == GUARD_TOOL
    command = hook.get("command")
    return isinstance(command, str) and f"guard hook {host}" in command


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; nothing if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _add_to_toml(text: str, program: tuple[str, ...]) -> str:
    entries = build_entries("codex", program)
    lines = [_BEGIN]
    for keys, entry in entries.items():
        table = ".".join(keys)
        [hook] = cast("dict[str, list[dict[str, JsonValue]]]", entry)["hooks"]
        lines += [f"[[{table}]]", "", f"[[{table}.hooks]]", *(f"{key} = {json.dumps(hook[key])}" for key in hook)]
    end = "\r\n" if "\r\n" in text else "\n"
    part = end.join((*lines, _END)) + end
    if part in text:
        return text
    text = _remove_from_toml(text)
    changed = text + ("" if not text else end if text.endswith("\n") else end * 2) + part
    try:
        before, after = tomllib.loads(text), tomllib.loads(changed)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArguments(f"nothing can be added to it: {error}") from None
    hooks = cast("dict[str, list[JsonValue]]", after["hooks"])
    added = {keys: hooks[keys[-1]].pop() for keys in entries}
    after["hooks"] = {event: items for event, items in hooks.items() if items}
    if added != entries or {**after, "hooks": after["hooks"] or None} != {**before, "hooks": before.get("hooks")}:
        raise InvalidArguments("it is written in a way that planwarden cannot add to")
    return changed


def _remove_from_toml(text: str) -> str:
    begin = text.find(_BEGIN)
    if begin < 0:
        return text
    end = text.find(_END, begin)
    if end < 0:
        raise InvalidArguments(f"it has a line {_BEGIN!r} without {_END!r}; remove these lines yourself")
    end += len(_END)
    after = text[end:].removeprefix("\r\n") if text[end : end + 2] == "\r\n" else text[end:].removeprefix("\n")
    before = text[:begin]
    for newline in ("\r\n", "\n"):
        if before.endswith(newline * 2) or before == newline:
            before = before[: -len(newline)]
            break
    return before + after
