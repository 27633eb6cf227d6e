"""What a command prints for programs and for people, its exit codes, and the question before a change.

Standard output is kept for what a program reads there: the protocol of `serve`, or the one document of `--json`. Tools
are the operator's code. They and what they import may print, write to descriptor 1, or start programs that do. All of
that goes to standard error from `keep` on, until the process has ended.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, TextIO

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.cli.terminal.terminal import YES, Terminal
from planwarden.server.views.escaping import escape_rest
from planwarden.server.views.instants import format_instant, to_utc

DONE, FAILED, USAGE, WAITING, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = """\
exit codes:
  0    done
  1    the command failed, or the execution (also a step of a rehearsal) failed or was rejected
  2    the command was used wrongly
  3    the execution waits for an answer
  130  interrupted; an execution that has started can continue
"""


def exit_code(execution: ExecutionState) -> int:
    """Return the exit code of a command that ran this execution."""
    if execution.status in ("completed", "planned"):
        return DONE
    if execution.status == "rehearsed":
        return FAILED if any(state.status == "failed" for state in execution.steps.values()) else DONE
    return WAITING if execution.status in ("running", "suspended") else FAILED


def build_terminal(arguments: Namespace) -> Terminal:
    """Return the terminal for people; with --json it writes to standard error, because the document goes to standard
    output."""
    return Terminal(sys.stderr if arguments.json else sys.stdout)


def write_result(arguments: Namespace, document: Mapping[str, JsonValue], draw: Callable[[Terminal], object]) -> None:
    """Write the document with --json; otherwise draw the same result for people."""
    if arguments.json:
        print_json(document)
    else:
        draw(build_terminal(arguments))


def confirm(terminal: Terminal, question: str, *, says_yes: bool) -> bool:
    """Return whether the person agrees; `says_yes` is the option --yes, which agrees beforehand.

    Raises:
        UsageError: nobody can be asked here, and --yes was not given.
    """
    if says_yes:
        return True
    if not terminal.can_ask:
        raise UsageError("nothing was changed, because nobody can be asked here; run it in a terminal, or with --yes")
    return (terminal.ask(f"{question} [y yes · Enter no] ") or "").lower() in YES


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
        """Write out what is in the buffer. Raises `BrokenPipeError` when nobody reads the document any more."""
        if self._kept is not None:
            self._kept.flush()
        if self._kept is not None and self._kept is self._printed:
            # It was captured by a program that runs commands in its own process.
            sys.stdout, self._kept, self._printed = self._kept, None, None


def format_time(at: float | None, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str | None:
    """Return Unix seconds as people and programs read them; None for something that has not happened."""
    return None if at is None else format_instant(to_utc(at), timespec)


def print_json(document: Mapping[str, JsonValue]) -> None:
    """Print the document; what nobody would see in it, or moves a cursor, is a JSON escape."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(escape_rest(text, lambda character: json.dumps(character)[1:-1]), file=STANDARD_OUTPUT.document)


def print_error(text: str) -> None:
    """Print a sentence of planwarden for people, in which others may be quoted."""
    print(f"planwarden: {escape_rest(text)}", file=sys.stderr)


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
