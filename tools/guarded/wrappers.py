"""Finds the commands behind wrappers: programs that run another command, such as `env`, `sudo -u ann` and `bash -c`.

A rule that denies `git push` also denies `env git push`. A command behind a wrapper can only make planwarden deny a
call or ask a person; it never lets a call pass. Known wrappers are read with their options. If it cannot be known what
a wrapper runs, `is_whole` is False. Scripts, and languages other than those of shells, are not read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, pairwise
from typing import Literal

import msgspec
from msgspec.structs import replace

from planwarden.tools.guarded.shell import MAX_CHARS, RESERVED, list_words, read_commands

MAX_INNER = 100
"""The most commands that are read from one line."""
MAX_DEPTH = 8
"""The most levels of wrappers inside each other."""
MAX_READ_CHARS = 16 * MAX_CHARS
"""The most characters that are read for one line; a command inside of others is read again for each of those."""


class Wrapper(msgspec.Struct, frozen=True):
    """Describes how to find, in the words of one wrapper, the command that it runs."""

    flags: str = ""
    """Options without a value: letters, then long names, separated by blanks."""
    values: str = ""
    """Options with a value, in the same form."""
    lines: str = ""
    """Options whose value is a command line, alone or together with the words behind it."""
    operands: int = 0
    """The number of words between the options and the command."""
    then: Literal["command", "line", "first", "script"] = "command"
    """What follows: a command, a command line in several words, a command line in one word, or a shell's script."""
    is_closed: bool = True
    """False if the wrapper may run something that its words do not show."""


