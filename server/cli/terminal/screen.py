"""How lines reach a stream: the port that a terminal draws through, and the drawing for pipes, logs and dumb terminals."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from planwarden.agent.core.state import STEP_TERMINAL, ExecutionState
from planwarden.server.cli.terminal.lines import STYLES, Mark, Style, TerminalLine, step_lines


class ScreenUpdate(Protocol):
    def __call__(self, execution: ExecutionState, heard: str = "") -> None:
        """Show the execution; `heard` is the end of the answer that a model is writing."""
        ...


MARKS: dict[Mark, tuple[str, str]] = {
    "done": ("✓", "+"),
    "busy": ("▸", ">"),
    "asks": ("?", "?"),
    "waits": ("·", "."),
    "failed": ("✗", "x"),
    "rejected": ("⊘", "x"),
    "skipped": ("–", "-"),
    "note": ("!", "!"),
}
"""For terminals that can show it, and for the others."""
_ASCII = str.maketrans({"→": "->", "…": "...", "·": "|", "–": "-"})


class Screen(Protocol):
    """Draws lines. `shown` keeps the steps that were drawn in their final form, so that none is drawn twice."""

    shown: set[tuple[str, str]]

    def lines(self, lines: Sequence[TerminalLine]) -> None: ...

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None: ...

    def prompt(self, text: str) -> None:
        """Without an end of line."""
        ...

    def live(self) -> AbstractContextManager[ScreenUpdate]:
        """While open, every update shows the execution as it is then."""
        ...


class PlainScreen:
    """Lines that stay where they are: a step is printed when it has settled or waits."""

    def __init__(self, out: TextIO) -> None:
        self.shown: set[tuple[str, str]] = set()
        self._out = out
        self._is_unicode = "utf" in (out.encoding or "utf-8").lower()
        self._waiting: set[tuple[str, str, int]] = set()

    def lines(self, lines: Sequence[TerminalLine]) -> None:
        for line in lines:
            sign = "" if line.mark is None else MARKS[line.mark][0 if self._is_unicode else 1] + " "
            text = line.text if self._is_unicode else line.text.translate(_ASCII)
            self._out.write(f"{'    ' * line.indent}{sign}{text}".rstrip() + "\n")
        self._out.flush()

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None:
        self.lines([TerminalLine((f"== {title} ==",)), *lines])

    def prompt(self, text: str) -> None:
        self._out.write(text if self._is_unicode else text.translate(_ASCII))
        self._out.flush()

    @contextmanager
    def live(self) -> Generator[ScreenUpdate]:
        yield self._update

    def _update(self, execution: ExecutionState, heard: str = "") -> None:
        # What is being written would be lines that may not be true in the end, and here they could not be taken back.
        for step_id, state in execution.steps.items():
            if (execution.execution_id, step_id) in self.shown:
                continue
            if state.status in STEP_TERMINAL:
                self.shown.add((execution.execution_id, step_id))
                self.lines(step_lines(execution, state))
            elif state.status == "suspended":
                asked = (execution.execution_id, step_id, len(execution.suspensions))
                if asked not in self._waiting:
                    self._waiting.add(asked)
                    self.lines(step_lines(execution, state))


def sign(mark: Mark, *, is_unicode: bool = True) -> tuple[str, Style]:
    return MARKS[mark][0 if is_unicode else 1], STYLES[mark]
