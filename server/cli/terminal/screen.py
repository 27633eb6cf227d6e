"""How lines reach a stream: the port that a terminal draws through, and the screen for pipes and dumb terminals."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from planwarden.agent.core.state import STEP_TERMINAL, ExecutionState
from planwarden.server.cli.terminal.lines import STYLES, Mark, Style, TerminalLine, execution_lines, step_lines
from planwarden.server.views.facts import escape_rest


class ScreenUpdate(Protocol):
    def __call__(self, execution: ExecutionState, streamed_text: str = "") -> None:
        """Shows the execution; `streamed_text` is the end of the answer that a model is still writing."""
        ...


MARKS: dict[Mark, tuple[str, str]] = {
    "done": ("✓", "+"),
    "partly": ("◐", "%"),
    "busy": ("▸", ">"),
    "asks": ("?", "?"),
    "waits": ("·", "."),
    "failed": ("✗", "x"),
    "rejected": ("⊘", "x"),
    "skipped": ("–", "-"),
    "rehearsed": ("≈", "~"),
    "note": ("!", "!"),
}
"""Each mark for terminals with Unicode, and for the others."""
_ASCII = str.maketrans({"→": "->", "…": "...", "·": "|", "–": "-"})


class Screen(Protocol):
    """Draws lines."""

    settled: set[tuple[str, str]]
    """Execution id and step id of the steps that were drawn in their final form; they are not drawn again."""

    def lines(self, lines: Sequence[TerminalLine]) -> None: ...

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None: ...

    def prompt(self, text: str) -> None:
        """Writes the text without ending the line."""
        ...

    def live(self) -> AbstractContextManager[ScreenUpdate]:
        """While it is open, every update shows the execution as it is then."""
        ...


class PlainScreen:
    """Prints lines that stay: a step is printed when it settles or waits."""

    def __init__(self, out: TextIO) -> None:
        self.settled: set[tuple[str, str]] = set()
        self._out = out
        self._is_unicode = "utf" in (out.encoding or "utf-8").lower()
        self._waiting: set[tuple[str, str, int]] = set()

    def lines(self, lines: Sequence[TerminalLine]) -> None:
        for line in lines:
            sign = "" if line.mark is None else mark_sign(line.mark, is_unicode=self._is_unicode)[0] + " "
            text = write_in_set(line.text, is_unicode=self._is_unicode)
            self._out.write(f"{'    ' * line.indent}{sign}{text}".rstrip() + "\n")
        self._out.flush()

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None:
        self.lines([TerminalLine((f"== {title} ==",)), *lines])

    def prompt(self, text: str) -> None:
        self._out.write(write_in_set(text, is_unicode=self._is_unicode))
        self._out.flush()

    @contextmanager
    def live(self) -> Generator[ScreenUpdate]:
        yield self._update

    def _update(self, execution: ExecutionState, streamed_text: str = "") -> None:
        # The streamed text may still change, and printed lines cannot be taken back.
        for step_id, state in execution.steps.items():
            if (execution.execution_id, step_id) in self.settled:
                continue
            if state.status in STEP_TERMINAL:
                self.settled.add((execution.execution_id, step_id))
                self.lines(step_lines(execution, state))
            elif state.status == "suspended":
                key = (execution.execution_id, step_id, len(execution.suspensions))
                if key not in self._waiting:
                    self._waiting.add(key)
                    self.lines(step_lines(execution, state))
        key = (execution.execution_id, "", len(execution.suspensions))
        if key not in self._waiting and (waits := execution_lines(execution)):
            self._waiting.add(key)
            self.lines(waits)


def write_in_set(text: str, *, is_unicode: bool) -> str:
    """Return the text as it leaves: nothing hidden in it, and on a screen without our signs what stands for them."""
    shown = escape_rest(text)
    return shown if is_unicode else shown.translate(_ASCII)


def mark_sign(mark: Mark, *, is_unicode: bool = True) -> tuple[str, Style]:
    """Returns the sign that stands for the mark, and its style."""
    return MARKS[mark][0 if is_unicode else 1], STYLES[mark]
