"""The list of steps of an execution while it runs, drawn again in its place as it changes.

rich draws what changes (https://rich.readthedocs.io): it clears what it drew before, keeps to the height of the
terminal, and puts above it what tools print meanwhile. Its import takes a tenth of a second, so a run of less than
`QUIET_S` is only shown at its end.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from typing import TYPE_CHECKING, Protocol, TextIO

from planwarden.agent.core.state import STEP_TERMINAL, ExecutionState
from planwarden.server.cli.terminal.lines import TerminalLine, execution_lines, step_lines, streaming_line
from planwarden.server.cli.terminal.screen import Screen, ScreenUpdate

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.live import Live
    from rich.text import Text

QUIET_S = 0.3
FRAME_S = 0.1


class DrawingScreen(Screen, Protocol):
    """A screen that says how it would draw."""

    out: TextIO

    def draw(self, lines: Iterable[TerminalLine], width: int) -> Iterator[str]:
        """Yields rows of so many cells, with control sequences for their styles and for nothing else."""
        ...


@contextmanager
def show_live(screen: DrawingScreen) -> Generator[ScreenUpdate]:
    """Shows an execution while the block runs; what is shown at its end stays."""
    steps = _Steps(screen)
    # Not as a daemon: a program that ends while a thread imports waits for neither.
    start = Timer(QUIET_S, steps.start)
    start.start()
    try:
        yield steps.update
    finally:
        start.cancel()
        start.join()
        steps.stop()


class _Steps:
    """The steps that are not settled, and what the execution waits for."""

    def __init__(self, screen: DrawingScreen) -> None:
        self._screen = screen
        self._execution: ExecutionState | None = None
        self._streamed_text = ""
        self._live: Live | None = None
        self._lock = Lock()
        """While it is held, nobody changes what is drawn."""

    def update(self, execution: ExecutionState, streamed_text: str = "") -> None:
        with self._lock:
            self._execution, self._streamed_text = execution, streamed_text

    def start(self) -> None:
        """Draws from now on."""
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._screen.out, highlight=False, markup=False, emoji=False)
        self._live = Live(self, console=console, refresh_per_second=1 / FRAME_S)
        self._live.start(refresh=True)

    def stop(self) -> None:
        """Draws for the last time."""
        if self._live is not None:
            self._live.stop()
        else:
            self._screen.lines([*self._list_lines()])
        if self._execution is not None:
            settled = (name for name, state in self._execution.steps.items() if state.status in STEP_TERMINAL)
            self._screen.settled |= {(self._execution.execution_id, name) for name in settled}

    def _list_lines(self) -> Iterator[TerminalLine]:
        with self._lock:
            execution, streamed_text = self._execution, self._streamed_text
        if execution is None:
            return
        for step_id, state in execution.steps.items():
            if (execution.execution_id, step_id) not in self._screen.settled:
                yield from step_lines(execution, state)
        yield from execution_lines(execution)
        if streamed_text:
            yield streaming_line(streamed_text)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        for row in self._screen.draw(self._list_lines(), options.max_width):
            yield Text.from_ansi(row, no_wrap=True, overflow="crop")
