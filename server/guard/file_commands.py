"""Knows which programs act on everything in a folder: they delete it, add files to it, or read it."""

import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile, islice
from typing import Literal

import msgspec

from planwarden.server.guard.calls import MAX_FOLDER_CHARS
from planwarden.server.guard.command_parts import SEARCHING, find_program_name
from planwarden.tools.guarded.hosts import HOST_FOLDERS
from planwarden.tools.guarded.programs import Program, read_options
from planwarden.tools.guarded.shell import EXECUTING

DELETING = {
    *("rm", "rmdir", "mv", "unlink", "shred", "srm", "rename", "rimraf", "trash", "trash-put", "-delete"),
    *("--delete", "rd", "del", "erase", "remove-item", "move-item", "rename-item"),
}
"""Programs and options that delete or move files, and folders with everything in them."""
COPYING = {"cp", "mv", "ln", "rsync", "install", "scp", "ditto", "tar", "bsdtar", "unzip", "cpio"}
"""Programs that put files into a given folder."""
LOCKING = frozenset({"chmod", "chown", "chgrp"})
"""Programs that can make the files of a host unreadable for the host."""
READING_MUCH = frozenset({"grep", "egrep", "fgrep", "zgrep", "cp", "scp", "diff"})
"""Programs that read a folder with all its subfolders only if they have a recursive option."""
READING_ALL = EXECUTING | SEARCHING - READING_MUCH | {"tar", "bsdtar", "pax", "rsync", "zip", "7z", "7za", "7zr", "7zz"}
"""Programs and options that always read a folder with all its subfolders."""
_RECURSIVE = re.compile(r"-(?=[A-Za-z]*[arR])[A-Za-z]+|--(?:dereference-)?recu\w*|--ar\w*|(?:--dir\w*=)?recurse")
_GLUED = re.compile(r"\A-[A-Za-z]*?(?:[txX]|(?=[^A-Za-z-]))(.+)", re.DOTALL)
"""Matches an option and its value in one word, such as `-fFILE`."""
_FINDS_HERE = re.compile(r"(?s)(?:.*[/ ])?find(?: -[HLP])*(?: -[^HLP].*)?")
_CLEAN = Program("-dfinqxX dry-run force interactive quiet -e= exclude=")
_UNCLEAR_FIND = re.compile(r"[\\$`]|\[[\[^]| (?:-L|-follow) |\{\}/| -i?name \.+ ")
"""Matches parts of `find` that the check does not read: special patterns, followed links, paths near a match."""
_ENDS_OF_TERMS = EXECUTING | {"-o", "-or", ",", "-delete"}
"""Words that end a term of `find`. Without a `-name` before them in the term, `find` may act on any name."""


class Act(msgspec.Struct, frozen=True):
    """What a command does to everything in some folders."""

    does: Literal["delete or move", "put files into", "read all of"]
    places: Sequence[str]
    names: Sequence[str] | None = None
    """The command acts only on names that fit one of these patterns; None if it may act on every name."""
    acts_here: bool = False
    """Whether the command acts on its own folder if none of the `places` exists."""


def list_acts(words: Sequence[str]) -> Iterator[Act]:
    """Yield what the command does to the folders that it names, or to its own folder."""
    operands = _list_operands(words)
    programs = frozenset(re.split(r"[/=!{]", word)[-1].lower() for word in (*words[:1], *operands))
    is_recursive = any(map(_RECURSIVE.fullmatch, words))
    if programs & DELETING or (programs & LOCKING and is_recursive):
        # The last operand of `mv` is the destination; `mv` moves the others.
        moved = _list_operands(words[:-1]) if "mv" in programs else operands
        moved = ["."] if _FINDS_HERE.fullmatch(" ".join(words)) else moved
        names = _list_sought_names(words)
        yield Act("delete or move", moved, names)
        if names is not None:
            # The command that `find` runs for each name may also delete something else.
            run = islice(dropwhile(lambda word: word not in _ENDS_OF_TERMS, words), 1, None)
            yield from list_acts([word for word in run if word not in (";", "+", "{}")])
    if "clean" in programs:
        yield Act("delete or move", _list_cleaned(words))
    if programs & COPYING:
        yield Act("put files into", operands)
    if programs & READING_ALL or (programs & READING_MUCH and is_recursive):
        yield Act("read all of", operands, acts_here=bool(programs & SEARCHING))


def _list_cleaned(words: Sequence[str]) -> Sequence[str]:
    """Return the folders from which `git clean` deletes ignored files."""
    rest = [*dropwhile(lambda word: word != "clean", dropwhile(lambda word: not word.endswith("git"), words))][1:]
    options, paths, behind = read_options(_CLEAN, rest, len(rest))
    flags = " ".join(option.word for option in options)
    is_safe = re.search(r"(?<!-)-[A-Za-z]*[xX]", flags) is None or re.search("-[A-Za-z]*n", flags)
    is_safe = is_safe or any(option.value in HOST_FOLDERS for option in options)
    return [] if is_safe else [*paths, *behind] or ["."]


def _list_sought_names(words: Sequence[str]) -> Sequence[str] | None:
    """Return the patterns of the names on which `find` acts; None if it may act on every name."""
    if find_program_name(words) != "find" or _UNCLEAR_FIND.search(" ".join(words)):
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
    """Return the operands of a command, and the values that are in the same word as an option."""
    return [
        piece
        for word in words[1:]
        for piece in dict.fromkeys((word, word.rpartition("=")[2], *_GLUED.findall(word[:MAX_FOLDER_CHARS])))
    ]
