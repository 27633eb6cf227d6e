"""Text in styles, broken into rows of a terminal.

A row is broken between words; a word that is longer than a row is broken within. Letters of East Asia and most emoji
take two cells, and marks that change the letter before them take none (https://www.unicode.org/reports/tr11/).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from planwarden.server.cli.terminal.lines import Style

_WORD = re.compile(r"\s*\S+\s*")
_NO_CELLS = frozenset({"Mn", "Me", "Cf"})


class Span(NamedTuple):
    """A text in one style."""

    text: str
    style: Style


def count_cells(text: str) -> int:
    """Returns how many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_count_cells_of, text))


def _count_cells_of(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.category(letter) in _NO_CELLS:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut_to_cells(text: str, cells: int) -> str:
    """Returns the longest beginning of the text that takes no more cells."""
    if text.isascii():
        return text[:cells]
    taken = 0
    for index, letter in enumerate(text):
        taken += _count_cells_of(letter)
        if taken > cells:
            return text[:index]
    return text


def break_rows(spans: Sequence[Span], cells: int) -> Iterator[list[Span]]:
    """Yields the rows of the text, each of at most so many cells (at least two) and without spaces at its end."""
    text, start = "".join(span.text for span in spans), 0
    for line in text.split("\n"):
        for first, end in _find_rows(line, max(2, cells)):
            yield list(_cut_spans(spans, start + first, start + end))
        start += len(line) + 1


def _find_rows(line: str, cells: int) -> Iterator[tuple[int, int]]:
    """Yields where each row of a line begins and ends."""
    first = end = taken = 0
    for found in _WORD.finditer(line):
        word, at = found.group(), found.start()
        needed = count_cells(word.rstrip())
        if taken and taken + needed > cells:
            yield first, end
            first, taken = at, 0
        while needed > cells:
            piece = cut_to_cells(word, cells)
            if piece.rstrip():
                yield at, at + len(piece.rstrip())
            word, at = word[len(piece) :], at + len(piece)
            first, needed = at, count_cells(word.rstrip())
        taken += count_cells(word)
        end = at + len(word.rstrip())
    yield first, max(first, end)


def _cut_spans(spans: Iterable[Span], first: int, end: int) -> Iterator[Span]:
    """Yields what stands from `first` to `end` in the text of the spans."""
    at = 0
    for text, style in spans:
        part = text[max(0, first - at) : max(0, end - at)]
        if part:
            yield Span(part, style)
        at += len(text)
