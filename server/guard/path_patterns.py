"""Finds the paths that a text may mean: it expands variables, and compares patterns with the names on the disk, within
limits. It finds too many paths rather than too few: patterns also match hidden files, brackets match any character, and
the part of a path after a pattern need not exist.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice

from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES

MAX_PATH_CHARS = 4_096
"""The longest path that the system opens."""
MAX_ENTRIES = 20_000
"""How many folder entries one call may make the guard read."""
MAX_PATHS = 1_000
"""The most paths that one pattern may match."""
MAX_SEGMENTS = 100_000
"""The most segments that all paths of one call may have together. The system has to look up each segment."""
MAX_BRACE_EXPANSIONS = 100
"""How many texts the braces of one text may expand to."""
_FOLDER_VARIABLES = frozenset({"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "PWD"})
_ASSIGNED = re.compile(
    r"(?<![\w$./-])(?:(?P<name>[A-Za-z_]\w{0,99})=(?P<value>[^\s;&|()]+)|for (?P<each>\w{1,99}) in (?P<values>[^;\n]+))"
)
"""Matches a text that assigns one value to a variable, or several values in a loop."""
_PLAIN_VALUE = re.compile(r"[\"']?(?:[\w./~*@%+:-]|\$\{?\w+\}?)+[\"']?")
MAX_VARIABLE_VALUES = 10
"""How many values of one variable are used: so few that two nested loops stay within the limits."""
_USED = re.compile(r"(?a)\$(?:((?:env:)?\w+)|\{((?:env:)?\w+)(?:[^\w{}][^{}]*)?\})|\$\(pwd\)|`pwd`")
_PATTERN = re.compile(r"[*?\[]")
_BRACKETS = re.compile(r"\[[!^]?\]?(?:\[[:.=].*?[:.=]\]|[^\]/])*\]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_OF_PROCESS = re.compile(r"/proc/[^/]+(?:/task/[^/]+)?/(cwd|root)(?=/|\Z)")


class TooMuch(Exception):
    """A limit was reached while a text was expanded."""


class PathPatterns:
    """Expands the texts of one call."""

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        """Take the `folder` in which the call runs."""
        self._environment = environment
        self._folder = folder
        self._chars_left = MAX_ARGUMENT_BYTES
        self._entries_left = MAX_ENTRIES
        self._segments_left = MAX_SEGMENTS
        self._resolved: dict[tuple[str, str], frozenset[str]] = {}

    def resolve(self, text: str, folder: str, *, has_braces: bool = True) -> frozenset[str]:
        """Return the paths that the text may mean, with links followed. Raises `TooMuch`."""
        paths = self._resolved.get((text, folder))
        if paths is None:
            alternatives = _expand_braces(text) if has_braces and "{" in text else (text,)
            paths = frozenset(path for each in alternatives for path in self._resolve_one(each, folder))
            self._resolved[text, folder] = paths
        return paths

    def expand_folders(self, text: str) -> str:
        """Return the text with the value of each variable that names a folder, such as `$HOME`."""
        values = {**self._environment, "PWD": self._folder}
        values = {name: values[name] for name in _FOLDER_VARIABLES & values.keys()}
        return self._insert(lambda name: values.get(name.removeprefix("env:")), text)

    def _insert(self, find: Callable[[str], str | None], text: str) -> str:
        """Return the text with each variable replaced by the value that `find` returns, if any. Raises `TooMuch`."""

        def replace(match: re.Match[str]) -> str:
            value = find(match[1] or match[2] or "PWD") or match[0]
            self._chars_left -= len(value)
            if self._chars_left < 0:
                raise TooMuch
            return value

        return _USED.sub(replace, text)

    def expand_assigned(self, line: str) -> str:
        """Return the line with the values of the variables that it assigns; several values become a text in braces."""
        values: dict[str, list[str]] = {}

        def find(name: str) -> str | None:
            # In PowerShell, `env:` is a prefix. In other shells, `$env:x` is the variable `env` and the text `:x`.
            alternatives = values.get(name.partition(":")[0], ())[:MAX_VARIABLE_VALUES]
            return f"{{{','.join(alternatives)}}}" if len(alternatives) > 1 else "".join(alternatives)

        for match in _ASSIGNED.finditer(line):
            words = (match["value"] or match["values"]).split()
            plain = [word.strip("\"'") for word in words if _PLAIN_VALUE.fullmatch(word)]
            values.setdefault(match["name"] or match["each"], []).extend(self._insert(find, word) for word in plain)
        return self._insert(find, line)

    def list_names_below(self, path: str) -> frozenset[str]:
        """Return the names of all files and folders below the folder. Raises `TooMuch`."""
        names: set[str] = set()
        for _, folders, files in os.walk(path):
            names.update(self._count([*folders, *files]))
        return frozenset(names)

    def _count(self, names: list[str]) -> list[str]:
        self._entries_left -= len(names)
        if self._entries_left < 0:
            raise TooMuch
        return names

    def _resolve_one(self, text: str, folder: str) -> Iterator[str]:
        if not text or "\0" in text:
            return
        path = os.path.join(folder, self._expand_home(text.removeprefix("file://"), folder))
        if len(path) > MAX_PATH_CHARS:
            path = os.path.normpath(path)
        of_process = _OF_PROCESS.match(path)
        if of_process is not None:
            # Any process number may be the shell itself. The links of other processes are followed below.
            yield from self._follow((folder if of_process[1] == "cwd" else "/") + path[of_process.end() :])
        yield from self._follow(path)

    def _follow(self, path: str) -> Iterator[str]:
        for each in [path, *self._expand_pattern(path)] if _PATTERN.search(path) else [path]:
            if len(each) <= MAX_PATH_CHARS:
                self._segments_left -= each.count("/")
                if self._segments_left < 0:
                    raise TooMuch
                yield _follow_links(each)

    def _expand_home(self, text: str, folder: str) -> str:
        if not text.startswith("~"):
            return text
        user, _, rest = text.partition("/")
        if user == "~+":
            return f"{folder}/{rest}"
        home = self._environment.get("HOME") if user == "~" else None
        return f"{home or os.path.expanduser(user)}/{rest}"

    def _expand_pattern(self, path: str) -> list[str]:
        """Return the paths that match; a segment without a pattern need not exist."""
        folders = ["/"]
        for segment in path.split("/"):
            if not _PATTERN.search(segment):
                folders = [os.path.join(folder, segment) for folder in folders]
                continue
            glob = _BRACKETS.sub("?", segment)
            folders = [
                os.path.join(folder, name)
                for folder in folders
                for name in self._list_names(folder)
                if fnmatchcase(name, glob)
            ]
            if len(folders) > MAX_PATHS:
                raise TooMuch
            if not folders:
                break
        return folders

    def _list_names(self, folder: str) -> list[str]:
        with suppress(OSError), os.scandir(folder) as entries:
            return self._count([entry.name for entry in islice(entries, self._entries_left + 1)])
        return []


def _expand_braces(text: str) -> list[str]:
    """Return the expansions. If there are too many, return only the text if it has a `"`, else raise `TooMuch`."""
    expanded: list[str] = []
    waiting = [text]
    while waiting:
        each = waiting.pop()
        braces = _BRACES.search(each)
        if braces is None:
            expanded.append(each)
            continue
        before, inner, after = each[: braces.start()], braces[1], each[braces.end() :]
        waiting += [before + piece + after for piece in (["*"] if ".." in inner else inner.split(","))]
        if len(expanded) + len(waiting) > MAX_BRACE_EXPANSIONS:
            if '"' in text:
                return [text]
            raise TooMuch
    return expanded


def find_fixed_part(pattern: str) -> str:
    """Return the folder that contains everything that the pattern can match."""
    match = _PATTERN.search(pattern)
    return pattern if match is None else os.path.dirname(pattern[: match.start()] + "x")


def _follow_links(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return os.path.normpath(path)
