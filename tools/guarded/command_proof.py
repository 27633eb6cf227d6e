"""Decides whether the success of a command line proves that one command in it ran in a folder and succeeded.

A host reports one exit code for a whole line. It proves a command only if the line cannot end with 0 when the command
did not. That usually excludes commands behind `||`, before `;`, before a pipe and in the background. A line that the
grammar of `shell` cannot read proves nothing. What a program does is not checked: a Makefile's `test` may be empty.
"""

import os.path
import re
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise

from planwarden.tools.guarded.shell import MAX_CHARS, ShellCommand, read_commands

NOT_THERE = ""
"""The reason when no part of the line is the wanted command."""
MAX_DEPTH = 4
"""The most levels of shells (as in `bash -c`) and groups inside each other."""
_REDIRECTION = r"[ \t](?:[12&]?>{1,2}|2>)[ \t]?[A-Za-z0-9_./-]+(?=[ \t\n;|&)]|\Z)"
_COMMENT = r"(?m:^|[ \t])#[^\n'\"\\]*"
_HARMLESS_PATH = r"PATH=(?:\.|[\w-]+)(?::(?:\.|[\w-]+))*(?=[ \t])"
_VARIABLE = (
    r"(?:CI|TZ|LANG|LC_[A-Z]+|TERM|COLUMNS|V|VERBOSE|DEBUG|LOG_LEVEL|NO_COLOR|FORCE_COLOR|CLICOLOR(?:_FORCE)?|CGO_ENABLED"
    r"|(?:NODE|RAILS|RACK|APP|FLASK)_ENV|RUST_(?:LOG|BACKTRACE)|DJANGO_SETTINGS_MODULE|GOMAXPROCS|OMP_NUM_THREADS"
    r"|(?:DATABASE|DB|REDIS|BASE|API)_(?:URL|HOST|PORT|NAME|USER)|PYTHON(?:DONTWRITEBYTECODE|UNBUFFERED|HASHSEED))"
)
_ASSIGNMENT = rf"(?:PYTHON{_HARMLESS_PATH}|{_VARIABLE}=[A-Za-z0-9_./:,@%+-]*)"
"""Matches the assignment of a variable that, as its name says, changes neither which program runs nor what it does."""
_START = r"(?:(?<=\A)|(?<=&&[ ])|(?<=;[ ])|(?<=\n))"
_LEADING = rf"{_START}(?:time[ \t]+(?:-p[ \t]+)?|(?:{_ASSIGNMENT}[ \t]+)+)"
_NOT = rf"{_START}! (?=[\w./ -]+(?:&&|[;\n]))"
_TEST = rf"{_START}\[ (-[a-z] [\w./-]+) \](?=[ \t\n;]|\Z)"
_SAME_EXIT = r"(?<=\|\|[ ])exit \$\?"
_WRAPPER_WORD = (
    r"-[nkiq]|-?[0-9]+(?:\.[0-9]+)?[smhd]?|--(?:foreground|preserve-status|frozen|locked|no-sync|all-extras)|-[ioe][L0]"
    rf"|--(?:all-groups|no-cache|no-dev|offline|quiet)|--(?:extra|group|python|with)(?:=[\w.-]+)?"
    rf"|--(?:signal|kill-after)=\w+|--|{_ASSIGNMENT}"
)
_WITH_VALUE = frozenset({"--extra", "--group", "--python", "--with"})
"""Options of `uv run` whose value may be the next word."""
_PASSING = {
    **dict.fromkeys(("timeout", "nice", "ionice", "nohup", "env", "command", "stdbuf", "caffeinate"), ""),
    **dict.fromkeys(("uv", "poetry", "pipenv", "hatch", "pdm", "rye"), "run"),
    **dict.fromkeys(("bundle", "npm", "pnpm", "mise"), "exec"),
}
"""Programs that exit with the exit code of the command that they run, and the word before that command, if any."""
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_GROUPS = ("(", "{")
_BLIND = frozenset(
    {
        *("exit", "return", "exec", "trap", "alias", "source", ".", "eval", "logout", "kill", "enable", "disable"),
        *("hash", "builtin", "shopt", "setopt", "unsetopt", "emulate", "autoload", "zmodload", "read", "mapfile"),
        *("readarray", "getopts", "let", "{"),
    }
)
"""Commands after which the rest of the line may not run, or may mean something else."""
_EXPORTS = frozenset({"export", "declare", "typeset", "readonly", "local"})
_BLINDED = "what comes before it in the line may keep it from running"
_ACTIVATE = r"(?:[\w./-]*/)?\.?v?env/bin/activate"
_SET = r"(?:-[eux]*(?:o (?:pipefail|errexit|nounset|xtrace))?(?: |\Z))*"
_SCRIPT_OPTION = r"-[lceux]*c[lceux]*"
_FAILURE = r"exit [1-9][0-9]?|false"
_RUNS_NOTHING = (
    r"-h|--(?:help|version|dry-run|just-print|recon|collect-?only|co|question|ignore-errors|touch|list|list-tests"
    r"|listTests|fixtures|fixtures-per-test|funcargs|markers|cache-show|no-?run|notest|setup-?plan|setup-?only"
    r"|if-present|pass-?with-?no-?tests|exit-zero|suppress-[a-z-]+)(?:=.*)?|-D(?:skipTests|maven\.test\.).*"
)
"""Options that keep a program from running what it is asked to, or from failing."""
_FLAGS = r"-[abd-jlqs-zA-VX-Z]*"
"""The beginning of a word in which an option of pytest follows others that take no value."""
_OVERRIDES = rf"(?:{_FLAGS}o[ =]?|--override-ini[ =])(?!(?:log|junit|verbosity)_)[A-Za-z_]+ *=.*"
"""What gives pytest a setting that may keep it from running tests."""
_PROGRAM_VARIABLE = r"(?i:(?P<tool>\w*(?:PYTEST|PYTHON|NPM|CARGO)|PY|GO|UV)|\w*(?:_CMD|COMMAND|RUNNER)|CMD)[:?+!]*"
"""The name of a variable of make that usually holds a program, or a tool that tests."""
_TOOL = (
    r"(?:python|pypy|pytest|py\.test|unittest|coverage|tox|nox|uvx?|poetry|go|gotestsum|cargo|cross|p?np[mx]|yarn|node"
    r"|jest|vitest)[0-9.]*"
)
_IDLE = frozenset(
    {
        *("", "true", ":", "echo", "printf", "exit", "ls", "cat", "pwd", "date", "id", "whoami", "uname", "hostname"),
        *("touch", "stat", "file", "wc", "head", "tail", "du", "df", "sort", "find", "tree", "seq", "env", "printenv"),
        *("basename", "dirname", "realpath", "readlink", "type", "[", "sync", "sleep", "less", "more", "help", "this"),
        *("test", "dir", "nproc", "git", "tee", "cp", "mv", "rm", "mkdir", "md5sum", "sha256sum", "yes", "time"),
    }
)
"""Programs that test nothing and end with 0."""
_RUNS_NOTHING_IN = {
    # make inserts the values of `ARGS='|| true'` and `PYTEST=true` into the lines that it runs.
    "make": (
        r"(?s)-.*|(?:\.?SHELL(?:FLAGS)?|PATH)[:?+!]*=.*|[A-Z]*MAKE[A-Z]*[:?+!]*=.*|[^=]*=(?:.*[;|&\n`$#<>()!].*"
        rf"|(?:.*/)?(?:true|:|echo|printf|exit)(?: .*)?|(?:.* )?(?:{_RUNS_NOTHING}|{_FLAGS}V+|-[qsvxl]*h\w*)(?: .*)?"
        rf"|(?:.* )?{_OVERRIDES})"
    ),
    # pytest reads `-qo addopts=--co` as `-q -o addopts=--co`.
    "pytest": rf"{_FLAGS}[hV].*|(?:{_FLAGS}o=?|--override-ini=)?(?!(?:log|junit|verbosity)_)[A-Za-z_]+[ ]*=.*|@.*",
    # npm takes the beginning of an option for the option, and reads `-sv` as `-s -v`.
    **dict.fromkeys(
        ("npm", "pnpm", "yarn"),
        r"--(?:vers|usa|hel|dry|scr|ignore-s|if-|node-o|userc|globalc).*|-[A-Za-z]*[vhH?][A-Za-z]*",
    ),
    "ruff": r"-[nqsv]*[ew].*|--(?:show-(?:files|settings)|watch|add-noqa).*",
    "go": r"--?(?:exec|toolexec|list|overlay|n|c)(?:=.*)?|version|env|help",
    "cargo": r"--config(?:=.*)?",
    "ctest": r"-N|--show-only.*|--print-labels",
    **dict.fromkeys(("gradle", "gradlew"), r"-m|-x.*|--exclude-task.*"),
    **dict.fromkeys(("mvn", "mvnw"), r"-v|-fn|--fail-never|(?:--define=)?(?:skipTests|maven\.test\.).*"),
    "tox": (
        r"-[qv]*[aln]|--(?:listenvs|showconfig).*|l|list|c|config|d|devenv|q|quickstart|e|exec|de|depends|schema|man"
    ),
    "just": r"-[qv]*[nlse]|--(?:show|summary|dump|evaluate|choose|edit|init|fmt|shell|set|command).*",
}
_HARMLESS_IN_MAKE = (
    r"-[skBwrRSO]+|-[jl][0-9.]*|--(?:(?:jobs|load-average|output-sync|debug)(?:=\w+)?|silent|quiet|keep-going|trace"
    r"|always-make|(?:no-)?print-directory|no-builtin-(?:rules|variables)|warn-undefined-variables)"
)
_OTHER_PLACE = r"(?:-c|-C|--(?:rootdir|confcutdir|config-file|directory|project|prefix|manifest-path|cwd))=?(.*)"


