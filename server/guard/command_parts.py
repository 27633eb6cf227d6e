"""Splits a command line into everything that may run: its commands, and the command lines and code that are quoted in
their words. Texts that no command can run are left out: those that are only printed, are for people, or stay in a
container. The module also finds commands of planwarden itself; a model may run only those that read.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, dropwhile, islice, pairwise

from planwarden.tools.guarded.programs import Program, find_program, read_options
from planwarden.tools.guarded.shell import RESERVED, InnerCommands, list_words

MAX_DEPTH = 8
"""How deeply command lines may be quoted inside one another."""
SEARCHING = frozenset({"rg", "ag", "ack", "grep", "egrep", "fgrep", "zgrep", "ugrep", "rgrep", "--no-index"})
"""Programs and options that search the current folder unless the command names another one."""
ONLY_READING = {
    *("cat", "head", "tail", "wc", "ls", "stat", "diff", "cmp", "md5sum", "sha256sum", "du", "jq", "[", "test"),
    *("grep", "egrep", "fgrep", "rg"),
}
"""Programs that only read the files that they are given."""
READING_GIT_COMMANDS = frozenset(
    {"add", "blame", "check-ignore", "commit", "diff", "log", "ls-files", "show", "status"}
)
RUNS_INPUT_WORDS = frozenset({"xargs", "parallel"})
"""Programs that run a command with the words of their standard input as its arguments."""
_DELETING_CODE = re.compile(
    r"(?i)(?:rmtree|rm_r|rmsync|rmdir|unlink|rename|remove|delete|move|trash)[\w-]{0,20}\s{0,9}[\"'(]|[\"']rm[\"']|\.rm\("
)
_INTERPRETER = re.compile(r"python|perl|ruby|node|php|lua|deno|bun|tclsh|osascript")
_SCRIPT = re.compile(rf"(?:{_INTERPRETER.pattern})[\d.]*")
_PROGRAMS_WITH_NOTES = frozenset({"git", "gh", "glab", "hg", "jj"})
_NOTE_OPTION = re.compile(r"-[a-z]*m|-[SG]|--(?:message|body|title|notes|author|format|grep|pretty|search|trailer)")
"""Options of the programs above. Their value is a text for people, or a text to search for."""
_NOTE_OPTION_OF_GH = re.compile("-[bnt]")
CONTAINERS = frozenset({"docker", "docker-compose", "podman", "nerdctl", "kubectl", "oc"})
"""Programs whose `run` and `exec` run a command in a container, which reaches only mounted folders of this machine."""
_MOUNT = re.compile(
    r"(?s)(?:-v|--volume=)?([^:]+):(/(?!/)[^:]*)(?::.*)?"
    r"|(?=.*\b(?:src|source)=([^,]+)).*\b(?:dst|target|destination)=([^,]+).*"
)
PRINTING = frozenset({"echo", "printf"})
"""Programs that only print their words."""
NEVER_RUNS_OUTPUT = PRINTING | {"", "cd", "mkdir", "tee", "gh", "glab"}
"""Programs that never run a text that another program prints or writes. Programs that only read are not listed here."""
_PUSH = re.compile(r"git push(?: (?:-[fquv]+|--(?:force-with-lease|quiet|set-upstream|tags)|\w[\w/.-]*))*")
"""Matches a `git push` whose options cannot make git run another program."""
_WRITES = re.compile(r">(?!&\d|[ \t]*/dev/null\b)|\btee\b")
_HOOK = re.compile(r"\.git/|hook|husky|\b(?:pre|post|prepare)-|-msg\b")
_REDIRECTION = re.compile(r"\d?&?>{1,2}(?:&\d|[ \t]*[\w./~@%+:-]+)(?=[\s;&|)]|\Z)")
"""Matches a redirection to a file, which says nothing about what runs."""
_HERE_DOCUMENT = re.compile(
    r"(?s)\A((?:[^'\"`\\#<$()]|'[^']*'|\"[^\"\\`$]*\")*)(\"\$\(cat )?<<-?[ \t]*(['\"])?(\w+)(?(3)\3)"
    r"((?![\w.-])[^'\"`\\#<$()\n]*)\n(?(3)(?:.*?\n)??|(?:[^`$\\]*?\n)??)\t*\4(?(2)\n\)\"|(?=\n|\Z))"
)
"""Matches a here-document that follows words with only one meaning in a shell."""
_PREFIX = re.compile(r"\A(?:[\w.-]*=!?|[!+|]+)")
"""Matches characters that may stand before a command line in the same word."""
_SPLIT = re.compile(r"[\s=,:'\"`()\[\]{}<>|;&]+")
_PATH = re.compile(r"(?:~|\.{1,2})?/.*", re.DOTALL)
_OWN_NAME = "planwarden"
READING_COMMANDS = frozenset({"list", "show", "tools", "check", "doctor", "rules", "--version", "--help", "-h"})
"""Commands of planwarden that a model may run, because they decide nothing and write nothing."""
DECIDING_COMMANDS = {
    *("serve", "worker", "plans", "init", "demo", "run", "run-goal", "call", "approve", "reject", "cancel"),
    *("retry", "inbox", "trust", "login", "notify", "schedule", "hook", "grant", "once", "promises", "receipt"),
    *("key", "audit", "prune", "backup", "move", "token", "guard", "gate", "config", "service", "completion"),
}
"""All other commands of planwarden."""
_OWN_OPTIONS = Program("home= store= model= mcp-config=")
MAX_OPTIONS = 100
"""How many words after the name of planwarden are searched for its command."""
_OWN_VARIABLE = "PLANWARDEN_(?:HOME|STORE)"
"""Matches variables that could select another home of planwarden. A model's command may only search for their names."""


