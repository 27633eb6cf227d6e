"""Reads what a command line runs: with a small grammar, and behind wrappers. A person decides on lines it cannot read.

A rule names one command, such as `npm test`, but `npm test; rm -rf ~` has two. So rules let a command line pass only if
they let each of its commands pass, and only if this grammar reads the whole line. The grammar lists what may occur, and
reads it as every POSIX shell does. It does not accept what a shell processes before it runs a command (variables,
substitutions, patterns, braces, `~`, groups, redirections to files), blanks other than space and tab, words of the
shell's own language, or control characters.

A rule that denies `git push` also denies `env git push`. A wrapper is a program that runs another command. That
command can only make planwarden deny a call or ask a person; it never lets a call pass. Known wrappers are read with
their options. Scripts, and languages other than those of shells, are not read.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, pairwise

import msgspec

from planwarden.tools.guarded.programs import PROGRAMS, Program, find_program, read_options

MAX_CHARS = 32_768
MAX_COMMANDS = 50
RESERVED = frozenset(
    {
        *("if", "then", "elif", "else", "fi", "do", "done", "case", "esac", "while", "until", "for", "in", "select"),
        *("function", "time", "coproc", "repeat", "foreach", "end", "nocorrect", "noglob", "always", "{", "}", "!"),
    }
)
"""Words that belong to the shell's own language (sh, bash or zsh) at the beginning of a command."""

_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f]"
# A backslash may end a line only after a blank that separates words; after `\ `, the shell would join two words.
_BLANK = r"(?>(?:[ \t](?:\\\n)?)+)"
# In an encoding other than UTF-8, a backslash after a non-ASCII character may be the second half of that character.
_WORD = (
    r"(?!=)(?>(?:[A-Za-z0-9_@%+,./:=-]|(?<=[A-Za-z0-9_])~|\\[ -~]|'[^']*'"
    r'|"(?:[^"\\$`]|(?<![^\x00-\x7f])\\[ -~])*")+)'
)
_HARMLESS = r"(?:[12]?>[ \t]?/dev/null|<[ \t]?/dev/null|&>[ \t]?/dev/null|2>&1|1>&2|>&2)(?=[ \t\n;|&]|\Z)"
_COMMAND = re.compile(
    rf"(?>(?:[ \t](?:\\\n)?|\n)*)(?P<words>{_WORD}(?:{_BLANK}{_WORD})*)(?:{_BLANK}{_HARMLESS})*{_BLANK}?"
    r"(?P<end>&&|\|\||[;&|\n]|\Z)"
)
_INSIDE = r"(?:[^(){}#$`'\"\\]|'[^']*'|\"[^\"\\$`]*\")*"
_GROUP = re.compile(
    rf"[ \t\n]*(?P<words>\((?P<apart>{_INSIDE})\)|\{{(?P<here>[ \t\n]{_INSIDE}[;\n][ \t]*)\}})"
    rf"(?:{_BLANK}{_HARMLESS})*{_BLANK}?(?P<end>&&|\|\||[;&|\n]|\Z)"
)
_PROGRAM = r"[A-Za-z0-9_./][A-Za-z0-9_./:@%+-]*"
_PIECE = r"(?s)((?:[ \t]|\\\n)+)|\\(.)|'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|([^\\'\" \t]+)"
_LOOSE = (
    r"(?s)(?P<nothing>\\\n)|\\(?P<escaped>.)|(?P<ansi>\$)?'(?P<single>[^']*)'?|\$?\"(?P<double>(?:[^\"\\]|\\.)*)\"?"
    r"|(?P<end>[`();|&\n<>])|(?P<blank>\s)|(?P<text>(?:[^\\'\"`();|&\n<>\s$]|\$(?!['\"]))+)"
)
_ESCAPE = re.compile(r"(?s)\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|.)")
MAX_INNER = 100
"""The most commands that are read from one line."""
MAX_DEPTH = 8
"""The most levels of wrappers inside each other."""
MAX_READ_CHARS = 16 * MAX_CHARS
"""The most characters that are read for one line. A nested command counts again for each command around it."""
_NO_COMMAND = ("--with", "--from", "--extra", "--group", "--package", "--python", "-p", "-t", "-k", "-m", "-g")
"""Options of wrappers, and of the programs behind them, whose value is not a command."""
_DOES_NOTHING = "=(?:true|false|cat|:)?"
"""The end of a setting whose command, if any, does nothing."""
_SETTING_THAT_RUNS = re.compile(
    r"(?is)--config-env.*|--tem\w*(?:=.*)?|(?:-c|--conf\w*=)?(?:(?:include|includeif)\..*|core\.hookspath(?:=.*)?"
    rf"|(?![^=]*{_DOES_NOTHING}\Z)(?:(?:alias|pager|filter)\..*|submodule\..*\.update(?:=\s*!.*)?|remote\..*\.(?:upload|receive)pack(?:=.*)?"
    r"|[\w.-]+\.(?:\w*editor|\w*command|pager|external|helper|textconv|fsmonitor|program|askpass|gitproxy|cmd|driver"
    r"|difffilter)(?:=.*)?))"
)
"""Settings of git that run a command, or that, like an alias, can make other words mean a denied command."""
_SCOPES = ("--global", "--local", "--system", "--worktree")
_READS_SETTING = re.compile("--get(?:-all|-regexp|-urlmatch)?|--list|-l|get|list")
_VARIABLE_THAT_RUNS = re.compile(
    rf"(?s)(?!\w*(?:EDITOR|PAGER){_DOES_NOTHING}\Z)GIT_(?:(?:CONFIG|EXTERNAL|SSH|PROXY|ASKPASS)\w*|\w*EDITOR|PAGER)=.*"
)
_OPTION_THAT_RUNS = re.compile(
    r"(?s)-[a-z]*x(?P<glued>.*)|--(?:ex\w*|up\w*(?:-p\w*)?|rece\w*(?:-p\w*)?|\w+-filter)(?:=(?P<value>.*))?"
)
"""Options with which some commands of git run a command line."""
_SUBCOMMANDS_THAT_RUN = frozenset(
    ("rebase", "filter-branch", "difftool", "clone", "fetch", "pull", "push", "ls-remote", "archive", "send-pack")
)
EXECUTING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
"""Options of `find` that run the words after them, up to `;` or `+`."""


