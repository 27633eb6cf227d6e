"""Refuses calls that touch planwarden's decisions, its files, or the hooks of the host, whatever the rules say. If in
doubt, the check refuses. It cannot see what a started script does, what a variable holds, or what a program writes by
itself. If a command line could hide one of these, a person is asked. See docs/guard.md.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice, pairwise, product
from pathlib import Path

from pydantic import JsonValue

from planwarden.server.guard.calls import GuardedCall
from planwarden.server.guard.command_parts import (
    list_parts,
    list_possible_paths,
    list_read_paths,
    remove_here_documents,
    runs_planwarden,
    uses_variable,
)
from planwarden.server.guard.file_commands import Act, list_acts
from planwarden.server.guard.hook_files import find_hook_files
from planwarden.server.guard.path_patterns import PathPatterns, TooMuch, find_fixed_part
from planwarden.tools.guarded.hosts import GUARDED_HOSTS, HOST_FOLDERS, HostName

MAX_WORDS = 4_000
"""How many words of one call are looked up on the disk. A word of a command line counts once for each folder."""
MAX_FOLDERS = 50
"""How many folders one command line may change to. Each `cd` starts where the last one ended, so paths can grow."""
TOO_MUCH = "it has more words or patterns than can be looked through; make it smaller"
TEXT_ARGUMENTS = {"content", "new_string", "old_string", "prompt", "description", "query", "text", "message", "todos"}
"""Arguments that hold text, not paths."""
SEARCH_ARGUMENTS = ("path", "dir_path", "directory", "target_directory")
"""Arguments that name the folder to search, in the tools of hosts."""
_RUNS_IN = re.compile(r"-C(.*)|--(?:chdir|directory|cwd)(?:=(.*))?", re.DOTALL)
"""Options of programs that name the folder in which a command runs."""
_DELETING_TOOL = re.compile(r"delete|remove|move|rename|trash|unlink", re.IGNORECASE)
FILES_OF_PATCH = re.compile(
    r"^(?:[^\S\n]*\*\*\* (?:Add File|Update File|Delete File|Move to): |(?:---|\+\+\+) (?:[ab]/)?)(.+)$", re.MULTILINE
)
HOST_CODE: Mapping[HostName, str] = {
    "claude-code": "settings.json settings.local.json .claude.json agents commands hooks plugins skills workflows",
    # Codex's sessions prove how a command ended.
    "codex": "config.toml hooks.json agents hooks plugins prompts rules sessions skills",
    "gemini": ("settings.json trusted_hooks.json trustedFolders.json agents commands extensions hooks policies skills"),
    "opencode": (
        "opencode.json opencode.jsonc config.json agent agents command commands mode modes plugin plugins skill "
        "skills tool tools"
    ),
    "cursor": "hooks.json mcp.json cli.json agents commands extensions plugins skills",
}
"""The files and folders in each host's own folder that determine what the host runs.

Sources: those of `planwarden.tools.guarded.hosts`, https://code.claude.com/docs/en/settings,
https://developers.openai.com/codex/config-reference, https://geminicli.com/docs/reference/configuration,
https://opencode.ai/docs/config."""
HOST_FILES = (
    *(".claude.json", ".mcp.json", "opencode.json", "opencode.jsonc", ".agents/skills"),
    *("claude-code/managed-settings.json", "ClaudeCode/managed-settings.json"),
)
"""Files outside the hosts' folders that determine what a host runs."""
_CODE_ANYWHERE = tuple(
    f"/{name}".casefold()
    for name in (
        *HOST_FILES,
        *(f"{GUARDED_HOSTS[host].folder}/{code}" for host, codes in HOST_CODE.items() for code in codes.split()),
    )
)
_PLAIN = r"[\w./~${}@+:-]+"
_PRINTING = rf"(?:echo|printf(?! [^\s)`]+ )) ((?!-){_PLAIN}(?: {_PLAIN})*)"
"""Matches a command that prints exactly its words. `printf` prints only its first word."""
_PRINTED = re.compile(rf"\$\({_PRINTING}\)|`{_PRINTING}`")


def find_refusal(home: Path, environment: Mapping[str, str], call: GuardedCall) -> str | None:
    """Return why the call is refused; None if no reason is found. `home` is planwarden's. Commands may use the
    variables in `environment` in their paths."""
    try:
        return _CallCheck(home, environment, call).find_refusal()
    except TooMuch:
        return TOO_MUCH


