"""Knows which programs act on all that is in a folder: they delete it, put files into it, or read it."""

import re
from collections.abc import Sequence
from itertools import dropwhile

from planwarden.server.guard.calls import MAX_FOLDER_CHARS
from planwarden.server.guard.command_parts import find_name
from planwarden.server.guard.host_code import HOST_FOLDER_NAMES
from planwarden.tools.guarded.programs import Program, read_options

DELETING = frozenset(
    {
        *("rm", "rmdir", "mv", "unlink", "shred", "srm", "rename", "rimraf", "trash", "trash-put", "-delete"),
        *("--delete", "rd", "del", "erase", "remove-item", "move-item", "rename-item"),
    }
)
"""Programs and options that delete or move what they are given, with all that is in it."""
COPYING = frozenset({"cp", "mv", "ln", "rsync", "install", "scp", "ditto", "tar", "bsdtar", "unzip", "cpio"})
"""Programs that put files into a given folder."""
LOCKING = frozenset({"chmod", "chown", "chgrp"})
"""Programs that can keep a host from reading its files."""
READING_ALL = frozenset(
    {
        *("rg", "ag", "ack", "ugrep", "rgrep", "--no-index", "tar", "bsdtar", "pax", "rsync", "zip"),
        *("7z", "7za", "7zr", "7zz", "-exec", "-execdir"),
    }
)
"""Programs and options that read all folders below a given one; those in `READING_MUCH` need a recursive option."""
READING_MUCH = frozenset({"grep", "egrep", "fgrep", "zgrep", "cp", "scp", "diff"})
RECURSIVE = re.compile(r"-(?=[A-Za-z]*[arR])[A-Za-z]+|--(?:dereference-)?recu\w*|--ar\w*|(?:--dir\w*=)?recurse")
_GLUED = re.compile(r"\A-[A-Za-z]*?(?:[txX]|(?=[^A-Za-z-]))(.+)", re.DOTALL)
"""An option with its value in the same word."""
FINDS_HERE = re.compile(r"(?s)(?:.*[/ ])?find(?: -[HLP])*(?: -[^HLP].*)?")
_CLEAN = Program("-dfinqxX dry-run force interactive quiet -e= exclude=")
_UNCLEAR_FIND = re.compile(r"[\\$`]|\[[\[^]| (?:-L|-follow) |\{\}/| -i?name \.+ ")
"""Patterns that `find` reads in its own way, links that it follows, and paths near what it finds."""
ENDS_OF_TERMS = frozenset({"-o", "-or", ",", "-delete", "-exec", "-execdir", "-ok", "-okdir"})
"""Words of `find` before which a term has to have named the files."""


def list_cleaned(words: Sequence[str]) -> Sequence[str]:
    """Return the folders from which `git clean` deletes ignored files."""
    rest = [*dropwhile(lambda word: word != "clean", dropwhile(lambda word: not word.endswith("git"), words))][1:]
    options, paths, behind = read_options(_CLEAN, rest, len(rest))
    flags = " ".join(option.word for option in options)
    is_safe = re.search(r"(?<!-)-[A-Za-z]*[xX]", flags) is None or re.search("-[A-Za-z]*n", flags)
    is_safe = is_safe or any(option.value in HOST_FOLDER_NAMES for option in options)
    return [] if is_safe else [*paths, *behind] or ["."]


def list_sought_names(words: Sequence[str]) -> Sequence[str] | None:
    """Return patterns: one of them fits each name on which `find` acts. Return None if it may act on other names."""
    if find_name(words) != "find" or _UNCLEAR_FIND.search(" ".join(words)):
        return None
    names, is_named = list[str](), False
    for before, word, after in zip(("", *words), words, (*words[1:], ""), strict=False):
        if word in ("-name", "-iname") and before not in ("!", "-not"):
            names.append(after)
            is_named = True
        elif (word in ENDS_OF_TERMS and not is_named) or (word == "(" and before in ("!", "-not")):
            return None
        is_named &= word not in ("-o", "-or", ",")
    return names if is_named else None


def list_operands(words: Sequence[str]) -> list[str]:
    """Return the operands of a command, including the values that are glued to options."""
    return [
        piece
        for word in words[1:]
        for piece in dict.fromkeys((word, word.rpartition("=")[2], *_GLUED.findall(word[:MAX_FOLDER_CHARS])))
    ]


def reads_all(programs: frozenset[str], words: Sequence[str]) -> bool:
    is_recursive = any(RECURSIVE.fullmatch(word) for word in words)
    return bool(programs & READING_ALL or (programs & READING_MUCH and is_recursive))
