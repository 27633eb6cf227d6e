"""The result of a command for people and for programs, and the question before a change."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.cli.output import DONE, FAILED, WAITING, print_json
from planwarden.server.cli.terminal.terminal import YES, Terminal


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
