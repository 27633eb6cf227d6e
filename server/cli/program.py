"""The command line: every command and its module, the parser for all of them, and how one command runs."""

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper

from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    PlanwardenError,
    RateLimited,
    StaleDefinition,
    StaleRevision,
    ThreadBusy,
    UsageError,
)
from planwarden.server.cli.arguments import CommandParser, ShowVersion, build_program, check_home
from planwarden.server.cli.output import (
    EXIT_CODES,
    FAILED,
    INTERRUPTED,
    STANDARD_OUTPUT,
    USAGE,
    print_error,
    print_json,
    replace_tools_by_commands,
)

_TOO_LATE = (AlreadyDecided, Expired, RateLimited, StaleDefinition, StaleRevision, ThreadBusy)
"""Usage errors for a correct command given at the wrong time; the exit code is `FAILED`, not `USAGE`."""

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "Serve MCP over standard input and output, or over HTTP."),
    "worker": ("serve", "Run executions of a store that several processes share, without serving MCP."),
    "plans": ("plans", "List saved plans."),
    "init": ("init", "Make the folder with settings, a tool and a plan that runs, unless they exist."),
    "demo": ("demo", "Show what planwarden is for: a plan, real tools, a killed process, a confirmation."),
    "run": ("run", "Run a plan and ask its questions here."),
    "check": ("plans", "Check a plan, and say whom it will ask and what only the run will know. Nothing runs."),
    "run-goal": ("run", "Make a plan for a goal with the configured model, and run it."),
    "call": ("call", "Call one tool, with the checks and the record of a plan."),
    "list": ("listing", "List open questions and the newest executions."),
    "show": ("show", "Show a thread's newest execution."),
    "approve": (
        "decide",
        "Show a question, ask the person at the terminal, and continue. Ends with 0 once the decision is recorded.",
    ),
    "reject": ("decide", "Reject a question, and continue with the remaining steps."),
    "cancel": ("cancel", "Stop an execution; what is completed stays done."),
    "retry": ("run", "Go on from a thread's last execution without repeating what is completed."),
    "inbox": ("inbox", "Open the inbox in the browser, with a one-time code."),
    "tools": ("tools", "List the tools that plans may name."),
    "trust": ("trust", "Let tools of a downstream server run without asking, if the server says that they only read."),
    "login": ("login", "Log in to a downstream server, in the browser."),
    "doctor": ("doctor", "Check store, settings, model and tools."),
    "notify": ("notify", "The channels that notify people of questions."),
    "schedule": ("schedules", "Schedules, on which servers and workers start saved plans."),
    "hook": ("hooks", "Requests of other programs that start saved plans: [hooks]."),
    "grant": ("grants", "Standing approvals: calls that a person allowed in advance."),
    "once": ("business_keys", "Calls that happen only once per business key, as `once` in [tools] says."),
    "rules": ("rules", "List the rules on arguments."),
    "promises": ("promises", "List what hosts must have called before they are done."),
    "receipt": ("promises", "Say what a host's session did, promised and proved."),
    "key": ("keys", "Keys with which people sign approvals; people add them in the inbox."),
    "audit": ("audit", "The record of every question, decision and grant."),
    "prune": ("store", "Count the old finished executions, ask, and delete them."),
    "backup": ("store", "Copy the database while it is in use."),
    "move": ("store", "Move everything to another store, read it back, and leave this one unusable."),
    "token": ("tokens", "Bearer tokens for MCP over HTTP: make, list, revoke."),
    "guard": ("guard", "Judge what a host is about to do itself, and ask a person where needed."),
    "gate": ("gate", "Serve a server that you have, with its own tools, and ask a person before risky calls."),
    "config": ("config", "Configuration for MCP hosts."),
    "service": ("service", "Files that keep a server running."),
    "completion": (
        "config",
        (
            'Print a script that completes commands and options: `eval "$(planwarden completion bash)"`, the same with '
            "`zsh`, or `planwarden completion fish | source`."
        ),
    ),
}
"""By command: its module in `planwarden.server.cli.commands`, which adds the arguments, and what the command does.

The module is imported only when its command is used, so that no command waits for the imports of other commands.
"""


def build_parser(*, is_whole: bool = False) -> CommandParser:
    """Return the parser of the command line; with `is_whole`, every command adds its arguments at once."""
    parser = CommandParser(
        prog="planwarden",
        description="Runs plans durably, proves every promised tool call, and waits for a person where it matters.\n"
        "Without a command it serves MCP over standard input and output.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_options(None)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show program's version number and exit")
    parser.set_defaults(
        handler=_serve,
        json=False,
        http=False,
        host=None,
        port=None,
        accepts_trust=False,
        role="both",
        needs_home=False,
        speaks_protocol=True,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command: CommandParser = subparsers.add_parser(
            name, module=module, help=text, description=text, allow_abbrev=False
        )
        if is_whole:
            command.load()
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    return import_module("planwarden.server.cli.commands.serve").handle_serve(arguments)


def run_program(argv: Sequence[str] | None, imported: Callable[[], None]) -> int:
    """Run a command and return its exit code. Parsing imports the named command's module; then `imported` is called."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot show must not stop the command.
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.ERROR, format="planwarden: %(message)s")
    try:
        return _run_command(build_parser().parse_args(argv), imported)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno == errno.ENOSPC:
            print_error(f"cannot write: {error.strerror}")
        elif not isinstance(error, BrokenPipeError):
            raise
        # Without `dup2` the interpreter would fail again when it flushes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT.document.fileno())
        return FAILED


def _run_command(arguments: argparse.Namespace, imported: Callable[[], None]) -> int:
    if arguments.json or (arguments.speaks_protocol and not arguments.http):
        STANDARD_OUTPUT.keep()
    try:
        imported()
        check_home(arguments)
        return arguments.handler(arguments)
    except PlanwardenError as error:
        message = replace_tools_by_commands(error.message, build_program(arguments))
        if arguments.json:
            print_json({"error": {"code": error.code, "message": message, "details": error.details}})
        print_error(message)
        return USAGE if isinstance(error, UsageError) and not isinstance(error, _TOO_LATE) else FAILED
    finally:
        STANDARD_OUTPUT.finish()
