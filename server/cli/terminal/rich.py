"""The screen of a real terminal: colours, a frame around questions, and a list of steps that changes while they run.

rich handles widths, NO_COLOR and old consoles (https://rich.readthedocs.io/). No text is read as markup, and text from
outside was escaped before.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.box import ASCII, ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from planwarden.agent.core.state import STEP_TERMINAL, ExecutionState
from planwarden.server.cli.terminal.lines import Style, TerminalLine, execution_lines, step_lines, streaming_line
from planwarden.server.cli.terminal.screen import ScreenUpdate, mark_sign

_STYLES: dict[Style, str] = {
    "plain": "",
    "bold": "bold",
    "dim": "dim",
    "good": "green",
    "bad": "red",
    "warn": "yellow",
    "busy": "cyan",
}
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1
MAX_WIDTH = 110


class RichScreen:
    """Draws with rich."""

    def __init__(self, out: TextIO) -> None:
        self.settled: set[tuple[str, str]] = set()
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._is_unicode = "utf" in self._console.encoding.lower()

    def lines(self, lines: Sequence[TerminalLine]) -> None:
        for line in lines:
            self._console.print(self.render_line(line))

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None:
        body = Group(*(self.render_line(line) for line in lines))
        box = ROUNDED if self._is_unicode else ASCII
        width = min(self._console.width, MAX_WIDTH)
        head = Text(title, style=f"bold {_STYLES[style]}")
        self._console.print(
            Panel(body, title=head, title_align="left", border_style=_STYLES[style], box=box, width=width)
        )

    def prompt(self, text: str) -> None:
        self._console.print(Text(text, style="bold"), end="", soft_wrap=True)

    @contextmanager
    def live(self) -> Generator[ScreenUpdate]:
        steps = _Steps(self)
        with Live(steps, console=self._console, refresh_per_second=1 / _FRAME_S):
            yield steps.update
        if steps.execution is not None:
            settled = (name for name, state in steps.execution.steps.items() if state.status in STEP_TERMINAL)
            self.settled |= {(steps.execution.execution_id, name) for name in settled}

    def render_step(self, execution: ExecutionState, step_id: str) -> Group:
        return Group(*(self.render_line(line) for line in step_lines(execution, execution.steps[step_id])))

    def render_line(self, line: TerminalLine) -> Padding | Table | Text:
        text = Text()
        for part in line.parts:
            content, style = (part, "plain") if isinstance(part, str) else part
            text.append(content, style=_STYLES[style])
        if line.mark is None:
            return Padding(text, (0, 0, 0, 4 * line.indent)) if line.indent else text
        mark, style = mark_sign(line.mark, is_unicode=self._is_unicode)
        if line.mark == "busy" and self._is_unicode:
            mark = _FRAMES[int(time.monotonic() / _FRAME_S) % len(_FRAMES)]
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=4 * line.indent + 1, justify="right")
        grid.add_column(overflow="fold")
        grid.add_row(Text(mark, style=f"bold {_STYLES[style]}"), text)
        return Padding(grid, (0, 0, 0, 1))


class _Steps:
    """The list of steps, which rich draws again for every frame."""

    def __init__(self, screen: RichScreen) -> None:
        self.execution: ExecutionState | None = None
        self._streamed_text = ""
        self._screen = screen

    def update(self, execution: ExecutionState, streamed_text: str = "") -> None:
        self.execution, self._streamed_text = execution, streamed_text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        execution = self.execution
        if execution is None:
            return
        for step_id in execution.steps:
            if (execution.execution_id, step_id) not in self._screen.settled:
                yield self._screen.render_step(execution, step_id)
        for line in execution_lines(execution):
            yield self._screen.render_line(line)
        if self._streamed_text:
            yield self._screen.render_line(streaming_line(self._streamed_text))
