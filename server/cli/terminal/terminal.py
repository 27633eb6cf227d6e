"""The terminal of a person: lines, a frame, a live list of steps, and questions typed at the keyboard.

`Terminal` decides once how to draw: with colours and frames on a real terminal; in a pipe, a log or a dumb terminal as
plain lines, which appear as steps settle. Questions are asked only where somebody can both read and type. Input that
was typed before the question appeared is discarded, and said to be, so that nobody agrees to what they have not seen.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TextIO

from planwarden.server.cli.terminal.lines import Style, TerminalLine
from planwarden.server.cli.terminal.screen import PlainScreen, Screen, ScreenUpdate

DROPPED = "What was typed before this question could be read was dropped."


class Terminal:
    """A person who reads `out` and types on `keyboard`."""

    def __init__(self, out: TextIO | None = None, keyboard: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.keyboard = keyboard or sys.stdin
        self._screen: Screen | None = None

    @property
    def can_ask(self) -> bool:
        """Whether somebody can read a question here and type an answer."""
        return _is_terminal(self.out) and _is_terminal(self.keyboard)

    @property
    def screen(self) -> Screen:
        if self._screen is None:
            if _is_terminal(self.out) and _knows_control_sequences():
                # Piped output does not need it.
                from planwarden.server.cli.terminal.ansi import AnsiScreen

                self._screen = AnsiScreen(self.out)
            else:
                self._screen = PlainScreen(self.out)
        return self._screen

    def say(self, *lines: TerminalLine | str) -> None:
        self.screen.lines([TerminalLine((line,)) if isinstance(line, str) else line for line in lines])

    def panel(self, title: str, lines: Sequence[TerminalLine], style: Style = "plain") -> None:
        self.screen.panel(title, lines, style)

    def live(self) -> AbstractContextManager[ScreenUpdate]:
        return self.screen.live()

    def ask(self, prompt: str) -> str | None:
        """Returns what was typed after the prompt, without surrounding spaces; None at the end of input."""
        if self._discard_typed_input():
            self.say(TerminalLine(((DROPPED, "warn"),), "note"))
        self.screen.prompt(prompt)
        try:
            typed = self.keyboard.readline()
        except UnicodeDecodeError:
            return ""
        if not typed:
            self.out.write("\n")
            return None
        return typed.strip()

    def _discard_typed_input(self) -> bool:
        """Return whether anything had been typed."""
        with suppress(ImportError, OSError, ValueError):
            if sys.platform == "win32":
                import msvcrt

                is_typed = msvcrt.kbhit()
                while msvcrt.kbhit():
                    msvcrt.getwch()
                return is_typed
            return _flush(self.keyboard.fileno())
        return False


def _flush(descriptor: int) -> bool:
    """Discard what was typed at the terminal; return whether anything was."""
    import select
    import termios

    before = termios.tcgetattr(descriptor)
    by_key = [*before[:3], before[3] & ~termios.ICANON, *before[4:]]
    # A line that was not finished is only seen while the terminal gives each key at once.
    termios.tcsetattr(descriptor, termios.TCSANOW, by_key)
    try:
        is_typed = bool(select.select([descriptor], [], [], 0)[0])
        termios.tcflush(descriptor, termios.TCIFLUSH)
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
    return is_typed


def _is_terminal(stream: TextIO) -> bool:
    # A closed standard stream is None, or it raises.
    with suppress(ValueError, AttributeError):
        return stream.isatty()
    return False


def _knows_control_sequences() -> bool:
    if os.environ.get("TERM") in ("dumb", "unknown"):
        return False
    if sys.platform != "win32":
        return True
    import ctypes

    # https://learn.microsoft.com/windows/console/setconsolemode: output that is processed, with control sequences.
    console = ctypes.windll.kernel32
    return bool(console.SetConsoleMode(console.GetStdHandle(-11), 7))