def explain_unproven(line: str, folder: str, root: str, fits: Callable[[str], bool]) -> str | None:
    """Return why a line that ended with 0 in `folder` does not prove that a command accepted by `fits` succeeded in
    `root` or below. Return None if the line proves that, and `NOT_THERE` if `fits` accepts no command of the line."""
    return _explain(line, frozenset({os.path.normpath(folder)}), os.path.normpath(root), fits, 0)


def _explain(
    line: str, folders: frozenset[str], root: str, fits: Callable[[str], bool], depth: int, *, is_group: bool = False
) -> str | None:
    """Return what `explain_unproven` returns, for a line that runs in one of several possible folders."""
    commands = read_commands(_simplify(line), has_groups=True) if len(line) <= MAX_CHARS else None
    if commands is None:
        return "planwarden cannot read its command line (variables, substitutions, groups or loops)"
    reason: str | None = NOT_THERE
    for index, command in enumerate(commands):
        words, moves = _read_make(_unwrap(command.words))
        entered = _follow(_find_folders(commands[:index], folders), moves)
        script = _find_script(words)
        if script is not None and depth < MAX_DEPTH:
            # A command of the inner line is proven if the outer line also proves the shell or group that runs it.
            why = _explain(script, entered, root, fits, depth + 1, is_group=words[0] in _GROUPS)
        else:
            why = _explain_words(words, entered, root) if fits(shlex.join(words)) else NOT_THERE
        if why != NOT_THERE:
            is_blind = any(_is_blind(each, root) for each in commands[:index])
            reason = why or (_BLINDED if is_blind else _explain_zero(commands, index, is_group=is_group))
        if reason is None:
            return None
    return reason


