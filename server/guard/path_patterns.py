"""Which paths a text may stand for: what a shell expands is looked up on the disk, as far as is bounded.

Rather too many than too few: a pattern also finds hidden files, an expression in brackets any text, and behind a
pattern stands what is not there yet.
"""

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

MAX_PATH_CHARS = 4_096
"""The system opens no path that is longer."""
MAX_ENTRIES = 20_000
"""Entries of folders that are looked at for one call."""
MAX_PATHS = 1_000
"""Paths that one text may stand for."""
_PATTERN = re.compile(r"[*?\[]")
_BRACKETS = re.compile(r"\[[^/]*\]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_OF_PROCESS = re.compile(r"/proc/[^/]+(?:/task/[^/]+)?/(cwd|root)(?=/|\Z)")


class TooMuch(Exception):
    """A text stands for more than can be looked through."""


class PathPatterns:
    """Expands the texts of one call."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._entries_left = MAX_ENTRIES

    def resolve(self, text: str, folder: str) -> frozenset[str]:
        """Returns the paths that the text may stand for, with links followed. Raises `TooMuch`."""
        if not text or "\0" in text:
            return frozenset()
        text = text.removeprefix("file://")
        alternatives = self._expand_braces(text) if "{" in text else (text,)
        return frozenset(path for each in alternatives for path in self._resolve_one(each, folder))

    def _resolve_one(self, text: str, folder: str) -> Iterator[str]:
        path = os.path.join(folder, self._expand_home(text, folder))
        if len(path) > MAX_PATH_CHARS:
            path = os.path.normpath(path)
        if len(path) > MAX_PATH_CHARS:
            # Too long for the system, unless a shell makes it shorter.
            if _PATTERN.search(path) and not re.search(r"\s", path):
                raise TooMuch
            return
        of_process = _OF_PROCESS.match(path)
        if of_process is not None:
            # Of the shell itself, whatever its number is; of another process, where the disk says.
            yield from self._follow((folder if of_process[1] == "cwd" else "/") + path[of_process.end() :])
        yield from self._follow(path)

    def _follow(self, path: str) -> Iterator[str]:
        yield from map(_follow_links, self._expand_pattern(path) if _PATTERN.search(path) else (path,))

    def _expand_home(self, text: str, folder: str) -> str:
        if not text.startswith("~"):
            return text
        user, _, rest = text.partition("/")
        if user == "~+":
            return f"{folder}/{rest}"
        home = self._environment.get("HOME") if user == "~" else None
        return f"{home or os.path.expanduser(user)}/{rest}"

    def _expand_braces(self, text: str) -> list[str]:
        done: list[str] = []
        waiting = [text]
        while waiting:
            if len(done) + len(waiting) > MAX_PATHS:
                raise TooMuch
            each = waiting.pop()
            braces = _BRACES.search(each)
            if braces is None:
                done.append(each)
                continue
            before, after = each[: braces.start()], each[braces.end() :]
            inner = braces[1].split(",") if "," in braces[1] else ["*"] if ".." in braces[1] else [braces[1]]
            waiting += [before + piece + after for piece in inner]
        return done

    def _expand_pattern(self, path: str) -> list[str]:
        """Returns the path itself, and what its pattern finds; the rest of a path behind a pattern need not exist."""
        found = ["/"]
        for segment in path.split("/"):
            if not _PATTERN.search(segment):
                found = [os.path.join(place, segment) for place in found]
                continue
            wanted = _BRACKETS.sub("*", segment)
            found = [
                os.path.join(place, name)
                for place in found
                for name in self._list_names(place)
                if fnmatchcase(name, wanted)
            ]
            if len(found) > MAX_PATHS:
                raise TooMuch
        return [path, *found]

    def _list_names(self, folder: str) -> list[str]:
        names: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entries_left -= 1
                    if self._entries_left < 0:
                        raise TooMuch
                    names.append(entry.name)
        except OSError:
            pass
        return names


def find_fixed_part(pattern: str) -> str:
    """Returns the folder below which everything is that the pattern finds."""
    match = _PATTERN.search(pattern)
    return pattern if match is None else os.path.dirname(pattern[: match.start()] + "x")


def _follow_links(path: str) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return os.path.normpath(path)
