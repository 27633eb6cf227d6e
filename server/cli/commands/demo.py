"""The command `demo`; `planwarden.server.cli.demo` holds what it shows."""

from argparse import Namespace

from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.demo.demonstration import run_demonstration
from planwarden.server.cli.output import build_terminal, exit_code, print_json
from planwarden.server.views.encoding import to_json
from planwarden.server.views.execution import build_execution_view


def add_demo(parser: CommandParser) -> None:
    parser.handle(handle_demo, needs_home=False)
    parser.add_argument("--yes", action="store_true", help="answer the confirmation with yes")


def handle_demo(arguments: Namespace) -> int:
    home, execution = run_demonstration(build_terminal(arguments), arguments.home, says_yes=arguments.yes)
    if arguments.json:
        print_json(to_json(build_execution_view(execution, home.tools)))
    return exit_code(execution)
