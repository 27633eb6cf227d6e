"""What is drawn on a real terminal: rows that fit, colours, frames, and the list of steps while they run."""

import io
import re
import sys
import unicodedata
from collections.abc import Callable, Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.terminal.lines import Style, TerminalLine
from planwarden.server.cli.terminal.terminal import THEME, Terminal
from tests.requirements import requirement
from tests.server.cli.test_terminal_drawing import RecordedStream, ran
from tests.support.wardens import plan, tool_step

SEQUENCE = re.compile(r"\x1b\[\??[0-9;]*[a-zA-Z]")
LETTERS = st.text(st.sampled_from("ab -\n日本́👍[]/x"), max_size=60)
STYLES: list[Style] = ["plain", "bold", "good"]


def cells_of(letter: str) -> int:
    """Returns the cells of a letter as the standard tells them."""
    if unicodedata.combining(letter) or unicodedata.category(letter) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


class TerminalStream(RecordedStream):
    """What a terminal shows."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., tuple[Terminal, TerminalStream]]]:
    """Makes terminals of 24 columns."""
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make(encoding: str = "utf-8") -> tuple[Terminal, TerminalStream]:
        paper = TerminalStream(encoding)
        return Terminal(paper), paper

    yield make


def rows_of(line: TerminalLine, cells: int) -> list[Text]:
    """Returns the rows of the line on a terminal of so many columns."""
    console = Console(file=io.StringIO(), width=cells, force_terminal=True, theme=THEME)
    return [row for row in line.__rich_console__(console, console.options) if isinstance(row, Text)]


@requirement("display:invisible")
@given(st.lists(st.tuples(LETTERS, st.sampled_from(STYLES)), max_size=4), st.integers(2, 30))
def test_rows_fit_and_have_every_letter_in_its_style_and_order(spans: list[tuple[str, Style]], cells: int) -> None:
    rows = rows_of(TerminalLine(tuple(spans)), cells)
    shown: list[tuple[str, object]] = []
    for row in rows:
        assert cell_len(row.plain) == sum(map(cells_of, row.plain)) <= cells
        for place, letter in enumerate(row.plain):
            styles = [span.style for span in row.spans if span.start <= place < span.end]
            shown += [] if letter.isspace() else [(letter, styles[-1])]
    assert shown == [(letter, style) for text, style in spans for letter in text if not letter.isspace()]
    assert len(rows) >= sum(text.count("\n") for text, _ in spans) + 1


def test_what_follows_a_mark_hangs_below_its_text_and_a_frame_has_straight_sides(
    make: Callable[..., tuple[Terminal, TerminalStream]],
) -> None:
    terminal, paper = make()
    line = TerminalLine((("pay", "bold"), "  the invoice of 日本語 today"), "asks", 1)
    terminal.say(line, TerminalLine(("quiet",), indent=1))
    terminal.panel("Confirm? " + "x" * 40, [line], "warn")
    terminal.say_unbroken("Approve? [bold]" + "y" * 20)
    text = paper.getvalue()
    assert SEQUENCE.sub("", text).splitlines() == [
        "     ? pay  the invoice",
        "       of 日本語 today",
        "    quiet",
        "╭─ Confirm? xxxxxxxxx…─╮",
        "│      ? pay  the      │",
        "│        invoice of    │",
        "│        日本語 today  │",
        "╰──────────────────────╯",
        "Approve? [bold]yyyyyyyyyyyyyyyyyyyy",
    ]
    assert "\x1b[1;36m?" in text and "\x1b[1mpay" in text and "\x1b[33m│" in text


def test_a_terminal_without_unicode_gets_frames_and_signs_that_it_has(
    make: Callable[..., tuple[Terminal, TerminalStream]],
) -> None:
    terminal, paper = make("ascii")
    terminal.panel("Confirm", [TerminalLine(("a → b…",), "done")], "warn")
    assert SEQUENCE.sub("", paper.getvalue()).splitlines() == [
        "+- Confirm ------------+",
        "|  + a -> b...         |",
        "+----------------------+",
    ]


def show(terminal: Terminal, execution: ExecutionState) -> None:
    with terminal.live() as update:
        update(execution)
        print("a tool prints this")
        update(execution, "an answer")
        update(execution)


def test_the_last_state_of_a_run_stays_on_the_screen(
    make: Callable[..., tuple[Terminal, TerminalStream]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, paper = make()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    execution = ran(plan(tool_step("a", "find", {"topic": "t"})))
    show(terminal, execution)
    text = paper.getvalue()
    assert "a tool prints this" in text
    shown = '✓ a  use find find(topic="t", limit=3) → ids: [1, 2, 3], topic: "t"'
    assert SEQUENCE.sub("", text.rpartition("\x1b[2K")[2]).split() == shown.split(), "what changes is cleared first"
    show(terminal, execution)
    assert paper.getvalue().count("✓") == text.count("✓"), "what is settled is not drawn again"
