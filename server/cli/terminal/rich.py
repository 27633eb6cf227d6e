"""The same lines on a real terminal: colours, a frame around questions, a list of steps that moves while it runs.

rich takes care of widths, of NO_COLOR and of old consoles (https://rich.readthedocs.io/). No text is ever read as
markup, and what came from outside was escaped before it got here.
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
from planwarden.server.cli.terminal.lines import Style, TerminalLine, heard_line, step_lines
from planwarden.server.cli.terminal.screen import ScreenUpdate, sign

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
    """Draws with rich; `shown` as in `Screen`."""

    def __init__(self, out: TextIO) -> None:
        self.shown: set[tuple[str, str]] = set()
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._is_unicode = "utf" in self._console.encoding.lower()

    def lines(self, lines: Sequence[TerminalLine]) -> None:
        for line in lines:
            self._console.print(self.drawn(line))

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style) -> None:
        body = Group(*(self.drawn(line) for line in lines))
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
            self.shown |= {(steps.execution.execution_id, name) for name in settled}

    def step(self, execution: ExecutionState, step_id: str) -> Group:
        return Group(*(self.drawn(line) for line in step_lines(execution, execution.steps[step_id])))

    def drawn(self, line: TerminalLine) -> Padding | Table | Text:
        text = Text()
        for part in line.parts:
            words, style = (part, "plain") if isinstance(part, str) else part
            text.append(words, style=_STYLES[style])
        if line.mark is None:
            return Padding(text, (0, 0, 0, 4 * line.indent)) if line.indent else text
        mark, style = sign(line.mark, is_unicode=self._is_unicode)
        if line.mark == "busy" and self._is_unicode:
            mark = _FRAMES[int(time.monotonic() / _FRAME_S) % len(_FRAMES)]
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=4 * line.indent + 1, justify="right")
        grid.add_column(overflow="fold")
        grid.add_row(Text(mark, style=f"bold {_STYLES[style]}"), text)
        return Padding(grid, (0, 0, 0, 1))


class _Steps:
    """Drawn anew with every frame."""

    def __init__(self, screen: RichScreen) -> None:
        self.execution: ExecutionState | None = None
        self._heard = ""
        self._screen = screen

    def update(self, execution: ExecutionState, heard: str = "") -> None:
        self.execution, self._heard = execution, heard

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        execution = self.execution
        if execution is None:
            return
        for step_id in execution.steps:
            if (execution.execution_id, step_id) not in self._screen.shown:
                yield self._screen.step(execution, step_id)
        if self._heard:
            yield self._screen.drawn(heard_line(self._heard))
