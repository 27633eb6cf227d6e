"""Whether the success of a command line proves that one command in it ran and succeeded, in a folder.

A host reports one exit code for a whole line. It proves a command only if the line could not have ended with 0 without
it: not behind `||`, before `;`, in front of a pipe, or in the background. What the grammar of `shell` does not read
proves nothing. What a program itself does, such as a Makefile whose `test` is empty, is not seen.
"""

import os.path
import re
import shlex
from collections.abc import Callable, Sequence

from planwarden.tools.guarded.shell import ShellCommand, read_commands

NOT_THERE = ""
"""The reason where no part of the line is such a command."""
MAX_DEPTH = 4
"""Shells in shells, as in `bash -c`."""
_REDIRECTION = re.compile(r"[ \t](?:[12&]?>{1,2}|2>)[ \t]?[A-Za-z0-9_./-]+(?=[ \t\n;|&]|\Z)")
_COMMENT = re.compile(r"[ \t]#[^\n'\"\\]*(?=\n|\Z)")
_CHANGES_MEANING = (
    r"(?!PATH=|SHELL=|MAKEFLAGS=|GNUMAKEFLAGS=|[A-Z_]*ADDOPTS=|[A-Z_]*OPTIONS=|BASH_ENV=|ENV=|LD_"
    r"|PYTHON(?!DONTWRITEBYTECODE=|UNBUFFERED=|HASHSEED=))"
)
_ASSIGNMENT = rf"{_CHANGES_MEANING}[A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9_./:,@%+-]*"
_LEADING = re.compile(rf"(?:(?<=\A)|(?<=&&[ ])|(?<=;[ ])|(?<=\n))(?:time[ \t]+(?:-p[ \t]+)?|(?:{_ASSIGNMENT}[ \t]+)+)")
_OF_WRAPPER = re.compile(
    r"-[nki]|-?[0-9]+(?:\.[0-9]+)?[smhd]?|--foreground|--preserve-status|--(?:signal|kill-after)=\w+|-[ioe][L0]|--|"
    + _ASSIGNMENT
)
_PASSING = {
    **dict.fromkeys(("timeout", "nice", "ionice", "nohup", "env", "command", "stdbuf", "caffeinate"), ""),
    **dict.fromkeys(("uv", "poetry", "pipenv", "hatch", "pdm", "rye"), "run"),
    **dict.fromkeys(("bundle", "npm", "pnpm", "mise"), "exec"),
}
"""Programs that end as what they run ends, and the word before it."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_BLIND = frozenset(
    {*("exit", "return", "exec", "trap", "alias", "source", ".", "eval", "logout", "kill", "enable", "hash")}
)
"""Commands after which the rest of the line may not run, or mean something else."""
_EXPORTS = frozenset({"export", "declare", "typeset", "readonly"})
_UNREAD_FOLDER = frozenset({"pushd", "popd"})
_SET = re.compile(r"-[eux]*o?|pipefail|errexit|nounset|xtrace")
_SCRIPT_OPTION = re.compile(r"-[lceux]*c[lceux]*")
_FAILING_EXIT = re.compile(r"exit(?: [1-9][0-9]?)?")
_RUNS_NOTHING = frozenset(
    {
        *("--help", "-h", "--version", "--dry-run", "--just-print", "--recon", "--collect-only", "--co", "--question"),
        *("--ignore-errors", "--touch", "--list", "--fixtures", "--markers", "--listTests", "--no-run"),
        *("--setup-plan", "--setup-only"),
    }
)
_RUNS_NOTHING_IN = {
    "make": re.compile(
        r"-[A-Za-z]*[niqtvhfoWE][A-Za-z]*|--(?:file|makefile|eval|old-file|new-file)(?:=.*)?|\.?SHELL(?:FLAGS)?:?=.*"
        r"|(?:GNU)?MAKEFLAGS.*"
    ),
    "pytest": re.compile(r"-V"),
}
"""Options that keep a program from running what it is asked to, or that put something else in its place."""
_HARMLESS_IN_MAKE = re.compile(
    r"-[skBwr]+|-j[0-9]*|--(?:jobs(?:=[0-9]+)?|silent|keep-going|always-make|no-print-directory)"
)
_OTHER_PLACE = re.compile(
    r"(?:-c|-C|--(?:rootdir|confcutdir|config-file|directory|project|prefix|manifest-path|cwd))=?(.*)"
)


def explain_unproven(line: str, folder: str, root: str, fits: Callable[[str], bool]) -> str | None:
    """Return why the line, which ended with 0 in `folder`, proves no command that `fits` in the folder `root` or below;
    None if it proves one, `NOT_THERE` if none of its parts is such a command."""
    return _explain(line, frozenset({os.path.normpath(folder)}), os.path.normpath(root), fits, 0)


def _explain(line: str, folders: frozenset[str], root: str, fits: Callable[[str], bool], depth: int) -> str | None:
    """Return what `explain_unproven` does for a line that runs in one of the folders."""
    # Neither hides nor shows a command, and removing it leaves every quote where it is.
    plain = line if "\\" in line else _LEADING.sub("", _REDIRECTION.sub("", _COMMENT.sub("", line)))
    commands = read_commands(plain)
    if commands is None:
        return "planwarden cannot read its command line (variables, substitutions, groups or loops)"
    reason: str | None = NOT_THERE
    for place, command in enumerate(commands):
        inner, moves = _read_make(_unwrap(command.words))
        places = _follow(_find_folders(commands[:place], folders), moves)
        script = _find_script(inner)
        is_there = script is None and fits(shlex.join(inner))
        if script is not None and depth < MAX_DEPTH:
            # The inner line counts as the one that is written there, if the outer one lets its exit code through.
            why = _explain(script, places, root, fits, depth + 1)
            is_there = why != NOT_THERE
            if why:
                reason = why
                continue
        if is_there:
            reason = _explain_place(commands, place, inner)
            if reason is None and script is None and not _is_in(root, places, inner):
                reason = "it ran in another folder"
            if reason is None:
                return None
    return reason


def _read_make(words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the words of `make` without options that change neither what runs nor whether it fails, and the folders
    that it enters; other words as they are."""
    if _get_program(words) != "make":
        return words, ()
    rest, others, moves = list(words[1:]), [words[0]], list[str]()
    while rest:
        word = rest.pop(0)
        if word in ("-C", "--directory") and rest:
            moves.append(rest.pop(0))
        elif word.startswith("--directory="):
            moves.append(word.partition("=")[2])
        elif word in ("-j", "--jobs") and rest and rest[0].isdigit():
            rest.pop(0)
        elif not _HARMLESS_IN_MAKE.fullmatch(word):
            others.append(word)
    return others, tuple(moves)


