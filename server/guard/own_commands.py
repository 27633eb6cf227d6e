"""Finds commands of planwarden in a command line: a model may run only those that read."""

import re
from collections.abc import Sequence
from itertools import dropwhile

from planwarden.server.guard.command_parts import SEARCHING, list_parts
from planwarden.tools.guarded.programs import Program, find_program, read_options
from planwarden.tools.guarded.shell import RESERVED, list_words
from planwarden.tools.guarded.wrappers import InnerCommands

PROGRAM = "planwarden"
READING = frozenset({"list", "show", "tools", "check", "doctor", "rules", "--version", "--help", "-h"})
"""Commands of planwarden that a model may run: they decide nothing and write nothing."""
DECIDING = {
    *("serve", "worker", "plans", "init", "demo", "run", "run-goal", "call", "approve", "reject", "cancel"),
    *("retry", "inbox", "trust", "login", "notify", "schedule", "hook", "grant", "once", "promises", "receipt"),
    *("key", "audit", "prune", "backup", "move", "token", "guard", "gate", "config", "service", "completion"),
}
"""All other commands of planwarden."""
GLOBAL_OPTIONS = Program("home= store= model= mcp-config=")
MAX_OPTIONS = 100
"""The most words among which a command of planwarden is sought."""
VARIABLE = "PLANWARDEN_(?:HOME|STORE)"
"""Matches variables that could lead to another home of planwarden; a command may only search for their names."""


def runs_planwarden(text: str) -> bool:
    """Return whether the line runs planwarden, directly or through a wrapper, to do more than read."""
    sure: dict[tuple[str, ...], bool] = dict.fromkeys(map(tuple, list_parts(text)), False)
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


def uses_variable(text: str) -> bool:
    """Return whether the line names a variable of planwarden, other than to search for its name."""
    naming = [words for words in list_words(text) if any(re.search(VARIABLE, word) for word in words)]
    searches = naming and all(words[0].rpartition("/")[2] in {*SEARCHING, "git"} for words in naming)
    has_value = re.search(rf"\$[{{!#]*{VARIABLE}|{VARIABLE}\+?=", text)
    return re.search(VARIABLE, text) is not None and not (searches and has_value is None)


def _find_command(words: Sequence[str]) -> str:
    """Return the command of planwarden, or an option in its place; an empty text if there is none."""
    options, _, rest = read_options(GLOBAL_OPTIONS, words, 0)
    return next((option.word for option in options if option.kind == "unknown"), "".join(rest[:1]))
