"""Reads what a command line runs, with a small grammar. A person decides on lines that the grammar cannot read.

A rule names one command, such as `npm test`, but `npm test; rm -rf ~` has two. So rules let a command line pass only if
they let each of its commands pass, and only if this grammar reads the whole line. The grammar lists what may occur, and
reads it as every POSIX shell does. It does not accept what a shell processes before it runs a command (variables,
substitutions, patterns, braces, `~`, groups, redirections to files), blanks other than space and tab, words of the
shell's own language, or control characters.
"""

import re
from collections.abc import Iterator

import msgspec

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
# A backslash continues the line only after a blank that separates words; after `\ ` the shell joins two words.
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
