"""The terminal of a person: lines, a frame, a live list of steps, and questions answered at the keyboard.

On a real terminal, rich (https://rich.readthedocs.io) draws colours, frames and rows that fit. A pipe, a log or a dumb
terminal gets plain lines, which appear as steps settle. Questions are asked only where somebody can both read and type.
Input that was typed before the question appeared is discarded with a remark, so that nobody agrees to a question
unseen.
"""

import os
import select
import sys
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import NamedTuple, TextIO, TypeVarTuple

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from rich.theme import Theme

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import STEP_TERMINAL, ExecutionState
from planwarden.server.cli.output import DONE, print_json
from planwarden.server.cli.terminal.lines import (
    Part,
    Style,
    TerminalLine,
    outage_lines,
    step_lines,
    streaming_line,
    write_in_set,
)
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.status_words import Mark

YES, NO = ("y", "yes"), ("n", "no")
DROPPED = "Whatever was typed before this question could be read was dropped."
THEME = Theme({"good": "green", "bad": "red", "warn": "yellow", "busy": "cyan", "plain": "none"})
MAX_WIDTH = 110
"""The widest frame, in columns."""
FRAMES_A_SECOND = 10


Parts = TypeVarTuple("Parts")
ScreenUpdate = Callable[[ExecutionState, str], None]
"""A function that shows an execution and, while a model is still writing an answer, the end of that answer."""


class _OpenConsole(Console):
    """A console that falls silent when its reader is gone, so that the command can continue."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Choice(NamedTuple):
    """What a person can choose at a question."""

    keys: tuple[str, ...]
    """The words that the person can type for this choice."""
    label: str
    act: Callable[[], Decision | None]
    """A function that acts on the choice, and returns the decision, or None to ask the question again."""


class Terminal:
    """The terminal of a person, who reads `out` and types on `keyboard`."""

    def __init__(self, out: TextIO | None = None, keyboard: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.keyboard = keyboard or sys.stdin
        self.settled: set[tuple[str, str]] = set()
        """Execution id and step id of the steps that were drawn in their final form; they are not drawn again."""
        self._waiting: set[tuple[str, str, int]] = set()

    @property
    def can_ask(self) -> bool:
        """Whether somebody can read a question here and type an answer."""
        return _is_terminal(self.out) and _is_terminal(self.keyboard)

    @cached_property
    def console(self) -> Console:
        """The console on which everything is drawn. It treats no text as markup."""
        is_drawn = _is_terminal(self.out) and os.environ.get("TERM") not in ("dumb", "unknown")
        return _OpenConsole(
            file=self.out,
            force_terminal=is_drawn,
            soft_wrap=not is_drawn,
            theme=THEME,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def say(self, *lines: TerminalLine | str) -> None:
        if lines:
            self.console.print(*map(_build_line, lines))

    def line(self, *parts: Part, mark: Mark | None = None, indent: int = 0) -> None:
        """Write one line."""
        self.say(TerminalLine(*parts, mark=mark, indent=indent))

    def warn(self, text: str) -> None:
        """Write planwarden's remark about what the person typed."""
        self.line((escape_text(text), "warn"))

    def say_unbroken(self, text: str, end: str = "\n") -> None:
        """Write a text without breaking its lines: a prompt, or what a person copies, such as a command."""
        self.console.print(Text(self._write(text), "bold"), end=end, soft_wrap=True)

    def panel(self, title: str, lines: Sequence[TerminalLine | str], style: Style = "plain") -> None:
        """Draw the lines in a frame."""
        if not self.console.is_terminal:
            self.say(f"== {title} ==", *lines)
            return
        head = Text(self._write(title), "bold", overflow="ellipsis")
        width = min(self.console.width, MAX_WIDTH)
        self.console.print(
            Panel(Group(*map(_build_line, lines)), title=head, title_align="left", border_style=style, width=width)
        )

    @contextmanager
    def live(self) -> Generator[ScreenUpdate]:
        """Yield a function that draws an execution; the last drawing stays on the screen."""
        if not self.console.is_terminal:
            yield self._print_changes
            return
        latest: ExecutionState | None = None

        def update(execution: ExecutionState, streamed_text: str) -> None:
            nonlocal latest
            latest = execution
            steps = execution.steps.items()
            unsettled = [state for name, state in steps if (execution.execution_id, name) not in self.settled]
            lines = [line for state in unsettled for line in step_lines(execution, state)]
            lines += outage_lines(execution, execution.outage)
            live.update(Group(*lines, *([streaming_line(streamed_text)] if streamed_text else [])))

        with Live(Group(), console=self.console, refresh_per_second=FRAMES_A_SECOND) as live:
            yield update
        if latest is not None:
            settled = (name for name, state in latest.steps.items() if state.status in STEP_TERMINAL)
            self.settled |= {(latest.execution_id, name) for name in settled}

    def ask(self, prompt: str) -> str | None:
        """Discard earlier input, and return what is typed after the prompt, stripped; None at the end of input."""
        if self._discard_typed_input():
            self.line((DROPPED, "warn"), mark="note")
        self.say_unbroken(prompt, end="")
        try:
            typed = self.keyboard.readline()
        except UnicodeDecodeError:
            return ""
        if not typed:
            self.say("")
            return None
        return typed.strip()

    def check_can_ask(self, why: str) -> None:
        """Raise `UsageError`, with this message, if nobody can be asked here."""
        if not self.can_ask:
            raise UsageError(why)

    def confirm(self, question: str, otherwise: str = "", *, says_yes: bool = False) -> bool:
        """Return whether the person agrees; if not, say `otherwise`. With `says_yes` (the option --yes), do not ask.

        Raises:
            UsageError: nobody can be asked here, and --yes was not given.
        """
        if says_yes:
            return True
        self.check_can_ask("nothing was changed, because nobody can be asked here; run it in a terminal, or with --yes")
        if (self.ask(f"{question} [y yes · Enter no] ") or "").lower() in YES:
            return True
        if otherwise:
            self.say(otherwise)
        return False

    def choose(self, question: str, list_choices: Callable[[], Sequence[Choice]]) -> Decision | None:
        """Return the decision that the person chose; None when they typed nothing and the question stays open."""
        while True:
            choices = list_choices()
            labels = " · ".join(choice.label for choice in choices)
            key = (self.ask(f"{question} [{labels} · Enter leaves it open] ") or "").lower()
            if key == "":
                return None
            act = next((choice.act for choice in choices if key in choice.keys), None)
            if act is None:
                self.warn("Type one of the letters, or Enter to leave the question open.")
            elif (decision := act()) is not None:
                return decision

    def _write(self, text: str) -> str:
        return write_in_set(text, is_ascii=self.console.options.ascii_only)

    def _print_changes(self, execution: ExecutionState, _: str) -> None:
        """Print each settled step once, and a waiting one once per new question: printed lines cannot be redrawn."""
        execution_id, questions = execution.execution_id, len(execution.suspensions)
        for step_id, state in execution.steps.items():
            if (execution_id, step_id) in self.settled:
                continue
            if state.status in STEP_TERMINAL:
                self.settled.add((execution_id, step_id))
                self.say(*step_lines(execution, state))
            elif state.status == "suspended":
                self._say_once((execution_id, step_id, questions), step_lines(execution, state))
        self._say_once((execution_id, "", questions), outage_lines(execution, execution.outage))

    def _say_once(self, key: tuple[str, str, int], lines: Sequence[TerminalLine]) -> None:
        if lines and key not in self._waiting:
            self._waiting.add(key)
            self.say(*lines)

    def _discard_typed_input(self) -> bool:
        with suppress(ImportError, OSError, ValueError):
            if sys.platform == "win32":
                import msvcrt

                is_typed = msvcrt.kbhit()
                while msvcrt.kbhit():
                    msvcrt.getwch()
                return is_typed
            return _flush(self.keyboard.fileno())
        return False