def list_parts(line: str, depth: int = 0, *, runs_output: bool = False) -> Iterator[list[str]]:
    """Yield the words of each command in the line, and of each command or piece of code that is quoted in a word.
    `runs_output` says whether another command may run what the line prints."""
    is_code = depth > 0 or ("<<" in line and _INTERPRETER.search(line) is not None)
    if is_code and _DELETING_CODE.search(line):
        # The check cannot tell what code does with a path, so it assumes that the code deletes.
        yield ["-delete", *(piece for piece in _SPLIT.split(line) if piece not in ("", ".", "/"))]
    operands: list[str] = []
    all_words = [inner for words in list_words(line) for inner in _read_container(words)]
    runners = sum(1 for _ in _list_output_runners(line))
    for words in all_words:
        is_run = runs_output or runners > (not _never_runs_output(words))
        is_printed = not is_run and find_program_name(words) in PRINTING
        yield words[:1] if is_printed else words
        programs = {word.rpartition("/")[2] for word in words}
        if find_program_name(words) != "cd":
            operands += (piece for word in words for piece in word.split() if piece not in (".", "find"))
        has_notes = programs & _PROGRAMS_WITH_NOTES and not any(map(_is_shell, programs))
        if depth < MAX_DEPTH and programs.isdisjoint(SEARCHING) and not is_printed:
            for before, word in pairwise(("", *words)):
                is_note = _NOTE_OPTION.fullmatch(before) or _NOTE_OPTION.match(word)
                is_note = is_note or ("gh" in programs and _NOTE_OPTION_OF_GH.fullmatch(before))
                if re.search(r"[\s(]", word) and not (is_note and has_notes):
                    yield from list_parts(_PREFIX.sub("", word, count=1), depth + 1, runs_output=is_run)
    if not RUNS_INPUT_WORDS.isdisjoint(operands) or "read" in map(find_program_name, all_words):
        yield ["xargs", *operands]


def _read_container(words: list[str]) -> Iterator[list[str]]:
    """Yield the words of a command. If the command runs in a container, replace each mount point by the folder of this
    machine that is mounted there, and yield nothing if no folder is mounted."""
    if find_program_name([word for word in words if word != "sudo"]) not in CONTAINERS or {"run", "exec"}.isdisjoint(
        words
    ):
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


def remove_here_documents(line: str) -> str:
    """Return the line without its here-documents; unchanged if a command in the line may run them."""
    shorter = line
    for _ in range(MAX_DEPTH):
        shorter = _HERE_DOCUMENT.sub(r"\1\5", shorter)
    return line if any(_list_output_runners(shorter)) else shorter


def _list_output_runners(line: str) -> Iterator[list[str]]:
    """Yield the commands that may run the output of another command. Git may, because its hooks may run any file."""
    writes = _WRITES.search(line)
    names_hook = _HOOK.search(line)
    for words in list_words(_REDIRECTION.sub("", line)):
        runs_written = writes and find_program_name(words) == "git" and (names_hook or "push" in words)
        if runs_written or not _never_runs_output(words):
            yield words


def _never_runs_output(words: Sequence[str]) -> bool:
    """Return whether the command never runs the output of another command."""
    return (
        find_program_name(words) in NEVER_RUNS_OUTPUT
        or _only_reads(words)
        or _PUSH.fullmatch(" ".join(words)) is not None
    )