def _get_program(words: Sequence[str]) -> str:
    return "make" if words[0] == "gmake" else words[0]


def _follow(folders: frozenset[str], moves: Sequence[str]) -> frozenset[str]:
    for move in moves:
        folders = frozenset(os.path.normpath(os.path.join(each, move)) for each in folders)
    return folders


def _is_in(root: str, folders: frozenset[str], words: Sequence[str]) -> bool:
    """Return whether the command surely runs in the root or below, on nothing elsewhere."""
    # `--rootdir=/tmp` and a plain `/tmp/other` lead elsewhere; where a program writes to does not matter.
    operands = [
        word if match is None else match[1]
        for word in words[1:]
        if (match := _OTHER_PLACE.fullmatch(word)) or "/" in word or word == ".."
    ]
    operands = [word for word in operands if not word.startswith("-")]
    places = {os.path.normpath(os.path.join(folder, word)) for folder in folders for word in (".", *operands)}
    return bool(folders) and all(place == root or place.startswith(f"{root.rstrip('/')}/") for place in places)


def _unwrap(words: Sequence[str]) -> Sequence[str]:
    """Return the words behind programs that end as what they run ends, such as `timeout 600` and `uv run`."""
    while words and (word := _PASSING.get(words[0].rpartition("/")[2])) is not None:
        rest = list(words[1:])
        if word and rest[:1] != [word]:
            break
        rest = rest[1:] if word else rest
        while rest and _OF_WRAPPER.fullmatch(rest[0]):
            rest.pop(0)
        if not rest or rest[0].startswith("-"):
            break
        words = rest
    return words


