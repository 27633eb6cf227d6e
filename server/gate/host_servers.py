"""Reads the lists of servers in the files of hosts, and puts servers behind the gate by changing their entries.

A change replaces the program of an entry and puts words before its arguments. The last of these words is the old
program exactly as written, so that the change can be undone byte for byte. As a check, every new text is parsed again.

Sources: those of `planwarden.server.cli.hosts`, and https://code.claude.com/docs/en/mcp#mcp-installation-scopes.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PureWindowsPath
from typing import Any, Literal, NamedTuple, cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.guard.json_text import MAX_CHARS, JsonNode, read_json_text, read_text
from planwarden.tools.downstream.gated_servers import MAX_NAME_CHARS

HostName = Literal["claude-code", "codex", "gemini", "opencode", "cursor", "vscode", "claude-desktop"]
State = Literal["behind the gate", "passes by", "planwarden itself"]
_SERVERS = ("mcpServers",)


class HostFiles(NamedTuple):
    """Where a host keeps its list of servers."""

    label: str
    user: str
    """The path of a user's file, with placeholders in braces for folders."""
    project: str = ""
    """The path of a project's file below the project's folder; empty if the host has no such file."""
    keys: tuple[str, ...] = _SERVERS


HOSTS: Mapping[HostName, HostFiles] = {
    "claude-code": HostFiles("Claude Code", "{claude}/.claude.json", ".mcp.json"),
    "codex": HostFiles("Codex", "{codex}/config.toml", ".codex/config.toml", ("mcp_servers",)),
    "gemini": HostFiles("Gemini CLI", "{home}/.gemini/settings.json", ".gemini/settings.json"),
    "opencode": HostFiles("opencode", "{config}/opencode/opencode.json", "opencode.json", ("mcp",)),
    "cursor": HostFiles("Cursor", "{home}/.cursor/mcp.json", ".cursor/mcp.json"),
    "vscode": HostFiles("VS Code", "{applications}/Code/User/mcp.json", ".vscode/mcp.json", ("servers",)),
    "claude-desktop": HostFiles("Claude Desktop", "{applications}/Claude/claude_desktop_config.json"),
}
_SHELL = re.compile("(ba|da|fi|z)?sh")
_CONTAINERS = re.compile("(docker|podman)(-compose)?|nerdctl")
_LAUNCHER = re.compile(rf"{_CONTAINERS.pattern}|uvx?|pipx|env|exec|nice|nohup|cmd|py|python[\d.]*")
"""Programs that start the program whose name follows their options."""
_OPTION = re.compile(r"-.*|/[A-Za-z]|\w+=(?!=).*|\d+|run|tool|container|compose", re.DOTALL)
_WITH_VALUE = re.compile(
    "-[pfwCuWX]|--(from|with|with-editable|with-requirements|python|directory|project|package|extra|group|index|spec"
    "|default-index|index-url|extra-index-url|index-strategy|find-links|prerelease|resolution|exclude-newer|link-mode"
    "|constraints|overrides|keyring-provider|python-preference|python-platform|(refresh|upgrade|reinstall)-package"
    "|color|env-file|cache-dir|config-file|unset|chdir)"
)
"""Options of these programs that have their value in the next word."""
_WITH_CONSTRAINTS = re.compile(f"-c|{_WITH_VALUE.pattern}")
"""The same options and `-c`, for `uv` and `uvx`. For Python, `-c` takes code."""
_WITHOUT_VALUE = re.compile(
    "-[itdqDPT]|-[^-].+|--.+=.*"
    "|--(rm|init|interactive|tty|detach|quiet|quiet-pull|privileged|read-only|publish-all|no-healthcheck|no-deps|build"
    "|debug|sig-proxy|oom-kill-disable|disable-content-trust|replace|no-TTY|service-ports|use-aliases|remove-orphans)",
    re.DOTALL,
)
"""Options without a value, for programs that start containers. Their other options have a value in the next word."""
_ADDRESSES = ("url", "httpUrl", "serverUrl")
_TEXT = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')""")
"""A string literal of JSON or TOML."""
_GAP = re.compile(r"(?:[\s,]|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""What may be between the items of a list."""
_TOML_COMMAND = re.compile(rf"^([ \t]*command[ \t]*=[ \t]*)({_TEXT.pattern})", re.MULTILINE)
_TOML_ARGS = re.compile(r"^[ \t]*args[ \t]*=[ \t]*\[", re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[.*$", re.MULTILINE)

Edit = tuple[int, int, str]
"""The beginning and end of a piece of the text, and its new text."""
Places = tuple[slice | None, int | None]
"""Where an entry's command is (None: it is the first word of the list), and where the list begins (None: no list)."""


class HostServer(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a host's list of servers."""

    name: str
    words: tuple[str, ...] = ()
    """Command and arguments."""
    own_words: int = 0
    """How many words of planwarden precede the server's own command."""
    problem: str = ""
    """Why the entry cannot be put behind the gate; empty if it can."""

    @property
    def state(self) -> State:
        if self.own_words:
            return "behind the gate"
        return "planwarden itself" if _is_planwarden(self.words) else "passes by"


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a host with a list of servers."""

    host: HostName
    path: Path
    keys: tuple[str, ...]
    """The keys that lead to the list in the file."""
    is_project: bool

    def list_servers(self, text: str) -> list[HostServer]:
        """Return the entries. Raises `InvalidArguments` for a text that cannot be read."""
        value = _read_toml(text) if self._is_toml else read_json_text(text).value
        for key in self.keys:
            value = value.get(key, {}) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            raise InvalidArguments(f"{'.'.join(self.keys)!r} is not a list of servers by name")
        return [_read_entry(name, entry) for name, entry in value.items()]

    def add(self, text: str, name: str, program: Sequence[str]) -> str:
        """Return the text with the entry behind a gate of `program`. Raises `InvalidArguments` if that fails."""
        gate = (*program, "gate", "--name", name, "--")
        edits = self._put_in_front(text, name, [json.dumps(word, ensure_ascii=False) for word in gate])
        return self._change(text, [*edits], name, lambda words: (*gate, *words))

    def remove(self, text: str, server: HostServer) -> str:
        """Return the text with the entry without its gate. Raises `InvalidArguments` if that fails."""
        edits = [*self._take_away(text, server)]
        return self._change(text, edits, server.name, lambda words: words[server.own_words :])

    @property
    def _is_toml(self) -> bool:
        return self.path.suffix == ".toml"

    def _change(
        self, text: str, edits: Sequence[Edit], name: str, change: Callable[[tuple[str, ...]], tuple[str, ...]]
    ) -> str:
        changed = text
        for start, end, piece in sorted(edits, reverse=True):
            changed = changed[:start] + piece + changed[end:]
        listed = self.list_servers(text)
        expected = [change(server.words) if server.name == name else server.words for server in listed]
        if [server.words for server in self.list_servers(changed)] != expected:
            raise InvalidArguments("it is written in a way that cannot be changed; change it yourself")
        return changed

    def _put_in_front(self, text: str, name: str, gate: Sequence[str]) -> Iterator[Edit]:
        command, args = self._find(text, name)
        words = ", ".join(gate if command is None else (*gate[1:], text[command]))
        if command is not None:
            yield command.start, command.stop, gate[0]
        if args is not None:
            first = _skip(text, args)
            # The space tells `remove` that the file had an empty list before.
            yield (args, args, f" {words}") if text[first : first + 1] == "]" else (first, first, f"{words}, ")
        elif command is not None:
            yield command.stop, command.stop, f"{self._begin_list(text)}{words}]"

    def _take_away(self, text: str, server: HostServer) -> Iterator[Edit]:
        command, args = self._find(text, server.name)
        first = position = end = 0 if args is None else _skip(text, args)
        old = ""
        for _ in range(server.own_words):
            item = _TEXT.match(text, position)
            if item is None:
                return
            old, end, position = item[0], item.end(), _skip(text, item.end())
        if command is not None:
            yield command.start, command.stop, old
        if text[position : position + 1] != "]":
            yield first, position, ""
        elif command is not None and text[command.stop : first] == self._begin_list(text):
            yield command.stop, position + 1, ""
        else:
            yield first - (text[first - 1] == " "), end, ""

    def _begin_list(self, text: str) -> str:
        """Return the text between a command and the words of an added list."""
        end = "\r\n" if "\r\n" in text else "\n"
        return f"{end}args = [" if self._is_toml else ', "args": ['

    def _find(self, text: str, name: str) -> Places:
        return self._find_in_toml(text, name) if self._is_toml else self._find_in_json(text, name)

    def _find_in_json(self, text: str, name: str) -> Places:
        node: JsonNode | None = read_json_text(text)
        for key in (*self.keys, name):
            node = None if node is None else node.find(key)
        command, args = (None, None) if node is None else (node.find("command"), node.find("args"))
        if command is None or command.kind == "array":
            return None, None if command is None else command.start + 1
        return slice(command.start, command.end), None if args is None else args.start + 1

    def _find_in_toml(self, text: str, name: str) -> Places:
        for header in _TABLE.finditer(text):
            if _read_header(header[0]) != {self.keys[0]: {name: {}}}:
                continue
            following = _TABLE.search(text, header.end())
            # A line of an array may begin with a bracket too.
            while following is not None and not _read_header(following[0]):
                following = _TABLE.search(text, following.end())
            end = len(text) if following is None else following.start()
            command, args = _TOML_COMMAND.search(text, header.end(), end), _TOML_ARGS.search(text, header.end(), end)
            if command is not None:
                return slice(*command.span(2)), None if args is None else args.end()
        return None, None


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The servers in one file of a host, or why the file cannot be read."""

    file: ServerFile
    servers: Sequence[HostServer] = ()
    problem: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "host": self.file.host,
            "path": str(self.file.path),
            "problem": self.problem,
            "servers": [{"name": item.name, "state": item.state, "why": item.problem} for item in self.servers],
        }


def find_server_files(host: HostName, environment: Mapping[str, str], project: Path | None) -> tuple[ServerFile, ...]:
    """Return the files of the host that list servers: the project's, or this user's if there is no project."""
    files, home = HOSTS[host], Path(environment.get("HOME") or Path.home())
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    applications = config
    if sys.platform == "darwin":
        applications = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        applications = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    claude, codex = environment.get("CLAUDE_CONFIG_DIR") or home, environment.get("CODEX_HOME") or home / ".codex"
    user = Path(files.user.format(home=home, config=config, applications=applications, claude=claude, codex=codex))
    if project is None:
        return (ServerFile(host=host, path=_prefer_comments(user), keys=files.keys, is_project=False),)
    if not files.project:
        return ()
    path = _prefer_comments(project / files.project)
    file = ServerFile(host=host, path=path, keys=files.keys, is_project=True)
    if host != "claude-code":
        return (file,)
    # `claude mcp add` writes servers for one user and one project to the user's file.
    return (file, ServerFile(host=host, path=user, keys=("projects", str(project), *files.keys), is_project=False))


def read_statuses(environment: Mapping[str, str], project: Path | None) -> list[FileStatus]:
    """Return what the files of all hosts say; a file that cannot be read has a `problem`."""
    return [_read_status(file) for host in HOSTS for file in find_server_files(host, environment, project)]


def _read_status(file: ServerFile) -> FileStatus:
    try:
        text = read_text(file.path)
        return FileStatus(file=file, servers=file.list_servers(text) if text.strip() else ())
    except (InvalidArguments, OSError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, InvalidArguments) else type(error).__name__
        return FileStatus(file=file, problem=f"it cannot be read: {reason}")


def _prefer_comments(path: Path) -> Path:
    """Return opencode's `.jsonc` file, which allows comments, if it exists; return any other path unchanged."""
    jsonc = path.with_suffix(".jsonc")
    return jsonc if path.name == "opencode.json" and jsonc.exists() else path


def _read_entry(name: str, entry: object) -> HostServer:
    members = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    if any(members.get(key) for key in _ADDRESSES) and not members.get("command"):
        secret = any(members.get(key) for key in ("headers", "http_headers", "env_http_headers", "oauth"))
        secret = secret or any("token" in key or "auth" in key for key in members)
        return HostServer(name=name, problem="it has an address" + (", and its host logs in there" if secret else ""))
    command, args = members.get("command"), members.get("args", [])
    first = cast("list[object]", command) if isinstance(command, list) else [command]
    items = cast("list[object]", args) if isinstance(args, list) else [None]
    items = [*first, *([] if isinstance(command, list) else items)]
    words = tuple(item for item in items if isinstance(item, str))
    if not words or len(words) != len(items) or not words[0]:
        return HostServer(name=name, problem="it has no command, or an argument that is not text")
    own, problem = _count_own_words(words), ""
    if not own and (not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or not name.strip(" -")):
        problem = f"its name does not have 1 to {MAX_NAME_CHARS} printable characters"
    elif not own and name.startswith("-"):
        problem = "its name begins with a hyphen"
    return HostServer(name=name, words=words, own_words=own, problem=problem)


def _count_own_words(words: Sequence[str]) -> int:
    """Return how many words of planwarden precede a server's command; 0 if the server is not behind a gate."""
    for index, word in enumerate(words):
        if word == "--":
            head = words[:index]
            is_gate = "gate" in head and _is_planwarden(head[: head.index("gate")])
            return index + 1 if is_gate and index + 1 < len(words) else 0
    return 0


def _is_planwarden(words: Sequence[str]) -> bool:
    """Return whether the command starts planwarden itself, even through programs such as `uvx`, `env` or a shell."""
    if not words:
        return False
    path = PureWindowsPath(words[0])
    if re.match(r"planwarden\b(?!-)", path.name):
        return True
    if _SHELL.fullmatch(path.stem):
        scripts = (text for option, text in pairwise(words) if re.fullmatch("-[a-z]*c", option))
        return any(_is_planwarden(part.split()) for script in scripts for part in re.split(r"[;&|\n]+", script))
    index, is_container, is_exec = 1, _CONTAINERS.fullmatch(path.stem) is not None, False
    values = _WITH_CONSTRAINTS if path.stem in ("uv", "uvx") else _WITH_VALUE
    while index < len(words) and (_OPTION.fullmatch(word := words[index]) or (is_container and word == "exec")):
        is_exec = is_exec or word == "exec"
        has_value = word[0] == "-" and not _WITHOUT_VALUE.fullmatch(word) if is_container else values.fullmatch(word)
        index += 2 if has_value else 1
    # The name of a running container comes before the command.
    index += is_exec
    return _LAUNCHER.fullmatch(path.stem) is not None and _is_planwarden(words[index:])


def _read_toml(text: str) -> JsonValue:
    if len(text) > MAX_CHARS:
        raise InvalidArguments("it is larger than 4 MiB")
    try:
        return cast("JsonValue", tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"it is not TOML: {str(error)[:200]}") from None


def _skip(text: str, position: int) -> int:
    gap = _GAP.match(text, position)
    return position if gap is None else gap.end()


def _read_header(line: str) -> dict[str, Any]:
    try:
        return tomllib.loads(line.removesuffix("\r"))
    except (ValueError, RecursionError):
        return {}