_SHELL = Wrapper(
    "abcefhiklmnpruvxBCDEHPTqdwfyIV login norc noprofile posix restricted verbose noediting debugger pretty-print",
    "oO rcfile init-file",
    then="script",
)
_LINE = Wrapper(then="line")
_PLAIN = Wrapper()
WRAPPERS: Mapping[str, Wrapper] = {
    "env": Wrapper("i0v ignore-environment null debug", "uCa unset chdir argv0", "S split-string"),
    "sudo": Wrapper(
        "ABbEHKknPSsil askpass background bell login non-interactive preserve-env preserve-groups reset-timestamp "
        "set-home shell stdin remove-timestamp",
        "CDghpRrtTUu close-from chdir group host prompt chroot role type command-timeout other-user user",
    ),
    "doas": Wrapper("nsL", "uC"),
    "run0": Wrapper("", "uDg user chdir group"),
    "su": Wrapper(
        "lmpP login preserve-environment pty", "gGsw group supp-group shell", "c command", operands=99, is_closed=False
    ),
    "command": Wrapper("pvV"),
    "builtin": _PLAIN,
    "exec": Wrapper("cl", "a"),
    "nohup": _PLAIN,
    "setsid": Wrapper("cfw ctty fork wait"),
    "time": Wrapper("apvq append portability verbose quiet", "of output format"),
    "timeout": Wrapper("vfp foreground preserve-status verbose", "ks kill-after signal", operands=1),
    "nice": Wrapper("0123456789", "n adjustment"),
    "ionice": Wrapper("t ignore", "cn class classdata"),
    "chrt": Wrapper("abdfiormRv all-tasks batch deadline fifo idle other rr", "TPD", operands=1),
    "taskset": Wrapper("ac all-tasks cpu-list", operands=1),
    "stdbuf": Wrapper("", "ioe input output error"),
    "unbuffer": Wrapper("p"),
    "setarch": Wrapper("vR", operands=1),
    "linux64": Wrapper("vR"),
    "chroot": Wrapper(" skip-chdir", " groups userspec", operands=1),
    "flock": Wrapper("senxuoFv shared exclusive nonblock unlock close no-fork verbose", "wE timeout", "c", operands=1),
    "caffeinate": Wrapper("disum", "tw"),
    "strace": Wrapper("cCdfFhiknqrtTvVwxyz", "abeEIoOpPsSu"),
    "busybox": _PLAIN,
    "toybox": _PLAIN,
    "eval": _LINE,
    "watch": Wrapper("bcdegptwx beep color differences errexit chgexit no-title exec", "nq interval", then="line"),
    "trap": Wrapper("lp", then="first"),
    "script": Wrapper(
        "aefq append return flush quiet", "EmOIBT log-in log-out log-io log-timing", "c command", 99, is_closed=False
    ),
    "xargs": Wrapper(
        "0prtx null interactive no-run-if-empty verbose exit",
        "adEILnPs arg-file delimiter max-args max-procs max-chars",
        is_closed=False,
    ),
    "at": Wrapper(is_closed=False),
    "batch": Wrapper(is_closed=False),
    "parallel": Wrapper(then="line", is_closed=False),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash"), _SHELL),
    # The languages of these shells are not that of a POSIX shell.
    **dict.fromkeys(("fish", "csh", "tcsh", "nu", "elvish", "xonsh", "pwsh"), replace(_SHELL, is_closed=False)),
}
_RUNNERS = {
    "uv poetry pipenv hatch pdm rye conda mamba": "run",
    "bundle npm pnpm yarn mise direnv": "exec|x",
    "fd fdfind": "-[A-Za-z0-9]*[xX]|--exec(?:-batch)?",
    "npx bunx uvx pipx hyperfine entr perf ltrace valgrind gdb pkexec runuser setpriv unshare nsenter bwrap "
    "firejail fakeroot faketime sem systemd-run systemd-inhibit dbus-run-session start-stop-daemon prlimit numactl "
    "rlwrap cpulimit choom torsocks proxychains proxychains4 nix-shell dotenv tmux screen": "",
}
RUNNERS = {name: word for names, word in _RUNNERS.items() for name in names.split()}
"""Programs that run a command behind a word of this pattern or options. Each place where it may begin is read."""
_NO_COMMAND = frozenset(
    ("--with", "--from", "--extra", "--group", "--package", "--python", "-p", "-t", "-k", "-m", "-g")
)
"""Options of these programs, and of what they run, whose value is not a command."""
GLOBAL_OPTIONS: Mapping[str, Wrapper] = {
    "git": Wrapper(
        "pPhv paginate no-pager bare no-replace-objects no-lazy-fetch no-optional-locks no-advice literal-pathspecs "
        "glob-pathspecs noglob-pathspecs icase-pathspecs exec-path html-path man-path info-path version help",
        "Cc git-dir work-tree namespace super-prefix config-env list-cmds attr-source exec-path",
    )
}
"""Options between a program and the first word that is not an option."""
_HARMLESS = "=(?:true|false|cat|:)?"
"""The end of a setting by which nothing runs that does anything."""
_SETTING_THAT_RUNS = re.compile(
    r"(?is)--config-env.*|(?:-c|--config=)?(?:(?:include|includeif)\..*|core\.hookspath(?:=.*)?"
    rf"|(?![^=]*{_HARMLESS}\Z)(?:(?:alias|pager|filter)\..*|submodule\..*\.update(?:=\s*!.*)?|remote\..*\.(?:upload|receive)pack(?:=.*)?"
    r"|[\w.-]+\.(?:\w*editor|\w*command|pager|external|helper|textconv|fsmonitor|program|askpass|gitproxy|cmd|driver"
    r"|difffilter)(?:=.*)?))"
)
"""Settings of git that run a command, or that give other words the meaning of a denied command."""
_SCOPES = ("--global", "--local", "--system", "--worktree")
_READS_SETTING = re.compile("--get(?:-all|-regexp|-urlmatch)?|--list|-l|get|list")
_VARIABLE_THAT_RUNS = re.compile(
    rf"(?s)(?!\w*(?:EDITOR|PAGER){_HARMLESS}\Z)GIT_(?:(?:CONFIG|EXTERNAL|SSH|PROXY|ASKPASS)\w*|\w*EDITOR|PAGER)=.*"
)
_LINE_OF_GIT = re.compile(r"(?s)-[a-z]*x(?P<glued>.*)|--(?:ex\w*|\w+-filter)(?:=(?P<value>.*))?")
"""Options of some commands of git that run a command line."""
_EXECUTING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
"""Options of `find` that run the words behind them, up to `;` or `+`."""