class _CallCheck:
    """The check of one call. Its methods raise `TooMuch` if the call is too large to check."""

    def __init__(self, home: Path, environment: Mapping[str, str], call: GuardedCall) -> None:
        self._home = os.path.realpath(home)
        self._environment = environment
        self._call = call
        self._patterns = PathPatterns(environment, call.folder)
        self._may_read = call.tool in call.host.reads
        self._words_left = MAX_WORDS

    def find_refusal(self) -> str | None:
        shell = self._call.host.shells.get(self._call.tool)
        command = None if shell is None else shell.command
        checks = (
            self._refuse_command(text) if key == command else self._refuse_argument(key, text)
            for key, text in _list_texts(self._call.given)
        )
        return next(filter(None, (self._refuse_search(), *checks)), None)

    def _refuse_argument(self, key: str, text: str) -> str | None:
        expanded = self._patterns.expand_folders(text)
        paths = [match.strip() for match in FILES_OF_PATCH.findall(expanded)]
        patterns = self._call.host.searches.get(self._call.tool, frozenset({"pattern"}))
        if key not in TEXT_ARGUMENTS and (key != "pattern" or key in patterns):
            paths.append(expanded)
        refusal = self._refuse_paths(paths, [self._call.folder])
        if refusal is None and _DELETING_TOOL.search(self._call.tool):
            refusal = self._refuse_act(Act("delete or move", paths), [self._call.folder])
        return refusal

    def _refuse_command(self, text: str) -> str | None:
        line = _PRINTED.sub(r"\1\2", remove_here_documents(self._patterns.expand_folders(text)))
        line = self._patterns.expand_assigned(line)
        if runs_planwarden(line):
            return (
                "it runs planwarden itself, which decides for people; a model may use planwarden's MCP tools, and "
                "of its commands only list, show, tools, check, rules and doctor"
            )
        if uses_variable(line):
            return "it names a variable that leads to planwarden's settings and database"
        parts = [*list_parts(line)]
        changes = [(None, self._call.folder), *self._resolve_folder_changes(parts)]
        # The command may also run other words than its own: a script that it reads, or the output of another command.
        if re.search(r"<<|\$\(|`", line):
            changes = [(None, folder) for _, folder in changes]
        folders = [folder for _, folder in changes]
        if len(folders) > MAX_FOLDERS:
            raise TooMuch
        only_read = list_read_paths(parts) if re.search(r"\$\(|`", line) is None else ()
        refusal = self._refuse_paths(list_possible_paths(line, parts), folders, only_read)
        checks = (
            self._refuse_act(act, [folder for command, folder in changes if command in (None, words)])
            for words in parts
            for act in list_acts(words)
        )
        return refusal or next(filter(None, checks), None)

    def _refuse_paths(
        self, texts: Collection[str], folders: Sequence[str], only_read: Collection[str] = ()
    ) -> str | None:
        self._words_left -= len(texts) * len(folders)
        if self._words_left < 0:
            raise TooMuch
        # Go folder by folder, so that the refusal names the word that leads to a protected folder, not a later word.
        for folder, text in product(folders, texts):
            may_read = self._may_read or text in only_read
            for path in self._resolve(text, [folder]):
                around = list_around(path)
                if self._home.casefold() in around:
                    return (
                        f"it names {text[:200]!r}, in planwarden's home: its settings, database and keys are for "
                        "people, who use its commands in a terminal"
                    )
                if not may_read and (is_code_of_host(path) or not self._code_paths.isdisjoint(around)):
                    return (
                        f"it names {text[:200]!r}, where a host keeps hooks, servers or code: a person changes that, "
                        "in an editor or with `planwarden guard`"
                    )
        return None

    def _refuse_act(self, act: Act, folders: Sequence[str]) -> str | None:
        """Return why the act is refused; None if it reaches nothing that is protected."""
        places = act.places
        if act.acts_here and not any(os.path.lexists(path) for each in places for path in self._resolve(each, folders)):
            places = ["."]
        for place in places:
            if any(self._reaches_protected(act, path.casefold()) for path in self._resolve(place, folders)):
                return (
                    f"it would {act.does} {place[:200]!r}, which contains planwarden's home or the code of a host; "
                    "name what is below it"
                )
        return None

    def _reaches_protected(self, act: Act, folder: str) -> bool:
        if act.does == "put files into":
            return os.path.basename(folder) in HOST_FOLDERS or folder in map(os.path.dirname, self._code_paths)
        if act.does == "read all of":
            return folder in list_around(self._home)
        return folder in self._ancestors if act.names is None else self._is_above_one_of(act.names, folder)

    def _refuse_search(self) -> str | None:
        """Return why the call may not search its folders; None if it may, or if the tool does not search."""
        patterns = self._call.host.searches.get(self._call.tool)
        if patterns is None:
            return None
        texts = [(key, self._patterns.expand_folders(text)) for key, text in _list_texts(self._call.given)]
        folders = [text for key, text in texts if key in SEARCH_ARGUMENTS] or ["."]
        parts = [find_fixed_part(text) for key, text in texts if key in patterns] or [""]
        roots = [part if part.startswith("~") else os.path.join(folder, part) for folder in folders for part in parts]
        return self._refuse_act(Act("read all of", roots), [self._call.folder])

    @cached_property
    def _code_paths(self) -> frozenset[str]:
        return frozenset(path.casefold() for path in list_code_of_hosts(self._environment, self._call.folder))

    @cached_property
    def _protected(self) -> Sequence[str]:
        """Planwarden's home, and those paths of hosts' code that exist."""
        return [self._home, *filter(os.path.lexists, list_code_of_hosts(self._environment, self._call.folder))]

    @cached_property
    def _ancestors(self) -> frozenset[str]:
        """The protected paths, and all folders above them."""
        return frozenset[str]().union(*map(list_around, self._protected))

    def _is_above_one_of(self, patterns: Sequence[str], folder: str) -> bool:
        """Return whether a pattern fits a name between the folder and a protected path, or a name below that path."""
        inside = {path for path in self._ancestors if folder in list_around(path)}
        protected = [path for path in self._protected if path.casefold() in inside]
        names = {os.path.basename(path) for path in inside}.union(*map(self._patterns.list_names_below, protected))
        return any(fnmatchcase(name.casefold(), pattern.casefold()) for name in names for pattern in patterns)

    def _resolve(self, text: str, folders: Sequence[str]) -> Iterator[str]:
        is_shell = self._call.tool in self._call.host.shells
        for folder in folders:
            yield from self._patterns.resolve(text, folder, has_braces=is_shell)

    def _resolve_folder_changes(self, parts: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str] | None, str]]:
        """Yield pairs for the first `MAX_FOLDERS` changes of folder: the words of the one command that runs in the new
        folder, or None if every later command may run there; and the absolute path of the folder."""
        folder = self._call.folder
        for command, change in islice(_list_folder_changes(parts), MAX_FOLDERS):
            for path in sorted(self._patterns.resolve(change, folder), key=os.path.isdir):
                folder = path if command is None else folder
                yield command, path


