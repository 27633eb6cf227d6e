"""The command `demo`; `planwarden.server.cli.demo` holds what it shows."""

from argparse import Namespace

from planwarden.server.cli.demo.demonstration import run_demonstration
from planwarden.server.cli.exit_codes import exit_code
from planwarden.server.cli.output import build_terminal, print_json
from planwarden.server.views.encoding import to_json
from planwarden.server.views.execution import build_execution_view


def handle_demo(arguments: Namespace) -> int:
    context, execution = run_demonstration(build_terminal(arguments), arguments.home, says_yes=arguments.yes)
    if arguments.json:
        print_json(to_json(build_execution_view(execution, context.tools)))
    return exit_code(execution)
