"""The screen of a real terminal: colours, text that is broken between words, and a frame around questions.

Colours are left out where `NO_COLOR` is set (https://no-color.org). Text from outside was escaped before.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TextIO

from planwarden.server.cli.terminal.lines import Style, TerminalLine
from planwarden.server.cli.terminal.screen import ScreenUpdate, mark_sign, write_in_set
from planwarden.server.cli.terminal.wrapping import Span, break_rows, count_cells, cut_to_cells

_COLOURS: dict[Style, str] = {"good": "32", "bad": "31", "warn": "33", "busy": "36"}
_WEIGHTS: dict[Style, str] = {"bold": "1", "dim": "2"}
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1
MAX_WIDTH = 110
"""Of a frame around a question."""
_USUAL_WIDTH = 80


class AnsiScreen:
    """Draws with the control sequences that every terminal of today knows."""

    def __init__(self, out: TextIO) -> None:
        self.settled: set[tuple[str, str]] = set()
        self.out = out
        self._is_unicode = "utf" in (out.encoding or "utf-8").lower()
        self._has_colours = not os.environ.get("NO_COLOR")

    def lines(self, lines: Sequence[TerminalLine]) -> None:
        self._write(f"{row}\n" for row in self.draw(lines, self._measure()))

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None:
        self._write(f"{row}\n" for row in self._draw_panel(title, lines, style, min(self._measure(), MAX_WIDTH)))

    def prompt(self, text: str) -> None:
        self._write([self._paint(self._write_in_set(text), "bold")])

    def live(self) -> AbstractContextManager[ScreenUpdate]:
        # Few commands run anything.
        from planwarden.server.cli.terminal.live import show_live

        return show_live(self)

    def draw(self, lines: Iterable[TerminalLine], width: int) -> Iterator[str]:
        """Yields the rows of the lines, with control sequences for their styles and for nothing else."""
        for line in lines:
            head, cells = self._draw_head(line)
            for number, row in enumerate(break_rows(self._list_spans(line), width - cells)):
                yield (head if number == 0 else " " * cells) + self._draw_row(row)

    def _draw_head(self, line: TerminalLine) -> tuple[str, int]:
        """Returns what stands before a line, and its cells."""
        if line.mark is None:
            return "    " * line.indent, 4 * line.indent
        mark, style = mark_sign(line.mark, is_unicode=self._is_unicode)
        if line.mark == "busy" and self._is_unicode:
            mark = _FRAMES[int(time.monotonic() / _FRAME_S) % len(_FRAMES)]
        return f" {'    ' * line.indent}{self._paint(mark, style, is_bold=True)} ", 4 * line.indent + 3

    def _draw_panel(self, title: str, lines: Sequence[TerminalLine], style: Style, width: int) -> Iterator[str]:
        top, bottom, side, line = ("╭╮", "╰╯", "│", "─") if self._is_unicode else ("++", "++", "|", "-")
        inner = max(8, width - 4)
        head = cut_to_cells(self._write_in_set(title), inner - 2)
        rest = line * (inner - 1 - count_cells(head))
        begin, end = self._paint(f"{top[0]}{line} ", style), self._paint(f" {rest}{top[1]}", style)
        yield begin + self._paint(head, style, is_bold=True) + end
        edge = self._paint(side, style)
        for part in lines:
            head, cells = self._draw_head(part)
            for number, row in enumerate(break_rows(self._list_spans(part), inner - cells)):
                left = " " * (inner - cells - sum(count_cells(span.text) for span in row))
                yield f"{edge} {head if number == 0 else ' ' * cells}{self._draw_row(row)}{left} {edge}"
        yield self._paint(f"{bottom[0]}{line * (inner + 2)}{bottom[1]}", style)

    def _list_spans(self, line: TerminalLine) -> list[Span]:
        spans = [Span(part, "plain") if isinstance(part, str) else Span(*part) for part in line.parts]
        return [Span(self._write_in_set(span.text), span.style) for span in spans]

    def _write_in_set(self, text: str) -> str:
        """Returns the text in the characters that the terminal has, and nothing hidden in it."""
        return write_in_set(text, is_unicode=self._is_unicode)

    def _draw_row(self, row: Iterable[Span]) -> str:
        return "".join(self._paint(span.text, span.style) for span in row)

    def _paint(self, text: str, style: Style, *, is_bold: bool = False) -> str:
        codes = ["1"] if is_bold else []
        codes += [_WEIGHTS[style]] if style in _WEIGHTS else []
        codes += [_COLOURS[style]] if style in _COLOURS and self._has_colours else []
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text

    def _write(self, texts: Iterable[str]) -> None:
        self.out.write("".join(texts))
        self.out.flush()

    def _measure(self) -> int:
        """Returns the width of the terminal in cells."""
        try:
            return int(os.environ.get("COLUMNS") or os.get_terminal_size(self.out.fileno()).columns) or _USUAL_WIDTH
        except (OSError, ValueError):
            return _USUAL_WIDTH
