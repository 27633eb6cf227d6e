"""What a model may not touch whatever the rules say: planwarden's decisions, its files, and the hooks of the host.

This reads calls as well as it can and errs towards refusing. It cannot see what a script does that the call starts,
what a variable holds, or what a program writes by itself: a command line that could hide that is asked about, and a
person sees it. See docs/guard.md.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from pathlib import Path

from pydantic import JsonValue

from planwarden.server.guard.calls import GuardedCall
from planwarden.tools.guarded.shell import list_words

MAX_WORDS = 4_000
"""Of a call; of a command line, as often as it changes the folder. For each, the disk is asked where it leads."""
MAX_FOLDERS = 50
"""Of one command line: each begins in the one before, so a path of them can be long."""
MAX_PATH_CHARS = 4_096
TOO_MUCH = "it has more words than can be looked through; make it smaller"
PROGRAM = "planwarden"
READING = frozenset({"list", "show", "tools", "check", "doctor", "rules", "--version", "--help", "-h"})
"""Commands of planwarden that a model may run: they decide nothing and write nothing."""
OPTIONS_WITH_VALUE = frozenset({"--home", "--store", "--model", "--mcp-config"})
VARIABLES = ("PLANWARDEN_HOME", "PLANWARDEN_STORE")
"""A command that names one of them could lead planwarden, or itself, to another home."""
WRAPPERS = frozenset(
    {
        *("sudo", "doas", "env", "nohup", "nice", "time", "timeout", "exec", "command", "builtin", "xargs", "setsid"),
        *("stdbuf", "script", "watch", "uv", "uvx", "pipx", "poetry", "hatch", "python", "python3", "bash", "sh"),
        *("zsh", "dash", "fish", "eval", "then", "do", "else", "if", "while", "until", "!", "find", "parallel", "tmux"),
    }
)
"""Programs and words of the shell that run what follows them."""
CONTENT = frozenset(
    {"content", "new_string", "old_string", "prompt", "description", "query", "text", "message", "todos"}
)
"""Arguments that hold words, and no paths."""
HOOK_FILES = (
    *(".claude/settings.json", ".claude/settings.local.json", ".claude.json", ".mcp.json", ".codex/config.toml"),
    *(".codex/hooks.json", ".gemini/settings.json", ".gemini/trusted_hooks.json", "opencode.json", "opencode.jsonc"),
    *(".opencode/plugin", ".opencode/plugins", "opencode/plugin", "opencode/plugins", ".cursor/hooks.json"),
    *(".cursor/mcp.json", "claude-code/managed-settings.json", "ClaudeCode/managed-settings.json"),
)
"""Where hosts keep hooks, plugins and servers, below a project or a home."""
_FILES_OF_PATCH = re.compile(
    r"^(?:\*\*\* (?:Add File|Update File|Delete File|Move to): |(?:---|\+\+\+) (?:[ab]/)?)(.+)$", re.MULTILINE
)
_SPLIT = re.compile(r"[\s=,:'\"`()\[\]{}<>|;&]+")
_PATH = re.compile(r"(?:~|\.{1,2})?/.*", re.DOTALL)
_GLOB = re.compile(r"[*?\[]")


class OwnThings:
    """The files of one home, and the variables by which a command may name them."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self._home = home
        self._environment = environment

    def find_refusal(self, call: GuardedCall) -> str | None:
        """Returns why the call is refused; None if nothing is seen that would be."""
        shell = call.host.shells.get(call.tool)
        left = MAX_WORDS
        for key, text in _list_texts(call.given):
            is_command = shell is not None and key == shell
            if is_command and _runs_planwarden(text):
                return (
                    "it runs planwarden itself, which decides for people; a model may use planwarden's MCP tools, and "
                    "of its commands only list, show, tools, check, rules and doctor"
                )
            if is_command and any(variable in text for variable in VARIABLES):
                return "it names a variable that leads to planwarden's settings and database"
            expanded = self._expand(text, call.folder)
            candidates = list(_list_candidates(expanded, is_command=is_command, is_content=key in CONTENT))
            if len(candidates) > left:
                return TOO_MUCH
            folders = [call.folder, *(self._list_folders(expanded, call.folder) if is_command else ())]
            left -= len(candidates) * len(folders)
            if left < 0 or len(folders) > MAX_FOLDERS:
                return TOO_MUCH
            for candidate in candidates:
                for folder in folders:
                    refusal = self._refuse_path(candidate, folder, may_read=call.tool in call.host.reads)
                    if refusal is not None:
                        return refusal
        return None

    def _refuse_path(self, text: str, folder: str, *, may_read: bool) -> str | None:
        path = self._resolve(text, folder)
        if path is None:
            return None
        if _is_at_or_below(path, self._real_home) or _may_match(path, self._real_home):
            return (
                f"it names {text[:200]!r}, in planwarden's home: its settings, database and keys are for people, who "
                "use its commands in a terminal"
            )
        if not may_read and _is_hook_file(path):
            return (
                f"it names {text[:200]!r}, where a host keeps hooks or servers: a person changes that, in an editor or "
                "with `planwarden guard`"
            )
        return None

    @cached_property
    def _real_home(self) -> str:
        return os.path.realpath(self._home)

    def _list_folders(self, command: str, folder: str) -> Iterator[str]:
        """Yields where the parts of a command may run that change the folder, `MAX_FOLDERS` at most."""
        changes = (words[1] for words in list_words(command) if len(words) > 1 and words[0] in ("cd", "pushd"))
        for change in islice(changes, MAX_FOLDERS):
            path = self._resolve(change, folder)
            if path is not None:
                folder = path
                yield path

    def _expand(self, text: str, folder: str) -> str:
        """Returns the text with the values of variables that lead to places of people and programs."""
        for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "PWD"):
            value = folder if name == "PWD" else self._environment.get(name)
            if value and "$" in text:
                text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
        return text

    def _resolve(self, text: str, folder: str) -> str | None:
        """Returns the path that the text may stand for, with links followed; None for what is no path."""
        if not text or len(text) > MAX_PATH_CHARS or "\0" in text or "\n" in text:
            return None
        expanded = text.removeprefix("file://")
        home = self._environment.get("HOME") or os.path.expanduser("~")
        if expanded == "~" or expanded.startswith("~/"):
            expanded = home + expanded[1:]
        try:
            return os.path.realpath(os.path.join(folder, expanded))
        except (OSError, ValueError):
            return None