def _only_reads(words: Sequence[str]) -> bool:
    """Return whether the command only reads the files that it is given."""
    program, first = find_program_name(words[:1]), "".join(words[1:2])
    reads = program in ONLY_READING or (program == "git" and first in READING_GIT_COMMANDS)
    return reads and "--ou" not in " ".join(words)


def find_program_name(words: Sequence[str]) -> str:
    """Return the name of the program that the command runs; empty if it has none."""
    words = [*islice(dropwhile(lambda word: "=" in word or word in RESERVED, words), 1)]
    return "".join(words).rpartition("/")[2]


def _is_shell(word: str) -> bool:
    program = find_program(word)
    return program is not None and program.then in ("script", "line")


def list_possible_paths(line: str, parts: Iterable[Sequence[str]]) -> Collection[str]:
    """Return every piece of the line that may be a path, in the order of the line."""
    return dict.fromkeys(_list_pieces((*_SPLIT.split(line), *chain.from_iterable(parts))))


def _list_pieces(words: Iterable[str]) -> Iterator[str]:
    for piece in dict.fromkeys(piece for word in words for piece in (word, *_SPLIT.split(word))):
        yield piece
        # A path may be glued to an option.
        yield from (start[0] for start in (_PATH.search(piece),) if start is not None)


def list_read_paths(parts: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return the possible paths that appear only in commands that read them or run them as a script."""
    read, other = set[str](), set[str]()
    for words in parts:
        command = [*dropwhile(RESERVED.__contains__, words)]
        program, script = find_program_name(command[:1]), "".join(command[1:2])
        is_script = (_SCRIPT.fullmatch(program) or _is_shell(program)) and not script.startswith("-")
        count = len(command) if _only_reads(command) else 2 if is_script else 0
        read.update(_list_pieces(command[:count]))
        other.update(_list_pieces(command[count:]))
    return frozenset(read - other)


def runs_planwarden(text: str) -> bool:
    """Return whether the line runs a command of planwarden that does more than read, directly or through a wrapper."""
    sure: dict[tuple[str, ...], bool] = dict.fromkeys(map(tuple, list_parts(text)), False)
    sure.update(dict.fromkeys(map(tuple, list_words(text)), True))
    sure.update(InnerCommands(text).commands)
    return any(_decides(words, is_sure=is_sure) for words, is_sure in sure.items())


def _decides(words: Sequence[str], *, is_sure: bool) -> bool:
    words = [*dropwhile(lambda word: "=" in word or word in RESERVED, words)]
    program = find_program("".join(words[:1]))
    if program is not None and program.then == "module":
        options, _, rest = read_options(program, words[1:], 0)
        option = options[-1] if options and options[-1].kind == "line" else None
        if option is not None and option.name == "c":
            return _OWN_NAME in (option.value or "")
        ran = rest if option is None else [option.value or "", *rest]
        words = [*ran] if ran and _is_planwarden(ran[0]) else words
    if words and _is_planwarden(words[0]):
        command = _find_command(words[1:])
        return (command not in READING_COMMANDS or "--yes" in words) if is_sure else command in DECIDING_COMMANDS
    # A wrapper may have unknown options, so any of its words may begin the command.
    is_wrapper = program is not None and program.then not in ("git", "nothing")
    return is_wrapper and any(
        _is_planwarden(word) and _find_command(words[index : index + MAX_OPTIONS]) in DECIDING_COMMANDS
        for index, word in enumerate(words, 1)
    )


def _is_planwarden(word: str) -> bool:
    # Python's option `-m` may be glued to other options, and to the name of the module.
    word = re.sub(rf"^-[A-Za-z]*?m(?={_OWN_NAME})", "", word)
    name = word.replace("\\", "/").rpartition("/")[2].removesuffix(".exe").partition("@")[0].partition("[")[0]
    return name == _OWN_NAME or name == "planwarden.server.main"


def uses_variable(text: str) -> bool:
    """Return whether the line uses a variable of planwarden; a search for its name does not count."""
    naming = [words for words in list_words(text) if any(re.search(_OWN_VARIABLE, word) for word in words)]
    searches = naming and all(words[0].rpartition("/")[2] in {*SEARCHING, "git"} for words in naming)
    has_value = re.search(rf"\$[{{!#]*{_OWN_VARIABLE}|{_OWN_VARIABLE}\+?=", text)
    return re.search(_OWN_VARIABLE, text) is not None and not (searches and has_value is None)


def _find_command(words: Sequence[str]) -> str:
    """Return the command of planwarden, the first unknown option before it, or an empty text."""
    options, _, rest = read_options(_OWN_OPTIONS, words, 0)
    return next((option.word for option in options if option.kind == "unknown"), "".join(rest[:1]))
