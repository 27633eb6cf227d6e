"""Where a command writes: one JSON document for programs, or lines on a terminal for people."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping

from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.standard_output import print_json
from planwarden.server.cli.terminal.terminal import Terminal


def build_terminal(arguments: Namespace) -> Terminal:
    """Returns the terminal for people; with --json it writes to standard error, because the document goes to
    standard output.
    """
    return Terminal(sys.stderr if arguments.json else sys.stdout)


def write_result(arguments: Namespace, document: Mapping[str, JsonValue], draw: Callable[[Terminal], object]) -> None:
    """Write the document with --json; otherwise draw the same result for people."""
    if arguments.json:
        print_json(document)
    else:
        draw(build_terminal(arguments))
