"""What a model may not touch whatever the rules say: planwarden's decisions, its files, and the hooks of the host.

The check reads calls as well as it can and errs towards refusing. It cannot see what a script does once it has started,
what a variable holds, or what a program writes by itself. If a command line could hide any of these, a person is
asked. See docs/guard.md.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import dropwhile, islice, pairwise
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.core.binding.pointers import MAX_ARGUMENT_BYTES
from planwarden.server.guard.calls import MAX_FOLDER_CHARS, GuardedCall
from planwarden.server.guard.install.hook_files import find_hook_files
from planwarden.server.guard.path_patterns import PathPatterns, TooMuch, find_fixed_part
from planwarden.tools.guarded.hosts import HostName
from planwarden.tools.guarded.programs import Program, find_program, read_options
from planwarden.tools.guarded.shell import RESERVED, list_words
from planwarden.tools.guarded.wrappers import InnerCommands

MAX_WORDS = 4_000
"""The most words of one call that are looked up on the disk; a word of a command line counts once for each folder."""
MAX_FOLDERS = 50
"""The most folders in which one command line works: each `cd` starts where the previous one led, so paths can grow."""
TOO_MUCH = "it has more words or patterns than can be looked through; make it smaller"
PROGRAM = "planwarden"
READING = frozenset({"list", "show", "tools", "check", "doctor", "rules", "--version", "--help", "-h"})
"""Commands of planwarden that a model may run: they decide nothing and write nothing."""
DECIDING = frozenset(
    {
        *("serve", "worker", "plans", "init", "demo", "run", "run-goal", "call", "approve", "reject", "cancel"),
        *("retry", "inbox", "trust", "login", "notify", "schedule", "hook", "grant", "once", "promises", "receipt"),
        *("key", "audit", "prune", "backup", "move", "token", "guard", "gate", "config", "service", "completion"),
    }
)
"""All other commands of planwarden."""
GLOBAL_OPTIONS = Program("home= store= model= mcp-config=")
MAX_OPTIONS = 100
"""The most words among which a command of planwarden is sought."""
VARIABLES = ("PLANWARDEN_HOME", "PLANWARDEN_STORE")
"""Variables that could lead planwarden or a command to another home; a command may only search for their names."""
CONTENT = frozenset(
    {"content", "new_string", "old_string", "prompt", "description", "query", "text", "message", "todos"}
)
"""Arguments that hold prose or text, and not paths."""
DELETING = frozenset(
    {
        *("rm", "rmdir", "mv", "unlink", "shred", "srm", "rename", "rimraf", "trash", "trash-put", "-delete"),
        *("--delete", "rd", "del", "erase", "remove-item", "move-item", "rename-item"),
    }
)
"""Programs and options that delete or move what they are given, with all that is in it."""
COPYING = frozenset({"cp", "mv", "ln", "rsync", "install", "scp", "ditto", "tar", "bsdtar", "unzip", "cpio"})
"""Programs that put files into a given folder."""
SEARCHING = frozenset({"rg", "ag", "ack", "grep", "egrep", "fgrep", "zgrep", "ugrep", "rgrep", "--no-index"})
"""Programs and options that search the folder in which the command runs if it is given no other folder."""
READING_FILES = frozenset(
    {
        *("cat", "head", "tail", "wc", "ls", "stat", "diff", "cmp", "md5sum", "sha256sum", "du", "jq", "[", "test"),
        *("grep", "egrep", "fgrep", "rg"),
    }
)
"""Programs that change no file that they are given."""
READING_OF_GIT = frozenset({"add", "blame", "check-ignore", "commit", "diff", "log", "ls-files", "show", "status"})
LOCKING = frozenset({"chmod", "chown", "chgrp"})
"""Programs that can keep a host from reading its files."""
GIVING = frozenset({"xargs", "parallel"})
"""Programs that pass the words on their standard input to a command, as arguments."""
READING_ALL = frozenset(
    {
        *("rg", "ag", "ack", "ugrep", "rgrep", "--no-index", "tar", "bsdtar", "pax", "rsync", "zip"),
        *("7z", "7za", "7zr", "7zz", "-exec", "-execdir"),
    }
)
"""Programs and options that read all folders below a given one; those in `READING_MUCH` need a recursive option."""
READING_MUCH = frozenset({"grep", "egrep", "fgrep", "zgrep", "cp", "scp", "diff"})
PLACES = ("path", "dir_path", "directory", "target_directory")
"""Arguments of hosts' tools that name the folder to search."""
HOST_FOLDERS: Mapping[HostName, tuple[str, str]] = {
    "claude-code": (
        ".claude",
        "settings.json settings.local.json .claude.json agents commands hooks plugins skills workflows",
    ),
    # Codex's sessions prove how a command ended.
    "codex": (".codex", "config.toml hooks.json agents hooks plugins prompts rules sessions skills"),
    "gemini": (
        ".gemini",
        "settings.json trusted_hooks.json trustedFolders.json agents commands extensions hooks policies skills",
    ),
    "opencode": (
        ".opencode",
        (
            "opencode.json opencode.jsonc config.json agent agents command commands mode modes plugin plugins skill "
            "skills tool tools"
        ),
    ),
    "cursor": (".cursor", "hooks.json mcp.json cli.json agents commands extensions plugins skills"),
}
"""The name of each host's folder in projects and most homes, and the entries there that say what the host runs.

Sources: those of `planwarden.tools.guarded.hosts`, https://code.claude.com/docs/en/settings,
https://developers.openai.com/codex/config-reference, https://geminicli.com/docs/reference/configuration,
https://opencode.ai/docs/config, https://cursor.com/docs/agent/hooks."""
HOST_FILES = (
    *(".claude.json", ".mcp.json", "opencode.json", "opencode.jsonc", ".agents/skills"),
    *("claude-code/managed-settings.json", "ClaudeCode/managed-settings.json"),
)
"""Files outside `HOST_FOLDERS` that say what a host runs."""
_HOST_FOLDER_NAMES = frozenset(name for name, _ in HOST_FOLDERS.values())
_CODE_ANYWHERE = tuple(
    f"/{name}".casefold()
    for name in (*HOST_FILES, *(f"{name}/{code}" for name, codes in HOST_FOLDERS.values() for code in codes.split()))
)
_RECURSIVE = re.compile(r"-(?=[A-Za-z]*[arR])[A-Za-z]+|--(?:dereference-)?recu\w*|--ar\w*|(?:--dir\w*=)?recurse")
_GLUED = re.compile(r"\A-[A-Za-z]*?(?:[txX]|(?=[^A-Za-z-]))(.+)", re.DOTALL)
"""An option with its value in the same word."""
_RUNS_IN = re.compile(r"-C(.*)|--(?:chdir|directory|cwd)(?:=(.*))?", re.DOTALL)
"""Options of programs that name the folder in which a command runs."""
MAX_DEPTH = 8
"""The most levels of command lines that are quoted inside one another."""
_DELETING_CODE = re.compile(
    r"(?i)(?:rmtree|rm_r|rmsync|rmdir|unlink|rename|remove|delete|move|trash)[\w-]{0,20}\s{0,9}[\"'(]|[\"']rm[\"']|\.rm\("
)
_INTERPRETER = re.compile(r"python|perl|ruby|node|php|lua|deno|bun|tclsh|osascript")
_SCRIPT = re.compile(rf"(?:{_INTERPRETER.pattern})[\d.]*")
_NOTES = frozenset({"git", "gh", "glab", "hg", "jj"})
_NOTE = re.compile(r"-[a-z]*m|-[SG]|--(?:message|body|title|notes|author|format|grep|pretty|search|trailer)")
"""Options of these programs whose value is a text for people, or to search for. Those of a shell among their words are
none."""
_NOTE_OF_GH = re.compile("-[bnt]")
CONTAINERS = frozenset({"docker", "docker-compose", "podman", "nerdctl", "kubectl", "oc"})
"""Programs whose `run` and `exec` run a command that reaches only what is mounted from this machine."""
_MOUNT = re.compile(
    r"(?s)(?:-v|--volume=)?([^:]+):(/(?!/)[^:]*)(?::.*)?"
    r"|(?=.*\b(?:src|source)=([^,]+)).*\b(?:dst|target|destination)=([^,]+).*"
)
PRINTING = frozenset({"echo", "printf"})
"""Programs that do nothing with their words but print them."""
KEEPING = PRINTING | {"", "cd", "mkdir", "tee", "gh", "glab"}
"""Programs that run nothing that others print or write; so do those that only read."""
_TARGET = re.compile(r"\d?&?>{1,2}(?:&\d|[ \t]*[\w./~@%+:-]+)(?=[\s;&|)]|\Z)")
"""A redirection to a file."""
_TEXT = re.compile(
    r"(?s)\A((?:[^'\"`\\#<$()]|'[^']*'|\"[^\"\\`$]*\")*)(\"\$\(cat )?<<-?[ \t]*(['\"])?(\w+)(?(3)\3)"
    r"((?![\w.-])[^'\"`\\#<$()\n]*)\n(?(3)(?:.*?\n)??|(?:[^`$\\]*?\n)??)\t*\4(?(2)\n\)\"|(?=\n|\Z))"
)
"""A text on the following lines, behind words that a shell reads in one way only."""
_DELETING_TOOL = re.compile(r"delete|remove|move|rename|trash|unlink", re.IGNORECASE)
FILES_OF_PATCH = re.compile(
    r"^(?:[^\S\n]*\*\*\* (?:Add File|Update File|Delete File|Move to): |(?:---|\+\+\+) (?:[ab]/)?)(.+)$", re.MULTILINE
)
_FOLDER_VARIABLE = re.compile(
    r"\$\{(?:env:)?(HOME|XDG_DATA_HOME|XDG_CONFIG_HOME|CODEX_HOME|CLAUDE_CONFIG_DIR|PWD)(?:[^\w{}][^{}]*)?\}"
    r"|\$(?:env:)?(HOME|XDG_DATA_HOME|XDG_CONFIG_HOME|CODEX_HOME|CLAUDE_CONFIG_DIR|PWD)|\$\(pwd\)|`pwd`"
)
_ASSIGNED = re.compile(
    r"(?<![\w$./-])(?:(?P<name>[A-Za-z_]\w{0,99})=(?P<value>[^\s;&|()]+)|for (?P<each>\w{1,99}) in (?P<values>[^;\n]+))"
)
"""What gives a variable a value, or one value after the other."""
_PLAIN_VALUE = re.compile(r"[\"']?(?:[\w./~*@%+:-]|\$\{?\w+\}?)+[\"']?")
MAX_ALTERNATIVES = 10
"""The most values that are looked up of one variable, so that two loops inside each other can be."""
_USED = re.compile(r"\$(?:(\w+)|\{(\w+)(?:[^\w{}][^{}]*)?\})")
_PREFIX = re.compile(r"\A(?:[\w.-]*=!?|[!+|]+)")
"""Matches what may precede a command line in the same word."""
_FINDS_HERE = re.compile(r"(?s)(?:.*[/ ])?find(?: -[HLP])*(?: -[^HLP].*)?")
_CLEAN = Program("-dfinqxX dry-run force interactive quiet -e= exclude=")
_UNCLEAR_FIND = re.compile(r"[\\$`]|\[[\[^]| (?:-L|-follow) |\{\}/| -i?name \.+ ")
"""Patterns that `find` reads in its own way, links that it follows, and paths near what it finds."""
_ENDS_OF_TERMS = frozenset({"-o", "-or", ",", "-delete", "-exec", "-execdir", "-ok", "-okdir"})
"""Words of `find` before which a term has to have named the files."""
_SPLIT = re.compile(r"[\s=,:'\"`()\[\]{}<>|;&]+")
_PATH = re.compile(r"(?:~|\.{1,2})?/.*", re.DOTALL)


