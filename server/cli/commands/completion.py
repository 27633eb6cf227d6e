"""The command `completion`: prints a script for a shell.

The scripts are static, so no key press starts Python. They do not complete ids: reading those takes as long as
`planwarden list`, and every command takes the beginning of an id.
"""

from argparse import Namespace

import shtab

from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE
from planwarden.server.cli.parser import build_parser

SHELLS = ("bash", "zsh", "fish")


def add_completion(parser: CommandParser) -> None:
    parser.handle(handle_completion, has_json=False, needs_home=False)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {', '.join(SHELLS)}")


def handle_completion(arguments: Namespace) -> int:
    print(shtab.complete(build_parser(is_whole=True), shell=arguments.shell))
    return DONE