def _simplify(line: str) -> str:
    """Return the line without parts whose removal neither hides nor adds a command, with every quote in its place."""

    def drop_comment(match: re.Match[str]) -> str:
        # The comment is checked here, because an expression that gives up at a quote would begin again at each `#`.
        return "" if line[match.end() : match.end() + 1] in ("", "\n") else match[0]

    if "\\" not in line:
        line = re.sub(_LEADING, "", re.sub(_REDIRECTION, "", re.sub(_COMMENT, drop_comment, line)))
    return re.sub(_SAME_EXIT, "exit", re.sub(_TEST, r"test \1", re.sub(_NOT, "not ", line)))


def _find_program(words: Sequence[str]) -> str:
    """Return the program's name without its folder; for `python -m pytest` it is `pytest`."""
    name = words[0].rpartition("/")[2]
    module = (
        list(words[words.index("-m") + 1 :][:1])
        if "-m" in words and re.fullmatch(r"python[0-9.]*|coverage", name)
        else []
    )
    return "".join(module) or name


def _read_make(words: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the words of a `make` command without options that change neither what runs nor whether it fails, and the
    folders that it enters. The words of other commands stay as they are."""
    if _find_program(words) != "make":
        return words, ()
    rest, others, moves = list(words[1:]), [words[0]], list[str]()
    while rest:
        word = rest.pop(0)
        if move := re.fullmatch(r"(?:-C|--directory)=?(.*)", word):
            moves.append(move[1] or (rest.pop(0) if rest else ""))
        elif word in ("-j", "--jobs") and rest and rest[0].isdigit():
            rest.pop(0)
        elif not re.fullmatch(_HARMLESS_IN_MAKE, word):
            others.append(word)
    return others, tuple(moves)


def _follow(folders: frozenset[str], moves: Sequence[str]) -> frozenset[str]:
    for move in moves:
        folders = frozenset(os.path.normpath(os.path.join(each, move)) for each in folders)
    return folders


def _explain_words(words: Sequence[str], folders: frozenset[str], root: str) -> str | None:
    """Return why the command proves nothing wherever it is in its line; None if there is no such reason."""
    if _stops(words) or (_find_program(words) == "make" and any(map(_holds_idle_program, words[1:]))):
        return "its options keep it from running, or from failing"
    return None if _is_in(root, folders, words) else "it ran in another folder"


def _stops(words: Sequence[str]) -> bool:
    """Return whether an option keeps the command from running what it is asked to, or from failing."""
    program = _find_program(words)
    stopping = _RUNS_NOTHING_IN.get(program, r"(?!)")
    # What pytest's `-k` selects may look like a setting.
    options = [word for before, word in pairwise(words) if (program, before) != ("pytest", "-k")]
    return any(re.fullmatch(_RUNS_NOTHING, word, re.IGNORECASE) or re.fullmatch(stopping, word) for word in options)


def _holds_idle_program(word: str) -> bool:
    """Return whether the word gives a variable of make a command that may test nothing."""
    name, _, value = word.partition("=")
    variable = re.fullmatch(_PROGRAM_VARIABLE, name)
    if variable is None or re.fullmatch(r"[0-9.]+", value):
        return False
    words = _unwrap(value.split() or [""])
    program = _find_program(words)
    if variable["tool"] is None and value.split() == [program]:
        return program in _IDLE
    is_unread = _PASSING.get(program) in ("", *words[1:2]) and len(words) > 2 and not words[-1].startswith("-")
    has_code = any(re.fullmatch("-[A-Za-z]*c", option) for option in words)
    is_tool = re.fullmatch(_TOOL, program) is not None and (program != "coverage" or words[1:2] == ["run"])
    return not is_tool or is_unread or has_code or _stops(words)


def _is_in(root: str, folders: frozenset[str], words: Sequence[str]) -> bool:
    """Return whether the command certainly runs in the root or below, and on no path outside of the root."""
    # `--rootdir=/tmp` and a plain `/tmp/other` lead elsewhere. Where the output of a program goes does not matter.
    operands = [
        word if match is None else match[1]
        for word in words[1:]
        if (match := re.fullmatch(_OTHER_PLACE, word)) or "/" in word or word == ".."
    ]
    operands = [word for word in operands if not word.startswith("-")]
    paths = {os.path.normpath(os.path.join(folder, word)) for folder in folders for word in (".", *operands)}
    return bool(folders) and all(path == root or path.startswith(f"{root.rstrip('/')}/") for path in paths)


def _unwrap(words: Sequence[str]) -> Sequence[str]:
    """Return the words behind programs that pass on their command's exit code, such as `timeout 600` and `uv run`."""
    while (word := _PASSING.get(name := words[0].rpartition("/")[2])) is not None:
        rest = list(words[1:])
        if word and rest[:1] != [word]:
            break
        rest = rest[1:] if word else rest
        while rest and re.fullmatch(_WRAPPER_WORD, rest[0]):
            del rest[: 2 if name == "uv" and rest[0] in _WITH_VALUE else 1]
        if not rest or rest[0].startswith("-"):
            break
        words = rest
    return words


def _strip(command: ShellCommand) -> Sequence[str]:
    """Return the words without `!`, which `_explain` writes as `not`, and without what `_unwrap` leaves out."""
    words = _unwrap(command.words)
    return _unwrap(words[1:]) if words[0] == "not" and len(words) > 1 else words


def _find_script(words: Sequence[str]) -> str | None:
    """Return the line that a group or a shell runs, after a `set` of the shell's options; None for other words."""
    if words[0] in _GROUPS:
        return words[1]
    if len(words) < 3 or words[0].rpartition("/")[2] not in _SHELLS or not re.fullmatch(_SCRIPT_OPTION, words[-2]):
        return None
    options = [words[-2].replace("c", "").replace("l", ""), *words[1:-2]]
    options = [option for option in options if option not in ("-", "-l", "--login")]
    if not re.fullmatch(_SET, shlex.join(options)):
        return None
    # In shells other than these two, `&>` is `&`, and then `>`.
    is_bash = words[0].endswith(("bash", "zsh"))
    line = words[-1] if is_bash else words[-1].replace("&>", "& >")
    return f"set {' '.join(options)}\n{line}" if options else line


def _explain_zero(commands: Sequence[ShellCommand], start: int, *, is_group: bool) -> str | None:
    """Return why the line can end with 0 although the command at `start` did not; None if it cannot."""
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
    # In a list with `&&` or `||`, `set -e` applies only to the last command; inside of a group it may not apply.
    stops = "errexit" in options and not is_group and set(ends[first:last]) <= {"|"}
    if last < len(commands) - 1 and not stops:
        return f"the exit code is that of `{commands[start + 1].text[:60]}`, which comes after it"
    return None


def _is_blind(command: ShellCommand, root: str) -> bool:
    words = _strip(command)
    if words[0] in ("source", ".") and len(words) == 2 and re.fullmatch(_ACTIVATE, words[1]):
        return not _is_in(root, frozenset({root}), words)
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
    """Return the shell options that are certainly set; None if a `set` may change what runs."""
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
    """Return the folders in which the command after `before` may run; the empty set if that is unknown."""
    for index, command in enumerate(before):
        mover = _strip(command)[0]
        if mover in ("pushd", "popd", "chdir"):
            return frozenset()
        if mover == "cd":
            if command.words[0] != "cd" or len(command.words) != 2 or command.words[1].startswith("-"):
                return frozenset()
            moved = _follow(folders, command.words[1:])
            # If the line can continue after a failed `cd`, the next command may run in the earlier folder.
            folders = moved if all(each.end == "&&" for each in before[index:]) else folders | moved
    return folders
