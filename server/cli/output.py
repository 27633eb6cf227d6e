"""What a command prints on standard output and standard error, and its exit codes.

If a program reads standard output, only the protocol of `serve` or the one document of `--json` may go there. But
tools, their imports and the programs that they start may print, or write to descriptor 1. After `keep`, all such output
goes to standard error. `finish` restores `sys.stdout` only if it was not descriptor 1.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

from planwarden.agent.common.struct import JsonValue
from planwarden.server.views.escaping import ID, escape_rest, shorten_id
from planwarden.server.views.instants import format_instant, to_utc

DONE, FAILED, USAGE, WAITING, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = """\
exit codes:
  0    done
  1    the command, the execution or a step of a rehearsal failed, or the execution was rejected
  2    the command was used wrongly
  3    the execution waits for an answer
  130  interrupted; an execution that has started can continue
"""


_COMMANDS: Mapping[str, str] = {
    "get_tool_schemas": "tools NAME",
    "search_tools": "tools",
    "get_execution": "show THREAD",
    "list_suspensions": "list",
    "retry_execution": "retry THREAD",
    "cancel_execution": "cancel THREAD",
    "run_plan": "run NAME",
}
# A name in quotes does not match, because a user wrote it, for example as the id of a step.
_TOOL = re.compile(rf"(?<![\w'\"`])({'|'.join(_COMMANDS)})(?![\w'\"`])")
_QUOTED_ID = re.compile(f"(?<=')({ID.pattern})(?=')")


class StandardOutput:
    """The standard output of the process. `STANDARD_OUTPUT` is the only instance."""

    def __init__(self) -> None:
        self._printed: TextIO | None = None
        self._kept: TextIO | None = None

    @property
    def document(self) -> TextIO:
        """Where the protocol or the document goes: standard output as it was before `keep`."""
        return self._kept or sys.stdout

    def keep(self) -> None:
        """Send everything except `document` to standard error from now on."""
        if self._kept is not None:
            return
        printed = self._kept = self._printed = sys.stdout
        if _is_descriptor_one(printed):
            wire = os.dup(1)
            try:
                os.dup2(2, 1)
            except OSError:
                # Standard error is closed.
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, 1)
                os.close(nothing)
            # What packages printed when they were imported may still be in the buffer.
            printed.flush()
            self._kept = open(wire, "w", encoding=printed.encoding, errors=printed.errors)  # noqa: SIM115 (lives on)
        sys.stdout = sys.stderr

    def finish(self) -> None:
        """Flush the document. Raises `OSError`, such as `BrokenPipeError` if its reader is gone."""
        self.document.flush()
        if self._kept is not None and self._kept is self._printed:
            # The program that runs commands in its own process has replaced `sys.stdout`, so restore its object.
            sys.stdout, self._kept, self._printed = self._kept, None, None


def format_time(at: float | None, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str | None:
    """Return Unix seconds as a date and time; None for something that has not happened."""
    return None if at is None else format_instant(to_utc(at), timespec)


def print_json(document: Mapping[str, JsonValue]) -> None:
    """Print the document, with JSON escapes for characters that are invisible or move the cursor."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(escape_rest(text, lambda character: json.dumps(character)[1:-1]), file=STANDARD_OUTPUT.document)


def print_error(text: str) -> None:
    """Print a sentence for people to standard error, and escape the hidden characters in it."""
    print(f"planwarden: {escape_rest(text)}", file=sys.stderr)


def replace_tools_by_commands(text: str, program: str = "planwarden") -> str:
    """Return the text with MCP tools replaced by commands, which begin with `program`, and ids in quotes shortened."""
    result = _TOOL.sub(lambda match: f"`{program} {_COMMANDS[match[1]]}`", text)
    return _QUOTED_ID.sub(lambda match: shorten_id(match[1]), result)


def _is_descriptor_one(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):
        return False


STANDARD_OUTPUT = StandardOutput()
