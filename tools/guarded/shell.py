"""What can be seen of a shell command without running it: its parts, and the words of each.

A rule names one command, such as `npm test`; `npm test; rm -rf ~` is two. So a rule lets a command line pass only if it
lets each part pass, and only where the parts can be told apart. Everything that a shell would work out first
(variables, substitutions, here documents, groups, redirections to files) is not seen through: such a line is asked
about.
"""

from collections.abc import Iterator
from typing import Literal

MAX_CHARS = 32_768
MAX_PARTS = 50
_HARMLESS = ("2>&1", ">/dev/null", "2>/dev/null", "&>/dev/null", "> /dev/null", "2> /dev/null", "</dev/null")
_OPAQUE = frozenset("`$<>(){}#\r")
"""Outside of single quotes; `#`, braces and parentheses only outside of quotes."""
_SEPARATORS = ("&&", "||", "|&", ";;", ";", "|", "&", "\n")


def split_parts(command: str) -> tuple[str, ...] | None:
    """Returns the simple commands of the line as they are written; None where they cannot be told apart."""
    if len(command) > MAX_CHARS or "\0" in command:
        return None
    parts: list[str] = []
    part = ""
    place = 0
    while place < len(command):
        rest = command[place:]
        found = _read_piece(rest)
        if found is None:
            return None
        piece, is_separator = found
        if is_separator:
            parts.append(part)
            part = ""
        else:
            part += piece
        place += len(piece)
        if len(parts) > MAX_PARTS:
            return None
    cleaned = tuple(text for text in map(_strip, (*parts, part)) if text)
    return cleaned or None


def _read_piece(rest: str) -> tuple[str, bool] | None:
    """Returns the next piece of a line, and whether it ends a command; None for what is not seen through."""
    character = rest[0]
    for harmless in _HARMLESS:
        if rest.startswith(harmless) and rest[len(harmless) : len(harmless) + 1] in ("", " ", ";", "|", "&", "\n"):
            return harmless, False
    for separator in _SEPARATORS:
        if rest.startswith(separator):
            return separator, True
    if character == "'":
        end = rest.find("'", 1)
        return None if end < 0 else (rest[: end + 1], False)
    if character == '"':
        return _read_quoted(rest)
    if character == "\\":
        # A line that goes on in the next one, and any escaped character.
        return (rest[:2], False) if len(rest) > 1 else None
    return None if character in _OPAQUE else (character, False)


def _read_quoted(rest: str) -> tuple[str, bool] | None:
    place = 1
    while place < len(rest):
        if rest[place] == "\\":
            place += 2
        elif rest[place] in "`$":
            return None
        elif rest[place] == '"':
            return rest[: place + 1], False
        else:
            place += 1
    return None


def _strip(part: str) -> str:
    text = part.strip()
    changed = True
    while changed:
        changed = False
        for harmless in _HARMLESS:
            if text.endswith(f" {harmless}") or text == harmless:
                text, changed = text[: -len(harmless)].rstrip(), True
    return text


def list_words(command: str) -> Iterator[list[str]]:
    """Yields the words of each part of the line, as well as they can be seen: quotes and backslashes are taken away.

    It looks into everything, substitutions and groups too, and yields rather too many words than too few: it serves to
    find what is refused, never to let something pass.
    """
    words: list[str] = []
    word: list[str] = []
    for kind, text in _read_pieces(command):
        if kind == "text":
            word.append(text)
            continue
        if word:
            words.append("".join(word))
            word = []
        if kind == "end":
            yield words
            words = []
    yield words


def _read_pieces(command: str) -> Iterator[tuple[Literal["text", "space", "end"], str]]:
    """Yields characters of words, spaces between words, and ends of parts; at last an end."""
    quote, place = "", 0
    while place < len(command):
        character = command[place]
        if character == "\\" and quote != "'":
            place += 1
            if command[place : place + 1] != "\n":
                yield "text", command[place : place + 1]
        elif quote == "'" and character != "'":
            yield "text", character
        elif character in "'\"" and quote in ("", character):
            quote = "" if quote else character
            yield "text", ""
        elif character in "`()" or (not quote and character in ";|&\n{}<>"):
            yield "end", ""
        else:
            yield ("space" if not quote and character.isspace() else "text"), character
        place += 1
    yield "end", ""
