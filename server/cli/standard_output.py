"""Standard output, kept for what a program reads there: the protocol of `serve`, or the one document of `--json`.

Tools are the operator's code. They and what they import may print, write to descriptor 1, or start programs that do.
All of that goes to standard error from `keep` on, until the process has ended.
"""

import os
import sys
from contextlib import suppress
from typing import TextIO


class StandardOutput:
    """One for each process: `STANDARD_OUTPUT`."""

    def __init__(self) -> None:
        self._printed: TextIO | None = None
        self._kept: TextIO | None = None

    @property
    def document(self) -> TextIO:
        """Where the protocol or the document goes; what everybody prints to unless standard output is kept."""
        return self._kept or sys.stdout

    def keep(self) -> None:
        """From now on only `document` leads to standard output."""
        if self._kept is not None:
            return
        printed = self._kept = self._printed = sys.stdout
        if _has_descriptor(printed, 1):
            wire = os.dup(1)
            _divert(1)
            # What packages printed when they were imported may still be in the buffer.
            printed.flush()
            self._kept = open(wire, "w", encoding=printed.encoding, errors=printed.errors)  # noqa: SIM115 (lives on)
        sys.stdout = sys.stderr

    def finish(self) -> None:
        """Writes out what is in the buffer. Raises `BrokenPipeError` when nobody reads the document any more."""
        if self._kept is not None:
            self._kept.flush()
        if self._kept is not None and self._kept is self._printed:
            # It was captured by a program that runs commands in its own process.
            sys.stdout, self._kept, self._printed = self._kept, None, None


def _has_descriptor(stream: TextIO, number: int) -> bool:
    try:
        return stream.fileno() == number
    except (OSError, ValueError):
        return False


def _divert(number: int) -> None:
    """Point the descriptor to standard error, or to nothing where that is closed."""
    try:
        os.dup2(2, number)
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, number)
        with suppress(OSError):
            os.close(nothing)


STANDARD_OUTPUT = StandardOutput()