def _list_texts(value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yields every text in the arguments with the key that it stands below; a list of texts also as one text."""
    stack: list[tuple[str, JsonValue]] = [("", value)]
    while stack:
        key, node = stack.pop()
        if isinstance(node, str):
            yield key, node
        elif isinstance(node, dict):
            stack.extend((key if key in CONTENT else name, child) for name, child in node.items())
        elif isinstance(node, list):
            stack.extend((key, child) for child in node)
            if node and all(isinstance(child, str) for child in node):
                # A command as a list of words.
                yield key, " ".join(map(str, node))


def _list_candidates(text: str, *, is_command: bool, is_content: bool) -> Iterator[str]:
    """Yields what may be a path in the text."""
    if is_command:
        found = {word for words in list_words(text) for word in words}
        pieces = found | set(_SPLIT.split(text)) | {piece for word in found for piece in _SPLIT.split(word)}
        # A path may be glued to an option.
        yield from pieces | {start[0] for piece in pieces if (start := _PATH.search(piece)) is not None}
        return
    yield from (found.strip() for found in _FILES_OF_PATCH.findall(text))
    if not is_content and "\n" not in text:
        yield text


def _runs_planwarden(text: str) -> bool:
    """Whether the command line runs planwarden, other than to read."""
    return any(map(_decides, list_words(text)))


def _decides(words: Sequence[str]) -> bool:
    first = next((place for place, word in enumerate(words) if "=" not in word), None)
    if first is None:
        return False
    if _is_planwarden(words[first]):
        return not _only_reads(words[first + 1 :])
    if words[first].rpartition("/")[2].rstrip("0123456789.") not in WRAPPERS:
        return False
    for place, word in enumerate(words[first + 1 :], first + 1):
        if _is_planwarden(word) and not _only_reads(words[place + 1 :]):
            return True
        # A whole command line in one word, as after `sh -c`, or a program, as after `python -c`.
        if " " in word and PROGRAM in word and (_runs_planwarden(word) or words[first].startswith("python")):
            return True
    return False


def _is_planwarden(word: str) -> bool:
    name = word.replace("\\", "/").rpartition("/")[2].removesuffix(".exe").partition("@")[0].partition("[")[0]
    return name == PROGRAM or name == "planwarden.server.main"


def _only_reads(words: Sequence[str]) -> bool:
    place = 0
    while place < len(words):
        if words[place] in OPTIONS_WITH_VALUE:
            place += 2
        elif words[place].startswith("--") and "=" in words[place]:
            place += 1
        else:
            return words[place] in READING and "--yes" not in words
    return False


def _is_hook_file(path: str) -> bool:
    folded = path.replace(os.sep, "/").casefold()
    for name in HOOK_FILES:
        wanted = f"/{name}".casefold()
        if folded.endswith(wanted) or f"{wanted}/" in folded:
            return True
        if _GLOB.search(folded) and fnmatchcase(wanted, "/" + "/".join(folded.split("/")[-name.count("/") - 1 :])):
            return True
    return False


def _may_match(pattern: str, path: str) -> bool:
    """Whether a pattern of the shell may name the path or something below it."""
    if not _GLOB.search(pattern):
        return False
    wanted, parts = path.casefold().split(os.sep), pattern.casefold().split(os.sep)
    return len(parts) >= len(wanted) and all(map(fnmatchcase, wanted, parts))


def _is_at_or_below(path: str, folder: str) -> bool:
    path, folder = path.casefold(), folder.casefold()
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