def _find_script(words: Sequence[str]) -> str | None:
    """Return the line that a shell runs, behind what its options set; None for anything else."""
    if len(words) < 3 or words[0].rpartition("/")[2] not in _SHELLS or not _SCRIPT_OPTION.fullmatch(words[-2]):
        return None
    options = [words[-2].replace("c", "").replace("l", ""), *words[1:-2]]
    options = [option for option in options if option not in ("-", "-l", "--login")]
    if not all(map(_SET.fullmatch, options)):
        return None
    return f"set {' '.join(options)}\n{words[-1]}" if options else words[-1]


def _explain_place(commands: Sequence[ShellCommand], place: int, words: Sequence[str]) -> str | None:
    before, after = commands[:place], commands[place + 1 :]
    first = next((index + 1 for index in range(place - 1, -1, -1) if commands[index].end in (";", "\n", "&")), 0)
    last = next((index for index in range(place, len(commands)) if commands[index].end in (";", "\n", "&", "")), place)
    options = _read_options(before)
    stopping = _RUNS_NOTHING_IN.get(_get_program(words))
    if any(word in _RUNS_NOTHING or (stopping and stopping.fullmatch(word)) for word in words[1:]):
        return "its options keep it from running, or from failing"
    if options is None or any(command.words[0] in _BLIND or _is_export_of_meaning(command) for command in before):
        return "what comes before it in the line may keep it from running"
    if commands[last].end == "&":
        return "it ran in the background, so nobody waited for its exit code"
    if any(command.end == "||" for command in commands[first:place]):
        return "it runs only if what comes before `||` fails"
    if not _is_checked(commands, place, last, options):
        return "its exit code is swallowed by `||`"
    if commands[place].end == "|" and "pipefail" not in options:
        return "a pipe swallows its exit code; put `set -o pipefail` before it"
    is_final = last == len(commands) - 1
    if not is_final and not ("errexit" in options and _ends_list(commands, place, last)):
        return f"the exit code is that of `{after[-1].text[:60]}`, which comes after it"
    return None


def _is_export_of_meaning(command: ShellCommand) -> bool:
    words = command.words
    return words[0] in _EXPORTS and not all(re.fullmatch(_ASSIGNMENT, word) for word in words[1:])


def _is_checked(commands: Sequence[ShellCommand], place: int, last: int, options: frozenset[str]) -> bool:
    """Return whether no `||` behind the command turns its failure into a success."""
    for index in range(place, last):
        if commands[index].end == "||":
            words = commands[index + 1].words
            if not (words[0] == "false" or _FAILING_EXIT.fullmatch(" ".join(words))) or index + 1 != last:
                return False
    return True


def _ends_list(commands: Sequence[ShellCommand], place: int, last: int) -> bool:
    """Return whether `set -e` looks at the command: not where `&&` or `||` follows."""
    return all(commands[index].end == "|" for index in range(place, last))


def _read_options(before: Sequence[ShellCommand]) -> frozenset[str] | None:
    """Return which options of the shell are surely set; None where one may change what runs."""
    options: set[str] = set()
    for place, command in enumerate(before):
        if command.words[0] != "set":
            continue
        if not all(_SET.fullmatch(word) for word in command.words[1:]):
            return None
        is_sure = command.end in (";", "\n", "&&") and (place == 0 or before[place - 1].end in (";", "\n", "&&"))
        if not is_sure:
            continue
        options |= {word for word in command.words[1:] if not word.startswith("-")}
        if any(word.startswith("-") and "e" in word for word in command.words[1:]):
            options.add("errexit")
    return frozenset(options)


def _find_folders(before: Sequence[ShellCommand], folders: frozenset[str]) -> frozenset[str]:
    """Return where what follows may run; nothing where nobody knows."""
    for command in before:
        if command.words[0] in _UNREAD_FOLDER:
            return frozenset()
        if command.words[0] == "cd":
            if len(command.words) != 2 or command.words[1].startswith("-"):
                return frozenset()
            moved = _follow(folders, command.words[1:])
            # Where `cd` fails and the line goes on, it goes on in the folder before.
            folders = moved if command.end == "&&" else folders | moved
    return folders