def _list_texts(value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the key and the text of every text in the arguments. Also yield a list of texts as one text."""
    stack: list[tuple[str, JsonValue]] = [("", value)]
    while stack:
        key, node = stack.pop()
        if isinstance(node, str):
            yield key, node
        elif isinstance(node, dict):
            stack.extend((key if key in TEXT_ARGUMENTS else name, child) for name, child in node.items())
        elif isinstance(node, list):
            stack.extend((key, child) for child in node)
            if node and all(isinstance(child, str) for child in node):
                # The list may hold the words of a command.
                yield key, " ".join(map(str, node))


def _list_folder_changes(parts: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str] | None, str]]:
    """Yield pairs: the words of the command that runs in the folder, or None for all later commands; and the folder."""
    for words in parts:
        moves = False
        for word, following in pairwise([*words, ""]):
            if moves and not word.startswith("-"):
                yield None, word
            moves = word in ("cd", "pushd", "chdir") or (moves and word.startswith("-"))
            if moves and not following:
                yield None, "~"
            if option := _RUNS_IN.fullmatch(word):
                yield words, option[1] or option[2] or following


def is_code_of_host(path: str) -> bool:
    """Return whether a host runs code from this path, judged by the names in the path."""
    folded = path.replace(os.sep, "/").casefold()
    return any(folded.endswith(ending) or f"{ending}/" in folded for ending in _CODE_ANYWHERE)


def list_code_of_hosts(environment: Mapping[str, str], folder: str) -> Iterator[str]:
    """Yield the paths from which each host runs code: those in the environment, and those in projects around the
    folder. Links are followed, and the paths need not exist.
    """
    for host, codes in HOST_CODE.items():
        files = find_hook_files(host, environment, None)
        bases = [os.path.dirname(files[-1].path)]
        if host == "opencode" and environment.get("OPENCODE_CONFIG_DIR"):
            bases.append(environment["OPENCODE_CONFIG_DIR"])
        name = GUARDED_HOSTS[host].folder
        bases += filter(os.path.isdir, (os.path.join(project, name) for project in _list_upwards(folder)))
        yield from (os.path.realpath(os.path.join(base, code)) for base in bases for code in codes.split())
        yield from (os.path.realpath(file.path) for file in files)


def list_around(path: str) -> frozenset[str]:
    """Return the path and every folder above it, in one spelling for file systems that ignore case."""
    return frozenset(_list_upwards(path.casefold()))


def _list_upwards(path: str) -> Iterator[str]:
    yield path
    while path != (path := os.path.dirname(path)):
        yield path
