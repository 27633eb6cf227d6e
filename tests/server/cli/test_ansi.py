"""The screen of a real terminal: rows that fit, colours, frames, and the list of steps while they run."""

import io
import re
import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planwarden.agent.core.state import ExecutionState
from planwarden.server.cli.terminal import live
from planwarden.server.cli.terminal.ansi import AnsiScreen
from planwarden.server.cli.terminal.lines import Style, TerminalLine
from planwarden.server.cli.terminal.wrapping import Span, break_rows, count_cells
from tests.server.cli.test_terminal_drawing import RecordedStream, ran
from tests.support.wardens import plan, tool_step

SEQUENCE = re.compile(r"\x1b\[\??[0-9;]*[a-z]")
LETTERS = st.text(st.sampled_from("ab -\n日本́👍\u2066x"), max_size=60)
STYLES: list[Style] = ["plain", "bold", "good"]


def cells_of(letter: str) -> int:
    """Returns the cells of a letter as the standard tells them."""
    if unicodedata.combining(letter) or unicodedata.category(letter) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[AnsiScreen, RecordedStream]]:
    """Makes screens of 24 columns."""
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make(encoding: str = "utf-8") -> tuple[AnsiScreen, RecordedStream]:
        paper = RecordedStream(encoding)
        return AnsiScreen(paper), paper

    return make


@given(st.lists(st.tuples(LETTERS, st.sampled_from(STYLES)), max_size=4), st.integers(2, 30))
def test_rows_fit_and_have_every_letter_in_its_style_and_order(spans: list[tuple[str, Style]], cells: int) -> None:
    written = [Span(text, style) for text, style in spans]
    rows = [*break_rows(written, cells)]
    for row in rows:
        text = "".join(span.text for span in row)
        assert count_cells(text) == sum(map(cells_of, text)) <= cells
        assert text == text.rstrip()
    shown = [(letter, span.style) for row in rows for span in row for letter in span.text if not letter.isspace()]
    assert shown == [(letter, span.style) for span in written for letter in span.text if not letter.isspace()]
    assert len(rows) >= sum(span.text.count("\n") for span in written) + 1


def test_what_follows_a_mark_hangs_below_its_text_and_a_frame_has_straight_sides(
    screen: Callable[..., tuple[AnsiScreen, RecordedStream]],
) -> None:
    drawn, paper = screen()
    line = TerminalLine((("pay", "bold"), "  the invoice of 日本語 today"), "asks", 1)
    drawn.lines([line, TerminalLine(("quiet",), indent=1)])
    drawn.panel("Confirm? " + "x" * 40, [line], "warn")
    drawn.prompt("Approve? ")
    text = paper.getvalue()
    assert SEQUENCE.sub("", text).splitlines() == [
        "     ? pay  the invoice",
        "       of 日本語 today",
        "    quiet",
        "╭─ Confirm? xxxxxxxxx ─╮",
        "│      ? pay  the      │",
        "│        invoice of    │",
        "│        日本語 today  │",
        "╰──────────────────────╯",
        "Approve? ",
    ]
    assert "\x1b[1;33m?\x1b[0m" in text and "\x1b[1mpay\x1b[0m" in text and "\x1b[33m│\x1b[0m" in text


class NoTimer:
    """Never begins."""

    def __init__(self, seconds: float, begin: Callable[[], None]) -> None:
        self.begin = begin

    def start(self) -> None: ...

    def cancel(self) -> None: ...

    def join(self) -> None: ...


class EarlyTimer(NoTimer):
    """Begins at once."""

    def start(self) -> None:
        self.begin()


def show(drawn: AnsiScreen, execution: ExecutionState) -> None:
    with drawn.live() as update:
        update(execution)
        print("a tool prints this")
        update(execution, "an answer")
        update(execution)


@pytest.mark.parametrize("timer", [NoTimer, EarlyTimer])
def test_the_last_state_of_a_run_stays_on_the_screen_however_long_it_took(
    screen: Callable[..., tuple[AnsiScreen, RecordedStream]],
    monkeypatch: pytest.MonkeyPatch,
    timer: type[NoTimer],
) -> None:
    monkeypatch.setattr(live, "Timer", timer)
    # So that rich takes the paper for a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn, paper = screen()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    execution = ran(plan(tool_step("a", "find", {"topic": "t"})))
    show(drawn, execution)
    text = paper.getvalue()
    end = text.rpartition("\x1b[2K")[2] if timer is EarlyTimer else text
    shown = '✓ a  use find find(topic="t", limit=3) → ids: [1, 2, 3], topic: "t"'
    assert SEQUENCE.sub("", end).split() == shown.split()
    assert ("\x1b[2K" in text) is (timer is EarlyTimer), "what changes is cleared first"
    show(drawn, execution)
    assert paper.getvalue().count("✓") == text.count("✓"), "what is settled is not drawn again"
