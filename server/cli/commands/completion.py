"""The command `completion`: prints a script for a shell."""

from argparse import Namespace

from planwarden.server.cli.completion import SCRIPTS
from planwarden.server.cli.exit_codes import DONE
from planwarden.server.cli.parser import build_parser


def handle_completion(arguments: Namespace) -> int:
    print(SCRIPTS[arguments.shell](build_parser()), end="")
    return DONE