class ShellCommand(msgspec.Struct, frozen=True):
    """One simple command of a line."""

    text: str
    """The command as it is written, without harmless redirections after it."""
    words: tuple[str, ...]
    """Its words, as the shell passes them to the program."""
    end: str = ""
    """The operator after it: `&&`, `||`, `|`, `;`, `&`, a new line, or nothing."""


def read_commands(line: str, *, has_groups: bool = False) -> tuple[ShellCommand, ...] | None:
    """Return the simple commands of the line, in order; None if the grammar cannot read all of it.

    With `has_groups`, a group is read as a command of two words: `(` or `{`, and the line inside.
    """
    if len(line) > MAX_CHARS or re.search(_CONTROL, line):
        return None
    commands: list[ShellCommand] = []
    position, end = 0, ""
    while line[position:].strip(" \t\n"):
        group = _GROUP.match(line, position) if has_groups else None
        match = group or _COMMAND.match(line, position)
        if match is None or len(commands) == MAX_COMMANDS:
            return None
        if group is not None:
            words = ("(", group["apart"]) if group["here"] is None else ("{", group["here"])
        else:
            words = tuple(_list_plain_words(match["words"]))
            if not re.fullmatch(_PROGRAM, words[0]) or words[0] in RESERVED:
                return None
        commands.append(ShellCommand(match["words"], words, match["end"]))
        position, end = match.end(), match["end"]
    return tuple(commands) if commands and end not in ("&&", "||", "|") else None


def _list_plain_words(text: str) -> Iterator[str]:
    word = ""
    for blank, escaped, single, double, plain in re.findall(_PIECE, text):
        if blank:
            yield word
            word = ""
        else:
            word += escaped + single + _unquote(double) + plain
    yield word


def list_words(line: str) -> Iterator[list[str]]:
    """Yield the words of each part of a line, a list per part, even if the grammar cannot read the line.

    Substitutions and groups are parts too. Quotes and backslashes are removed where they are recognized. In doubt there
    are too many words, not too few, so they may be a reason to refuse a line, but never to let it pass.
    """
    words: list[str] = []
    word: str | None = None
    for match in re.finditer(_LOOSE, line):
        if match.lastgroup in ("blank", "end"):
            words += [] if word is None else [word]
            word = None
            if match.lastgroup == "end":
                yield words
                words = []
        elif match.lastgroup != "nothing":
            double = match["double"]
            single = _ESCAPE.sub(_unescape, match["single"]) if match["ansi"] else match["single"]
            word = (word or "") + (match["escaped"] or single or match["text"] or _unquote(double or ""))
            if double and ("$(" in double or "`" in double):
                yield from list_words(double)
    yield words if word is None else [*words, word]


def _unescape(match: re.Match[str]) -> str:
    kind, digits = match[1][:1], match[1][1:]
    if kind.isdigit():
        return chr(int(match[1], 8) % 256)
    return chr(int(digits, 16)) if digits and int(digits, 16) < 0x110000 else kind


def _unquote(double: str) -> str:
    return re.sub(r'\\([\\"$`\n])', lambda match: match[1].strip("\n"), double)


