"""The command `completion`: prints a script for a shell.

The scripts are static, so no key press starts Python. They do not complete ids: reading those takes as long as
`planwarden list`, and every command takes the beginning of an id.
"""

from argparse import Namespace

import shtab

from planwarden.server.cli.exit_codes import DONE
from planwarden.server.cli.parser import build_parser


def handle_completion(arguments: Namespace) -> int:
    print(shtab.complete(build_parser(), shell=arguments.shell))
    return DONE
