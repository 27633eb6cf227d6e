"""Decides whether the success of a command line proves that one command in it ran in a folder and succeeded.

A host reports one exit code for a whole line. The code 0 proves that a command succeeded only if the whole line fails
whenever that command fails or does not run. This is usually not so for commands behind `||`, before `;`, before a pipe
or in the background. A line that `shell` cannot read proves nothing. What a program does is not checked: `make test`
may do nothing.
"""

import os.path
import re
import shlex
from collections.abc import Callable, Sequence

import msgspec

from planwarden.tools.guarded.programs import PROGRAMS, Option, Program, find_program, read_options
from planwarden.tools.guarded.shell import MAX_CHARS, ShellCommand, read_commands

NOT_THERE = ""
"""The reason if the line does not have the wanted command."""
MAX_DEPTH = 4
"""The most levels of nesting of shells (as in `bash -c`), groups and wrappers."""
_REDIRECTION = r"[ \t](?:[12&]?>{1,2}|2>)[ \t]?[A-Za-z0-9_./-]+(?=[ \t\n;|&)]|\Z)"
_COMMENT = r"(?m:^|[ \t])#[^\n'\"\\]*"
_HARMLESS_PATH = r"PATH=(?:\.|[\w-]+)(?::(?:\.|[\w-]+))*(?=[ \t])"
_VARIABLE = (
    r"(?:CI|TZ|LANG|LC_[A-Z]+|TERM|COLUMNS|V|VERBOSE|DEBUG|LOG_LEVEL|NO_COLOR|FORCE_COLOR|CLICOLOR(?:_FORCE)?|CGO_ENABLED"
    r"|(?:NODE|RAILS|RACK|MIX|APP|FLASK)_ENV|RUST_(?:LOG|BACKTRACE)|DJANGO_SETTINGS_MODULE|GOMAXPROCS|OMP_NUM_THREADS"
    r"|(?:DATABASE|DB|REDIS|BASE|API)_(?:URL|HOST|PORT|NAME|USER)|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED))"
)
_ASSIGNMENT = rf"(?:PYTHON{_HARMLESS_PATH}|{_VARIABLE}=[A-Za-z0-9_./:,@%+-]*|RUSTFLAGS=-Dwarnings)"
"""Assignments to variables whose names say that they change neither which program runs nor what it does."""
_START = r"(?:(?<=\A)|(?<=&&[ ])|(?<=;[ ])|(?<=\n))"
_LEADING = rf"{_START}(?:time[ \t]+(?:-p[ \t]+)?|(?:{_ASSIGNMENT}[ \t]+)+)"
_NOT = rf"{_START}! (?=[\w./ -]+(?:&&|[;\n]))"
_TEST = rf"{_START}\[ (-[a-z] [\w./-]+) \](?=[ \t\n;]|\Z)"
_SAME_EXIT = r"(?<=\|\|[ ])exit \$\?"
_FROM_PATH = r"(?:/(?:usr/(?:local/)?)?bin/)?[\w.-]+"
"""A program's bare name, or its path in a system folder, where no model can have written the program."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_GROUPS = ("(", "{")
_BLIND = {
    *("exit", "return", "exec", "trap", "alias", "source", ".", "eval", "logout", "kill", "enable", "disable"),
    *("hash", "builtin", "shopt", "setopt", "unsetopt", "emulate", "autoload", "zmodload", "read", "mapfile"),
    *("readarray", "getopts", "let", "{"),
}
"""Commands that may keep the rest of the line from running, or change its meaning."""
_EXPORTS = frozenset({"export", "declare", "typeset", "readonly", "local"})
_BLINDED = "what comes before it in the line may keep it from running"
_ACTIVATE = r"(?:[\w./-]*/)?\.?v?env/bin/activate"
_SET = r"(?:-[eux]*(?:o (?:pipefail|errexit|nounset|xtrace))?(?: |\Z))*"
_SCRIPT_OPTION = r"-[lceux]*c[lceux]*"
_FAILURE = r"exit [1-9][0-9]?|false"
_PROGRAM_VARIABLE = r"(?i:(?P<tool>\w*(?:PYTEST|PYTHON|NPM|CARGO)|PY|GO|UV)|\w*(?:_CMD|COMMAND|RUNNER)|CMD)[:?+!]*"
"""The name of a variable of make that usually holds a program; in the group `tool`, one that tests."""
_SETS_SHELL = r"\.?SHELL(?:FLAGS)?|PATH|[A-Z]*MAKE[A-Z]*"
_IDLE = {
    *("", "true", ":", "echo", "printf", "exit", "ls", "cat", "pwd", "date", "id", "whoami", "uname", "hostname"),
    *("touch", "stat", "file", "wc", "head", "tail", "du", "df", "sort", "find", "tree", "seq", "env", "printenv"),
    *("basename", "dirname", "realpath", "readlink", "type", "[", "sync", "sleep", "less", "more", "help", "this"),
    *("test", "dir", "nproc", "git", "tee", "cp", "mv", "rm", "mkdir", "md5sum", "sha256sum", "yes", "time"),
}
"""Programs that test nothing and end with 0."""
_OTHER = Program("color no-color quiet silent verbose")
"""The options assumed for a program that `programs` does not describe."""


class _Reading(msgspec.Struct):
    """A command, and all commands that it wraps: `env` wraps `make` in `env make`, and passes on its exit code."""

    stages: list[Sequence[str]]
    """The words of each command, the outermost first. The last entry is the innermost command without its options."""
    folders: list[str] = []
    """The folders that these commands enter."""
    paths: list[str] = []
    """Other paths that these commands use."""
    unknown: list[str] = []
    """Words that may make the innermost command do something else, such as unknown options."""
    program: Program | None = None
    """What is known about the program of the innermost command."""


def explain_unproven(line: str, folder: str, root: str, fits: Callable[[str], bool]) -> str | None:
    """Return why the exit code 0 of a line that ran in `folder` does not prove that the command that `fits` accepts has
    succeeded in `root` or below; None if it does. Return `NOT_THERE` if `fits` accepts no command of the line."""
    return _explain(line, frozenset({os.path.normpath(folder)}), os.path.normpath(root), fits, 0)


def _explain(
    line: str, folders: frozenset[str], root: str, fits: Callable[[str], bool], depth: int, *, is_group: bool = False
) -> str | None:
    """Return what `explain_unproven` returns, for a line that ran in one of `folders`; nobody knows in which one."""
    commands = read_commands(_simplify(line), has_groups=True) if len(line) <= MAX_CHARS else None
    if commands is None:
        return "planwarden cannot read its command line (variables, substitutions, groups or loops)"
    reason: str | None = NOT_THERE
    for index, command in enumerate(commands):
        reading = _read(command.words)
        words = reading.stages[-2]
        entered = _follow(_find_folders(commands[:index], folders), reading.folders)
        script = _find_script(words)
        if script is not None and depth < MAX_DEPTH:
            # A command of the inner line is proven only if the outer line also proves the shell or group that runs it.
            why = _explain(script, entered, root, fits, depth + 1, is_group=words[0] in _GROUPS)
        else:
            why = _explain_reading(reading, entered, root, fits)
        if why != NOT_THERE:
            is_blind = any(_is_blind(each, root) for each in commands[:index])
            reason = why or (_BLINDED if is_blind else _explain_zero(commands, index, is_group=is_group))
        if reason is None:
            return None
    return reason


def _simplify(line: str) -> str:
    """Return the line without comments, redirections and harmless prefixes, and with `!` as `not`; keep all quotes."""

    def drop_comment(match: re.Match[str]) -> str:
        # Check the end here instead of in the pattern: the pattern would be tried again from each `#`, which is slow.
        return "" if line[match.end() : match.end() + 1] in ("", "\n") else match[0]

    if "\\" not in line:
        line = re.sub(_LEADING, "", re.sub(_REDIRECTION, "", re.sub(_COMMENT, drop_comment, line)))
    return re.sub(_SAME_EXIT, "exit", re.sub(_TEST, r"test \1", re.sub(_NOT, "not ", line)))


def _follow(folders: frozenset[str], moves: Sequence[str]) -> frozenset[str]:
    for move in moves:
        folders = frozenset(os.path.normpath(os.path.join(each, move)) for each in folders)
    return folders


def _explain_reading(reading: _Reading, folders: frozenset[str], root: str, fits: Callable[[str], bool]) -> str | None:
    """Return why the command proves nothing, whatever else is in its line, or None; `NOT_THERE` if it is not wanted."""
    words = next((words for words in reading.stages if fits(shlex.join(words))), None)
    if words is None:
        return NOT_THERE
    for word in reading.unknown:
        # An unknown word is harmless only if `fits` demands exactly this word, and accepts no other in its place.
        other = re.sub(r"[A-Za-z]", "x", word)
        if fits(shlex.join([each if each != word else other for each in words])):
            return f"its options may keep it from running, or from failing: `{word[:60]}`"
    return None if _is_in(root, folders, reading.paths) else "it ran in another folder"


def _read(words: Sequence[str]) -> _Reading:
    """Return the command and the commands that it wraps. Stop at the first that is not certainly a harmless wrapper."""
    reading = _Reading([words])
    for _ in range(MAX_DEPTH):
        program = find_program(words[0])
        if program is None or not program.exits or not re.fullmatch(_FROM_PATH, words[0]):
            break
        options, _, rest = read_options(program, words[1:], 0)
        if program.behind and re.fullmatch(program.behind, "".join(rest[:1])):
            more, _, rest = read_options(program, rest[1:], 0)
            options += more
        elif program.behind:
            break
        rest = rest[program.operands :]
        if not rest or not all(map(_is_harmless, options)):
            break
        words = rest
        reading.stages.append(words)
        _note(reading, options, [])
    reading.stages.append([words[0], *_read_innermost(reading, words, 0)])
    return reading


def _is_harmless(option: Option) -> bool:
    is_assignment = option.kind == "setting" and re.fullmatch(_ASSIGNMENT, option.word)
    return bool(is_assignment) or option.kind not in ("line", "setting", "unknown")


def _note(reading: _Reading, options: Sequence[Option], operands: Sequence[str]) -> None:
    reading.folders += [option.value or "" for option in options if option.kind == "folder"]
    reading.paths += [option.value or "" for option in options if option.kind == "path"]
    reading.paths += [word for word in operands if "/" in word or word == ".."]
    reading.unknown += [option.word for option in options if option.kind in ("line", "unknown")]


def _read_innermost(reading: _Reading, words: Sequence[str], depth: int) -> list[str]:
    """Note what the options of the innermost command mean, and return its words without them."""
    reading.program = find_program(words[0])
    program, rest, before = reading.program or _OTHER, words[1:], list[str]()
    if program.then == "module" and (not program.behind or rest[:1] == [program.behind]):
        before = [*rest[:1]] if program.behind else []
        options, _, rest = read_options(program, rest[len(before) :], 0)
        if options and options[-1].name == "m" and depth < MAX_DEPTH:
            module = options.pop().value or ""
            _note(reading, options, [])
            return [*before, "-m", module, *_read_innermost(reading, [module, *rest], depth + 1)]
        _note(reading, options, [])
        program = _OTHER
    elif program.then == "module":
        reading.unknown += [*rest[:1]] or [words[0]]
    options, operands, behind = read_options(program, rest, len(rest))
    reader = PROGRAMS.get(program.tail)
    more, others, _ = read_options(reader, behind, len(behind)) if reader is not None else ([], [*behind], ())
    _note(reading, [*options, *more], [*operands, *others])
    reading.unknown += [word for word in operands if not re.fullmatch(program.only, word)]
    reading.unknown += [word for word in others if not re.fullmatch((reader or program).only, word)]
    if program is PROGRAMS["make"]:
        reading.unknown += [word for word in (*operands, *others) if not _is_harmless_setting(word)]
    return [*before, *operands, *others]


def _is_harmless_setting(word: str) -> bool:
    """Return whether make certainly still runs its tests with this word, which may be an assignment to a variable."""
    name, equals, value = word.partition("=")
    if not equals:
        return True
    if re.fullmatch(_SETS_SHELL, name.rstrip(":?+!")) or re.search(r"[;|&\n`$#<>()!]", value):
        return False
    words = value.split()
    variable = re.fullmatch(_PROGRAM_VARIABLE, name)
    if variable is None:
        options, _, _ = read_options(PROGRAMS["pytest"], words, len(words))
        is_idle = words[:1] != [] and words[0].rpartition("/")[2] in ("true", ":", "echo", "printf", "exit")
        return not is_idle and all(option.kind != "unknown" for option in options)
    if re.fullmatch(r"[0-9.]+", value):
        return True
    reading = _read(words or [""])
    if variable["tool"] is None and len(words) == 1 and "/" not in value:
        return value not in _IDLE
    program = reading.program
    is_tool = program is not None and (program.then in ("nothing", "module") or (program.exits and program.behind))
    return bool(is_tool) and not reading.unknown


def _is_in(root: str, folders: frozenset[str], others: Sequence[str]) -> bool:
    """Return whether the command certainly runs in the root or below, and uses no path outside of the root."""
    paths = {os.path.normpath(os.path.join(folder, word)) for folder in folders for word in (".", *others)}
    return bool(folders) and all(path == root or path.startswith(f"{root.rstrip('/')}/") for path in paths)


def _strip(command: ShellCommand) -> Sequence[str]:
    """Return the words of the command without its wrappers, and without `!`, for which `_simplify` writes `not`."""
    words = command.words[1:] if command.words[0] == "not" and len(command.words) > 1 else command.words
    return _read(words).stages[-2]


def _find_script(words: Sequence[str]) -> str | None:
    """Return the line that a group or shell runs, below a line `set OPTIONS` if the shell has any; else None."""
    if words[0] in _GROUPS:
        return words[1]
    is_shell = re.fullmatch(_FROM_PATH, words[0]) and words[0].rpartition("/")[2] in _SHELLS
    if len(words) < 3 or not is_shell or not re.fullmatch(_SCRIPT_OPTION, words[-2]):
        return None
    options = [words[-2].replace("c", "").replace("l", ""), *words[1:-2]]
    options = [option for option in options if option not in ("-", "-l", "--login")]
    if not re.fullmatch(_SET, shlex.join(options)):
        return None
    # Only these two shells know `&>`; others read it as `&`, and then `>`.
    is_bash = words[0].endswith(("bash", "zsh"))
    line = words[-1] if is_bash else words[-1].replace("&>", "& >")
    return f"set {' '.join(options)}\n{line}" if options else line


def _explain_zero(commands: Sequence[ShellCommand], start: int, *, is_group: bool) -> str | None:
    """Return why the line can end with 0 although the command at `start` failed; None if that is impossible."""
    ends = [command.end if command.end != "\n" else ";" for command in commands]
    first = next((index + 1 for index in range(start - 1, -1, -1) if ends[index] in (";", "&")), 0)
    last = next(index for index in range(start, len(ends)) if ends[index] in (";", "&", ""))
    options = _read_options(commands[:start])
    if options is None:
        return _BLINDED
    if ends[last] == "&":
        return "it ran in the background, so nobody waited for its exit code"
    if "||" in ends[first:start]:
        return "it runs only if what comes before `||` fails"
    otherwise = next((commands[index + 1] for index in range(start, last) if ends[index] == "||"), None)
    if otherwise is not None and not (otherwise is commands[last] and _fails(otherwise)):
        return "its exit code is swallowed by `||`"
    if ends[start] == "|" and "pipefail" not in options:
        return "a pipe swallows its exit code; put `set -o pipefail` before it"
    # With `&&` or `||` between commands, `set -e` applies only to the last command; inside a group it might not apply.
    stops = "errexit" in options and not is_group and set(ends[first:last]) <= {"|"}
    if last < len(commands) - 1 and not stops:
        return f"the exit code is that of `{commands[start + 1].text[:60]}`, which comes after it"
    return None


def _is_blind(command: ShellCommand, root: str) -> bool:
    words = _strip(command)
    if words[0] in ("source", ".") and len(words) == 2 and re.fullmatch(_ACTIVATE, words[1]):
        return not _is_in(root, frozenset({root}), words[1:])
    if words[0] in _EXPORTS:
        return not all(re.fullmatch(_ASSIGNMENT, word) for word in words[1:])
    option = "".join(words[1:2])[:2]
    return words[0] in _BLIND or (words[0], option) in (("printf", "-v"), ("wait", "-p"), ("command", "-p"))


def _fails(command: ShellCommand) -> bool:
    """Return whether the command behind `||` fails whenever it runs."""
    if command.words[0] not in _GROUPS:
        return bool(re.fullmatch(_FAILURE, " ".join(command.words))) or command.words == ("exit",)
    inner = read_commands(command.words[1]) or ()
    return (
        bool(inner)
        and bool(re.fullmatch(_FAILURE, " ".join(inner[-1].words)))
        and all(each.end in (";", "\n") and each.words[0] == "echo" for each in inner[:-1])
    )


def _read_options(before: Sequence[ShellCommand]) -> frozenset[str] | None:
    """Return the shell options that `set` has certainly set; None if a `set` may change what runs."""
    options: set[str] = set()
    for index, command in enumerate(before):
        if _strip(command)[0] != "set":
            continue
        if command.words[0] != "set" or not re.fullmatch(_SET, shlex.join(command.words[1:])):
            return None
        previous, ends = before[index - 1].end if index else ";", [each.end for each in before[index:]]
        is_last_waited_for = next((end for end in ends if end in (";", "\n", "&")), ";") != "&"
        is_alone = previous in (";", "\n", "&") and ends[0] in (";", "\n", "&&") and is_last_waited_for
        if not (is_alone or (previous == "&&" and set(ends) == {"&&"})):
            continue
        options |= {word for word in command.words[1:] if not word.startswith("-")}
        if any(word.startswith("-") and "e" in word for word in command.words[1:]):
            options.add("errexit")
    return frozenset(options)


def _find_folders(before: Sequence[ShellCommand], folders: frozenset[str]) -> frozenset[str]:
    """Return the folders in which the command after `before` may run; none if they are not known."""
    for index, command in enumerate(before):
        mover = _strip(command)[0]
        if mover in ("pushd", "popd", "chdir"):
            return frozenset()
        if mover == "cd":
            if command.words[0] != "cd" or len(command.words) != 2 or command.words[1].startswith("-"):
                return frozenset()
            moved = _follow(folders, command.words[1:])
            # If the line can go on after `cd` fails, the next command may run in the folder before it.
            folders = moved if all(each.end == "&&" for each in before[index:]) else folders | moved
    return folders