class InnerCommands:
    """The commands that a line runs: those that are written in it, and those behind wrappers."""

    def __init__(self, line: str) -> None:
        self.is_whole = True
        """Whether these commands are certainly all that the line runs."""
        self._chars_left = MAX_READ_CHARS
        self.commands: dict[tuple[str, ...], bool] = {}
        """The words of each command, mapped to False if they are only a guess, otherwise to True."""
        self._is_sure = True
        """Whether the words that are being read are certainly a command rather than a guess."""
        self._read_before: set[tuple[str, ...]] = set()
        self._read_line(line, 0)

    def list_lines(self) -> list[str]:
        """Return each command as a text: its words with blanks between them."""
        return [*dict.fromkeys(map(" ".join, self.commands))]

    def _read_line(self, line: str, depth: int) -> None:
        if self._is_new((line,), depth):
            commands = read_commands(line)
            self.is_whole &= commands is not None
            for command in commands or ():
                self._read(command.words, depth)
            for part in list_words(line):
                self._read(tuple(dropwhile(lambda word: word in RESERVED and word not in PROGRAMS, part)), depth)

    def _is_new(self, words: tuple[str, ...], depth: int) -> bool:
        self._chars_left -= sum(map(len, words)) + len(words)
        if self._is_too_much(depth) or words in self._read_before:
            return False
        self._read_before.add(words)
        return True

    def _is_too_much(self, depth: int) -> bool:
        is_too_much = depth > MAX_DEPTH or len(self.commands) >= MAX_INNER or self._chars_left < 0
        self.is_whole &= not is_too_much
        return is_too_much

    def _read(self, words: Sequence[str], depth: int) -> None:
        self._chars_left -= len(words)
        self.is_whole &= not any(map(_VARIABLE_THAT_RUNS.fullmatch, words))
        words = tuple(dropwhile(lambda word: "=" in word or word == "--", words))
        if not words or not self._is_new((str(self._is_sure), *words), depth):
            return
        name = words[0].rpartition("/")[2]
        program = find_program(name)
        self.is_whole &= "{}" not in name
        for first in (words[0], name):
            self._add((first, *words[1:]))
        if name == "find":
            starts = [index for index, word in enumerate(words[:-1], 1) if word in EXECUTING]
            self.is_whole &= not starts
            self._read_each(words, starts, depth)
        elif program is None or program.then in ("nothing", "module"):
            pass
        elif program.then == "git":
            rest = self._skip_options(program, words[1:], depth)
            self._add((name, *rest))
            settings = words[1 : None if _may_set(rest) else len(words) - len(rest)]
            self.is_whole &= not any(map(_SETTING_THAT_RUNS.fullmatch, settings))
            self._read_git(rest, depth + 1)
        elif program.then == "guess":
            matches = (re.fullmatch(program.behind, word) for word in words) if program.behind else ()
            start, match = next(((index, match) for index, match in enumerate(matches) if match), (0, None))
            glued = [*filter(None, match.groups())] if match is not None else []
            words = (*words[: start + 1], *glued, *words[start + 1 :])
            if match is not None or not program.behind:
                self._read_each(words, range(start + 1, len(words)), depth, is_guess=True)
        else:
            self._unwrap(name, program, words[1:], depth + 1)

    def _add(self, words: tuple[str, ...]) -> None:
        self.commands[words] = self._is_sure or self.commands.get(words, False)

    def _read_each(self, words: Sequence[str], starts: Iterable[int], depth: int, *, is_guess: bool = False) -> None:
        """Read a command from each of `starts`. With `is_guess`, those behind the first operand count as guesses."""
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
        """Read the command that a subcommand of git runs."""
        command = "".join(words[:1])
        if command in ("bisect", "submodule"):
            behind = dropwhile(lambda word: word not in ("run", "foreach"), words)
            rest = [*dropwhile(lambda word: word.startswith("-"), [*behind][1:])]
            if rest:
                self._read(rest, depth)
                self._read_line(" ".join(rest), depth)
        elif command in _SUBCOMMANDS_THAT_RUN:
            for word, after in pairwise((*words, "")):
                word = re.sub("^-u", "-x", word) if command == "clone" else word
                if option := _OPTION_THAT_RUNS.fullmatch(word):
                    self._read_line(option["glued"] or option["value"] or after, depth)

    def _unwrap(self, name: str, wrapper: Program, words: Sequence[str], depth: int) -> None:
        if name == "command" and re.match("-p?[vV]", "".join(words[:1])):
            # With this option, `command` only says what would run.
            return
        rest = self._skip_options(wrapper, words, depth)
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
            case _:
                for count in range(min(wrapper.operands, len(rest)) + 1):
                    self._read(rest[count:], depth)

    def _skip_options(self, program: Program, words: Sequence[str], depth: int) -> Sequence[str]:
        """Return the words behind the program's options, and read the command lines that are values of options."""
        # Wrappers that take a command line as the value of an option accept that option even after their operands.
        options, operands, rest = read_options(program, words, program.operands if "!" in program.options else 0)
        for option in options:
            if option.kind == "line":
                self._chars_left -= sum(map(len, words[option.end :])) + len(words) - option.end
                if self._is_too_much(depth):
                    break
                # Some options take code in a language other than a shell's.
                self.is_whole &= option.name == "c" and program.is_closed
                self._read_line(option.value or "", depth)
                self._read_line(" ".join((option.value or "", *words[option.end :])), depth)
            self.is_whole &= option.kind != "unknown"
        return (*operands, *rest)


def _may_set(words: Sequence[str]) -> bool:
    """Return whether a command of git may change a setting, or takes one as an option."""
    words = (*words[:1], *(word for word in words[1:] if word not in _SCOPES))
    is_read = len(words) == 2 or _READS_SETTING.fullmatch("".join(words[1:2])) is not None
    return words[:1] in (("clone",), ("init",)) or (words[:1] == ("config",) and not is_read)