class InnerCommands:
    """The commands that a line runs: those that are written in it, and those behind wrappers."""

    def __init__(self, line: str) -> None:
        self.is_whole = True
        """False if the line may run something that is not among these commands."""
        self._chars_left = MAX_READ_CHARS
        self._commands: dict[tuple[str, ...], bool] = {}
        self._is_sure = True
        """Whether a command certainly begins at the words that are read now."""
        self._read_before: set[tuple[str, ...]] = set()
        self._read_line(line, 0)

    def list_lines(self) -> list[str]:
        """Return each command as a text: its words with blanks between them."""
        return [*dict.fromkeys(map(" ".join, self._commands))]

    def list_words(self) -> Mapping[tuple[str, ...], bool]:
        """Return the words of each command, and whether a command certainly begins with them."""
        return self._commands

    def _read_line(self, line: str, depth: int) -> None:
        if self._is_new((line,), depth):
            commands = read_commands(line)
            self.is_whole &= commands is not None
            for command in commands or ():
                self._read(command.words, depth)
            for part in list_words(line):
                self._read(tuple(dropwhile(lambda word: word in RESERVED and word not in WRAPPERS, part)), depth)

    def _is_new(self, words: tuple[str, ...], depth: int) -> bool:
        self._chars_left -= sum(map(len, words)) + len(words)
        if self._is_too_much(depth) or words in self._read_before:
            return False
        self._read_before.add(words)
        return True

    def _is_too_much(self, depth: int) -> bool:
        is_too_much = depth > MAX_DEPTH or len(self._commands) >= MAX_INNER or self._chars_left < 0
        self.is_whole &= not is_too_much
        return is_too_much

    def _read(self, words: Sequence[str], depth: int) -> None:
        self._chars_left -= len(words)
        self.is_whole &= not any(map(_VARIABLE_THAT_RUNS.fullmatch, words))
        words = tuple(dropwhile(lambda word: "=" in word or word == "--", words))
        if not words or not self._is_new((str(self._is_sure), *words), depth):
            return
        name = words[0].rpartition("/")[2]
        self.is_whole &= "{}" not in name
        for first in (words[0], name):
            self._add((first, *words[1:]))
        if name in GLOBAL_OPTIONS:
            rest = self._pass_options(GLOBAL_OPTIONS[name], words[1:], depth)
            self._add((name, *rest))
            settings = words[1 : None if _sets(rest) else len(words) - len(rest)]
            self.is_whole &= not any(map(_SETTING_THAT_RUNS.fullmatch, settings))
            self._read_git(rest, depth + 1)
        elif name in RUNNERS:
            starts = [index for index, word in enumerate(words) if re.fullmatch(RUNNERS[name], word)] or [len(words)]
            self._read_each(words, range(starts[0] + 1 if RUNNERS[name] else 1, len(words)), depth, is_guess=True)
        elif name == "find":
            starts = [index + 1 for index, word in enumerate(words) if word in _EXECUTING]
            self.is_whole &= not starts
            self._read_each(words, starts, depth)
        elif name in WRAPPERS:
            self._unwrap(name, words[1:], depth + 1)

    def _add(self, words: tuple[str, ...]) -> None:
        self._commands[words] = self._is_sure or self._commands.get(words, False)

    def _read_each(self, words: Sequence[str], starts: Iterable[int], depth: int, *, is_guess: bool = False) -> None:
        """Read each place where a command begins. Guesses are sure only up to the first word behind the options."""
        is_sure, has_begun = self._is_sure, False
        for start in starts:
            if self._is_too_much(depth + 1):
                break
            word, is_value = words[start], words[start - 1] in _NO_COMMAND
            self._is_sure = is_sure and not (is_guess and (has_begun or is_value))
            self._read(words[start:], depth + 1)
            # Some of these programs take a whole command line in one word.
            for part in list_words(word) if is_guess and " " in word and not is_value else ():
                self._read(part, depth + 1)
            has_begun |= not is_value and not word.startswith("-")
        self._is_sure = is_sure

    def _read_git(self, words: Sequence[str], depth: int) -> None:
        """Read the command that a command of git runs."""
        command = "".join(words[:1])
        if command in ("bisect", "submodule"):
            behind = dropwhile(lambda word: word not in ("run", "foreach"), words)
            rest = [*dropwhile(lambda word: word.startswith("-"), [*behind][1:])]
            if rest:
                self._read(rest, depth)
                self._read_line(" ".join(rest), depth)
        elif command in ("rebase", "filter-branch", "difftool"):
            for word, after in pairwise((*words, "")):
                if option := _LINE_OF_GIT.fullmatch(word):
                    self._read_line(option["glued"] or option["value"] or after, depth)

    def _unwrap(self, name: str, words: Sequence[str], depth: int) -> None:
        wrapper = WRAPPERS[name]
        if name == "command" and re.match("-p?[vV]", "".join(words[:1])):
            # With this option, `command` only says what would run.
            return
        rest = self._pass_options(wrapper, words, depth)
        # Without a command, `env` shows variables. Most other wrappers then read commands from their input, or fail.
        self.is_whole &= wrapper.is_closed and (bool(rest) or name == "env")
        match wrapper.then:
            case "script":
                options = words[: len(words) - len(rest)]
                has_line = any("c" in word for word in options if word[:1] in ("-", "+") and word[:2] != "--")
                if has_line:
                    self._read_line(" ".join(rest[:1]), depth)
                self.is_whole &= has_line or not " ".join(rest[:1]).startswith(("/dev/", "/proc/"))
            case "line":
                self._read_line(" ".join(rest), depth)
            case "first":
                self._read_line(" ".join(rest[:1]), depth)
            case "command":
                for count in range(min(wrapper.operands, len(rest)) + 1):
                    self._read(rest[count:], depth)

    def _pass_options(self, wrapper: Wrapper, words: Sequence[str], depth: int) -> Sequence[str]:
        """Return the words behind the wrapper's options, and read the command lines that are values of options."""
        flags, values, lines = (_split_options(text) for text in (wrapper.flags, wrapper.values, wrapper.lines))
        index, operands = 0, 0
        while index < len(words):
            word = words[index]
            if word == "--":
                return words[index + 1 :]
            if not word.startswith(("-", "+")) and "=" not in word:
                # A wrapper that takes a line in an option also takes it behind its operands.
                if not lines or operands == wrapper.operands:
                    break
                operands += 1
            index += 1
            if not word.startswith(("-", "+")) or word == "-":
                continue
            option, value = _find_last_option(word, flags, values | lines)
            if option in flags:
                continue
            if value is None and option in values | lines:
                value, index = " ".join(words[index : index + 1]), index + 1
            if option in lines:
                self._chars_left -= sum(map(len, words[index:])) + len(words) - index
                if self._is_too_much(depth):
                    break
                # The value of some options is in a language of its own.
                self.is_whole &= option == "c" and wrapper.is_closed
                self._read_line(value or "", depth)
                self._read_line(" ".join((value or "", *words[index:])), depth)
            self.is_whole &= option in values | lines
        return words[index - operands :] if operands else words[index:]


def _sets(words: Sequence[str]) -> bool:
    """Return whether a command of git may change a setting, or is given one."""
    words = (*words[:1], *(word for word in words[1:] if word not in _SCOPES))
    is_read = len(words) == 2 or _READS_SETTING.fullmatch("".join(words[1:2])) is not None
    return words[:1] == ("clone",) or (words[:1] == ("config",) and not is_read)


def _split_options(text: str) -> frozenset[str]:
    letters, *names = text.split(" ")
    return frozenset((*letters, *names))


def _find_last_option(word: str, flags: frozenset[str], valued: frozenset[str]) -> tuple[str, str | None]:
    """Return the first option in the word that is not a flag, or the last flag, and its value if the word has one."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals or name in flags else None
    index = next((index for index, letter in enumerate(word[1:], 1) if letter not in flags), len(word) - 1)
    return word[index], (word[index + 1 :] or None) if word[index] in valued else None