def find_refusal(home: Path, environment: Mapping[str, str], call: GuardedCall) -> str | None:
    """Return why the call is refused; None if no reason is found. `home` is planwarden's; a command may name
    paths by the variables in `environment`."""
    try:
        return _CallCheck(home, environment, call).find_refusal()
    except TooMuch:
        return TOO_MUCH


class _CallCheck:
    """The check of one call, which raises `TooMuch` for a call that is too large to check."""

    def __init__(self, home: Path, environment: Mapping[str, str], call: GuardedCall) -> None:
        self._home = os.path.realpath(home)
        self._environment = environment
        self._call = call
        self._patterns = PathPatterns(environment)
        self._may_read = call.tool in call.host.reads
        self._words_left = MAX_WORDS
        self._chars_left = MAX_ARGUMENT_BYTES

    def find_refusal(self) -> str | None:
        shell = self._call.host.shells.get(self._call.tool)
        command = None if shell is None else shell.command
        checks = (
            self._refuse_command(text) if key == command else self._refuse_argument(key, text)
            for key, text in _list_texts(self._call.given)
        )
        return next(filter(None, (self._refuse_search(), *checks)), None)

    def _refuse_argument(self, key: str, text: str) -> str | None:
        expanded = self._expand(text)
        paths = [match.strip() for match in FILES_OF_PATCH.findall(expanded)]
        patterns = self._call.host.searches.get(self._call.tool, frozenset({"pattern"}))
        if key not in CONTENT and (key != "pattern" or key in patterns):
            paths.append(expanded)
        refusal = self._refuse_paths(paths, [self._call.folder])
        if refusal is None and _DELETING_TOOL.search(self._call.tool):
            refusal = self._refuse_folders(paths, [self._call.folder], self._above.__contains__, "delete or move")
        return refusal

    def _refuse_command(self, text: str) -> str | None:
        line = self._expand_assigned(_leave_out_texts(self._expand(text)))
        if _runs_planwarden(line):
            return (
                "it runs planwarden itself, which decides for people; a model may use planwarden's MCP tools, and "
                "of its commands only list, show, tools, check, rules and doctor"
            )
        if _uses_variable(line):
            return "it names a variable that leads to planwarden's settings and database"
        parts = [*_list_parts(line)]
        changes = [(None, self._call.folder), *self._list_folders(parts)]
        # The words of a command are not all that it runs: it may read a script, or run what others print.
        if re.search(r"<<|\$\(|`", line):
            changes = [(None, folder) for _, folder in changes]
        folders = [folder for _, folder in changes]
        if len(folders) > MAX_FOLDERS:
            raise TooMuch
        only_read = _list_only_read(parts) if re.search(r"\$\(|`", line) is None else ()
        refusal = self._refuse_paths(_list_candidates(line, parts), folders, only_read)
        checks = (
            self._refuse_part(words, [folder for command, folder in changes if command in (None, words)])
            for words in parts
        )
        return refusal or next(filter(None, checks), None)

    def _refuse_paths(
        self, texts: Collection[str], folders: Sequence[str], only_read: Collection[str] = ()
    ) -> str | None:
        self._words_left -= len(texts) * len(folders)
        if self._words_left < 0:
            raise TooMuch
        for text in texts:
            for path in self._resolve(text, folders):
                refusal = self._refuse_path(text, path, may_read=self._may_read or text in only_read)
                if refusal is not None:
                    return refusal
        return None

    def _refuse_path(self, text: str, path: str, *, may_read: bool) -> str | None:
        around = _list_around(path)
        if self._home.casefold() in around:
            return (
                f"it names {text[:200]!r}, in planwarden's home: its settings, database and keys are for people, who "
                "use its commands in a terminal"
            )
        if not may_read and (is_code_of_host(path) or not self._code.isdisjoint(around)):
            return (
                f"it names {text[:200]!r}, where a host keeps hooks, servers or code: a person changes that, in an "
                "editor or with `planwarden guard`"
            )
        return None

    def _refuse_part(self, words: Sequence[str], folders: Sequence[str]) -> str | None:
        """Return why the command is refused if it acts on all of a folder with protected paths; None otherwise."""
        operands = _list_operands(words)
        programs = frozenset(re.split(r"[/=!{]", word)[-1].lower() for word in (*words[:1], *operands))
        if programs & LOCKING and any(map(_RECURSIVE.fullmatch, words)):
            programs |= {"-delete"}
        refusal = None
        if programs & DELETING:
            # `mv` moves all its operands but the last, and moves them to the last.
            moved = _list_operands(words[:-1]) if "mv" in programs else operands
            moved = ["."] if _FINDS_HERE.fullmatch(" ".join(words)) else moved
            names = _list_sought_names(words)
            is_lost = self._above.__contains__ if names is None else partial(self._is_above_one_of, names)
            refusal = self._refuse_folders(moved, folders, is_lost, "delete or move")
            run = [] if names is None else [*dropwhile(lambda word: word not in _ENDS_OF_TERMS, words)]
            if refusal is None and run:
                # What runs for each name may delete something else, too.
                refusal = self._refuse_part([word for word in run[1:] if word not in (";", "+", "{}")], folders)
        if refusal is None and "clean" in programs:
            refusal = self._refuse_folders(_list_cleaned(words), folders, self._above.__contains__, "delete or move")
        if refusal is None and programs & COPYING:
            refusal = self._refuse_folders(operands, folders, self._is_code_folder, "put files into")
        if refusal is None and _reads_all(programs, words):
            is_given = any(os.path.lexists(path) for word in operands for path in self._resolve(word, folders))
            searched = operands if is_given or not programs & SEARCHING else ["."]
            refusal = self._refuse_folders(searched, folders, self._above_home.__contains__, "read all of")
        return refusal

    def _refuse_folders(
        self, texts: Sequence[str], folders: Sequence[str], is_refused: Callable[[str], bool], what: str
    ) -> str | None:
        for text in texts:
            if any(is_refused(path.casefold()) for path in self._resolve(text, folders)):
                return (
                    f"it would {what} {text[:200]!r}, which contains planwarden's home or the code of a host; name "
                    "what is below it"
                )
        return None

    def _refuse_search(self) -> str | None:
        """Return why a search tool of the host may not search its folders; None if it may, or for other tools."""
        patterns = self._call.host.searches.get(self._call.tool)
        if patterns is None:
            return None
        texts = [(key, self._expand(text)) for key, text in _list_texts(self._call.given)]
        folders = [text for key, text in texts if key in PLACES] or ["."]
        parts = [find_fixed_part(text) for key, text in texts if key in patterns] or [""]
        roots = [part if part.startswith("~") else os.path.join(folder, part) for folder in folders for part in parts]
        return self._refuse_folders(roots, [self._call.folder], self._above_home.__contains__, "read all of")

    @cached_property
    def _code(self) -> frozenset[str]:
        return frozenset(path.casefold() for path in list_code_of_hosts(self._environment, self._call.folder))

    @cached_property
    def _code_folders(self) -> frozenset[str]:
        return frozenset(map(os.path.dirname, self._code))

    @cached_property
    def _above_home(self) -> frozenset[str]:
        return _list_around(self._home)

    def _is_code_folder(self, folded: str) -> bool:
        return os.path.basename(folded) in _HOST_FOLDER_NAMES or folded in self._code_folders

    @cached_property
    def _protected(self) -> Sequence[str]:
        """Return planwarden's home and existing code of hosts."""
        code = list_code_of_hosts(self._environment, self._call.folder)
        return [self._home, *filter(os.path.lexists, code)]

    @cached_property
    def _above(self) -> frozenset[str]:
        """Return what is protected, and all folders above it."""
        return frozenset[str]().union(*map(_list_around, self._protected))

    def _is_above_one_of(self, patterns: Sequence[str], folder: str) -> bool:
        """Return whether a pattern fits the name of something that is protected, or above that, and in the folder."""
        inside = {path for path in self._above if folder in _list_upwards(path)}
        protected = [path for path in self._protected if path.casefold() in inside]
        names = {os.path.basename(path) for path in inside}.union(*map(self._patterns.list_names_below, protected))
        return any(fnmatchcase(name.casefold(), pattern.casefold()) for name in names for pattern in patterns)

    def _resolve(self, text: str, folders: Sequence[str]) -> Iterator[str]:
        is_shell = self._call.tool in self._call.host.shells
        for folder in folders:
            yield from self._patterns.resolve(text, folder, has_braces=is_shell)

    def _list_folders(self, parts: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str] | None, str]]:
        """Yield each folder that the first `MAX_FOLDERS` changes of folder may lead to, after the words of the command
        that runs there, or after None if every later command may run there."""
        folder = self._call.folder
        for command, change in islice(_list_changes(parts), MAX_FOLDERS):
            for path in sorted(self._patterns.resolve(change, folder), key=os.path.isdir):
                folder = path if command is None else folder
                yield command, path

    def _expand(self, text: str) -> str:
        """Return the text with variables that name folders, such as `$HOME`, replaced by their values."""
        values = {**self._environment, "PWD": self._call.folder}

        return self._insert(_FOLDER_VARIABLE, lambda match: values.get(match[1] or match[2] or "PWD"), text)

    def _insert(self, variables: re.Pattern[str], find: Callable[[re.Match[str]], str | None], text: str) -> str:
        """Return the text in which each variable with a value is replaced by it. Raises `TooMuch`."""

        def replace(match: re.Match[str]) -> str:
            value = find(match) or match[0]
            self._chars_left -= len(value)
            if self._chars_left < 0:
                raise TooMuch
            return value

        return variables.sub(replace, text)

    def _expand_assigned(self, line: str) -> str:
        """Return the line with each variable that it assigns replaced by its values: several values in braces."""
        values: dict[str, list[str]] = {}

        def find(match: re.Match[str]) -> str | None:
            alternatives = values.get(match[1] or match[2], ())[:MAX_ALTERNATIVES]
            return f"{{{','.join(alternatives)}}}" if len(alternatives) > 1 else "".join(alternatives)

        for match in _ASSIGNED.finditer(line):
            words = (match["value"] or match["values"]).split()
            plain = [word.strip("\"'") for word in words if _PLAIN_VALUE.fullmatch(word)]
            values.setdefault(match["name"] or match["each"], []).extend(
                self._insert(_USED, find, word) for word in plain
            )
        return self._insert(_USED, find, line)


