"""Where a command writes: one JSON document for programs, or lines on a terminal for people."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping

from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.standard_output import STANDARD_OUTPUT
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.views.facts import escape_rest


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


def print_json(document: Mapping[str, JsonValue]) -> None:
    """Print the document; what nobody would see in it, or moves a cursor, is a JSON escape."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(escape_rest(text, lambda character: json.dumps(character)[1:-1]), file=STANDARD_OUTPUT.document)


def print_error(text: str) -> None:
    """Print a sentence of planwarden for people, in which others may be quoted."""
    print(f"planwarden: {escape_rest(text)}", file=sys.stderr)