def _build_line(line: TerminalLine | str) -> TerminalLine:
    return TerminalLine(line) if isinstance(line, str) else line


def _flush(descriptor: int) -> bool:
    """Discard what was typed at the terminal; return whether anything was."""
    import termios

    before = termios.tcgetattr(descriptor)
    by_key = [*before[:3], before[3] & ~termios.ICANON, *before[4:]]
    # `select` sees an unfinished line only while the terminal passes each key on immediately.
    termios.tcsetattr(descriptor, termios.TCSANOW, by_key)
    try:
        is_typed = bool(select.select([descriptor], [], [], 0)[0])
        termios.tcflush(descriptor, termios.TCIFLUSH)
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
    return is_typed


def _is_terminal(stream: TextIO) -> bool:
    # A closed standard stream is None, or raises an error.
    with suppress(ValueError, AttributeError):
        return stream.isatty()
    return False


def build_terminal(arguments: Namespace) -> Terminal:
    """Return the terminal for people; with --json, standard error, because the document goes to standard output."""
    return Terminal(sys.stderr if arguments.json else sys.stdout)


def write_result(
    arguments: Namespace, document: Mapping[str, JsonValue], draw: Callable[[Terminal, *Parts], object], *parts: *Parts
) -> int:
    """Write the document with --json, otherwise call `draw` to show people the parts; return the exit code DONE."""
    if arguments.json:
        print_json(document)
    else:
        draw(build_terminal(arguments), *parts)
    return DONE