def _list_texts(value: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield every text in the arguments, each with the key above it; yield a list of texts also as one text."""
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
                # The list may be a command, split into words.
                yield key, " ".join(map(str, node))


def _list_changes(parts: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str] | None, str]]:
    """Yield each folder that a line changes to, after the words of the one command that runs there, or after None."""
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


def _list_parts(line: str, depth: int = 0, *, runs_text: bool = False) -> Iterator[list[str]]:
    """Yield the words of each part of the line, and of each word in it that may be a line or code itself. `runs_text`
    says whether what it prints may be run."""
    is_code = depth > 0 or ("<<" in line and _INTERPRETER.search(line) is not None)
    if is_code and _DELETING_CODE.search(line):
        # The check cannot read what code does with a path, so it assumes that the code deletes.
        yield ["-delete", *(piece for piece in _SPLIT.split(line) if piece not in ("", ".", "/"))]
    operands: list[str] = []
    all_words = [inner for words in list_words(line) for inner in _read_container(words)]
    runners = sum(not _keeps_text(words) for words in _list_commands(line))
    for words in all_words:
        is_run = runs_text or runners > (not _keeps_text(words))
        is_said = not is_run and _find_name(words) in PRINTING
        yield words[:1] if is_said else words
        programs = {word.rpartition("/")[2] for word in words}
        if _find_name(words) != "cd":
            operands += (piece for word in words for piece in word.split() if piece not in (".", "find"))
        has_notes = programs & _NOTES and not any(map(_is_shell, programs))
        if depth < MAX_DEPTH and programs.isdisjoint(SEARCHING) and not is_said:
            for before, word in pairwise(("", *words)):
                is_note = _NOTE.fullmatch(before) or _NOTE.match(word)
                is_note = is_note or ("gh" in programs and _NOTE_OF_GH.fullmatch(before))
                if re.search(r"[\s(]", word) and not (is_note and has_notes):
                    yield from _list_parts(_PREFIX.sub("", word, count=1), depth + 1, runs_text=is_run)
    if not GIVING.isdisjoint(operands) or "read" in map(_find_name, all_words):
        yield ["xargs", *operands]


def _read_container(words: list[str]) -> Iterator[list[str]]:
    """Yield the words, or for a command that runs in a container: what of it reaches this machine, with the places of
    this machine for those at which they are mounted."""
    if _find_name([word for word in words if word != "sudo"]) not in CONTAINERS or {"run", "exec"}.isdisjoint(words):
        yield words
        return
    mounts = {match[2] or match[4]: match[1] or match[3] for word in words if (match := _MOUNT.fullmatch(word))}
    if not mounts:
        return
    places = "|".join(re.escape(place.rstrip("/")) for place in sorted(mounts, reverse=True))
    mounted = re.compile(rf"(?<![\w./~-])({places})/?(?=[/\s'\";*)]|\Z)")
    mounts = {place.rstrip("/"): folder for place, folder in mounts.items()}
    reaching = [mounted.sub(lambda match: mounts[match[1]] + "/", word) for word in words if not _MOUNT.fullmatch(word)]
    for option, word in pairwise(reaching):
        if option in ("-w", "--workdir") or word.startswith("--workdir="):
            yield ["cd", word.removeprefix("--workdir=")]
    yield reaching


def _leave_out_texts(line: str) -> str:
    """Return the line without the texts in it, if no command in the line may run them."""
    shorter = line
    for _ in range(MAX_DEPTH):
        shorter = _TEXT.sub(r"\1\5", shorter)
    return shorter if all(map(_keeps_text, _list_commands(shorter))) else line


def _list_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of the line, without the files to which it writes what it prints."""
    return list_words(_TARGET.sub("", line))


def _keeps_text(words: Sequence[str]) -> bool:
    """Return whether the command runs nothing that others print or write."""
    return _find_name(words) in KEEPING or _only_reads(words)


def _only_reads(words: Sequence[str]) -> bool:
    """Return whether the command changes no file that it is given."""
    program, first = _find_name(words[:1]), "".join(words[1:2])
    reads = program in READING_FILES or (program == "git" and first in READING_OF_GIT)
    return reads and "--ou" not in " ".join(words)


def _find_name(words: Sequence[str]) -> str:
    """Return the name of the program that the command runs; empty if it has none."""
    words = [*islice(dropwhile(lambda word: "=" in word or word in RESERVED, words), 1)]
    return "".join(words).rpartition("/")[2]


def _is_shell(word: str) -> bool:
    program = find_program(word)
    return program is not None and program.then in ("script", "line")


def _list_candidates(line: str, parts: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return every piece of the command line that may be a path."""
    return frozenset(_list_pieces(_SPLIT.split(line))) | frozenset(
        piece for words in parts for piece in _list_pieces(words)
    )


def _list_pieces(words: Iterable[str]) -> Iterator[str]:
    for piece in {piece for word in words for piece in (word, *_SPLIT.split(word))}:
        yield piece
        # A path may be glued to an option.
        yield from (start[0] for start in (_PATH.search(piece),) if start is not None)


def _list_only_read(parts: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return what may be a path in the commands of the line that only read or run a file, and in no other command."""
    read, other = set[str](), set[str]()
    for words in parts:
        command = [*dropwhile(RESERVED.__contains__, words)]
        program, script = _find_name(command[:1]), "".join(command[1:2])
        runs_script = _SCRIPT.fullmatch(program) is not None or _is_shell(program)
        is_script = runs_script and not script.startswith("-")
        count = len(command) if _only_reads(command) else 2 if is_script else 0
        read.update(_list_pieces(command[:count]))
        other.update(_list_pieces(command[count:]))
    return frozenset(read - other)


def _list_cleaned(words: Sequence[str]) -> Sequence[str]:
    """Return the folders from which `git clean` deletes ignored files."""
    rest = [*dropwhile(lambda word: word != "clean", dropwhile(lambda word: not word.endswith("git"), words))][1:]
    options, paths, behind = read_options(_CLEAN, rest, len(rest))
    flags = " ".join(option.word for option in options)
    is_safe = re.search(r"(?<!-)-[A-Za-z]*[xX]", flags) is None or re.search("-[A-Za-z]*n", flags)
    is_safe = is_safe or any(option.value in _HOST_FOLDER_NAMES for option in options)
    return [] if is_safe else [*paths, *behind] or ["."]


def _list_sought_names(words: Sequence[str]) -> Sequence[str] | None:
    """Return patterns: one of them fits each name on which `find` acts. Return None if it may act on other names."""
    if _find_name(words) != "find" or _UNCLEAR_FIND.search(" ".join(words)):
        return None
    names, is_named = list[str](), False
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        if word in ("-name", "-iname") and before not in ("!", "-not"):
            names.append(after)
            is_named = True
        elif (word in _ENDS_OF_TERMS and not is_named) or (word == "(" and before in ("!", "-not")):
            return None
        is_named &= word not in ("-o", "-or", ",")
    return names if is_named else None


def _list_operands(words: Sequence[str]) -> list[str]:
    """Return the operands of a command, including the values that are glued to options."""
    return [
        piece
        for word in words[1:]
        for piece in dict.fromkeys((word, word.rpartition("=")[2], *_GLUED.findall(word[:MAX_FOLDER_CHARS])))
    ]


def _reads_all(programs: frozenset[str], words: Sequence[str]) -> bool:
    is_recursive = any(_RECURSIVE.fullmatch(word) for word in words)
    return bool(programs & READING_ALL or (programs & READING_MUCH and is_recursive))


def _runs_planwarden(text: str) -> bool:
    """Return whether the line runs planwarden, directly or through a wrapper, to do more than read."""
    sure: dict[tuple[str, ...], bool] = dict.fromkeys(map(tuple, _list_parts(text)), False)
    sure.update(dict.fromkeys(map(tuple, list_words(text)), True))
    sure.update(InnerCommands(text).list_words())
    return any(_decides(words, is_sure=is_sure) for words, is_sure in sure.items())


def _decides(words: Sequence[str], *, is_sure: bool) -> bool:
    words = [*dropwhile(lambda word: "=" in word or word in RESERVED, words)]
    program = find_program("".join(words[:1]))
    if program is not None and program.then == "module":
        options, _, rest = read_options(program, words[1:], 0)
        option = options[-1] if options and options[-1].kind == "line" else None
        if option is not None and option.name == "c":
            return PROGRAM in (option.value or "")
        ran = rest if option is None else [option.value or "", *rest]
        words = [*ran] if ran and _is_planwarden(ran[0]) else words
    if words and _is_planwarden(words[0]):
        command = _find_command(words[1:])
        return (command not in READING or "--yes" in words) if is_sure else command in DECIDING
    # A wrapper may have unknown options, so any of its words may begin the command.
    is_wrapper = program is not None and program.then not in ("git", "nothing")
    return is_wrapper and any(
        _is_planwarden(word) and _find_command(words[index : index + MAX_OPTIONS]) in DECIDING
        for index, word in enumerate(words, 1)
    )


def _is_planwarden(word: str) -> bool:
    # Python's option `-m` may be glued to other options, and to the name of the module.
    word = re.sub(rf"^-[A-Za-z]*?m(?={PROGRAM})", "", word)
    name = word.replace("\\", "/").rpartition("/")[2].removesuffix(".exe").partition("@")[0].partition("[")[0]
    return name == PROGRAM or name == "planwarden.server.main"


def _uses_variable(text: str) -> bool:
    """Return whether the line names a variable of planwarden, other than to search for its name."""
    name = "|".join(VARIABLES)
    naming = [words for words in list_words(text) if any(re.search(name, word) for word in words)]
    searches = naming and all(words[0].rpartition("/")[2] in {*SEARCHING, "git"} for words in naming)
    has_value = re.search(rf"\$[{{!#]*(?:{name})|(?:{name})\+?=", text)
    return re.search(name, text) is not None and not (searches and has_value is None)


def _find_command(words: Sequence[str]) -> str:
    """Return the command of planwarden, or an option in its place; an empty text if there is none."""
    options, _, rest = read_options(GLOBAL_OPTIONS, words, 0)
    return next((option.word for option in options if option.kind == "unknown"), "".join(rest[:1]))


def _list_around(path: str) -> frozenset[str]:
    """Return the path and every folder above it, in one spelling for file systems that ignore case."""
    return frozenset(_list_upwards(path.casefold()))


def _list_upwards(path: str) -> Iterator[str]:
    yield path
    while path != (path := os.path.dirname(path)):
        yield path


def is_code_of_host(path: str) -> bool:
    """Return whether the path has the name of a host's code, or is inside such a path."""
    folded = path.replace(os.sep, "/").casefold()
    return any(folded.endswith(ending) or f"{ending}/" in folded for ending in _CODE_ANYWHERE)


def list_code_of_hosts(environment: Mapping[str, str], folder: str) -> Iterator[str]:
    """Yield the places of each host's code: those that the environment names, and those in projects around the folder.

    Links are followed, and the paths need not exist.
    """
    for host, (name, codes) in HOST_FOLDERS.items():
        files = find_hook_files(host, environment, None)
        bases = [os.path.dirname(files[-1].path)]
        if host == "opencode" and environment.get("OPENCODE_CONFIG_DIR"):
            bases.append(environment["OPENCODE_CONFIG_DIR"])
        bases += filter(os.path.isdir, (os.path.join(project, name) for project in _list_upwards(folder)))
        yield from (os.path.realpath(os.path.join(base, code)) for base in bases for code in codes.split())
        yield from (os.path.realpath(file.path) for file in files)
