"""Reads the arguments of the command line, runs one command and returns its exit code."""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
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
from planwarden.server.cli.arguments import build_program, check_home
from planwarden.server.cli.output import FAILED, INTERRUPTED, USAGE
from planwarden.server.cli.parser import build_parser
from planwarden.server.cli.standard_output import STANDARD_OUTPUT, print_error, print_json
from planwarden.server.cli.terminal.commands import name_commands

_TOO_LATE = (AlreadyDecided, Expired, RateLimited, StaleDefinition, StaleRevision, ThreadBusy)
"""Usage errors of a correct command that came at the wrong time; they exit as failures."""


def run_program(argv: Sequence[str] | None, imported: Callable[[], None]) -> int:
    """Run one command and return its exit code; calls `imported` when all is imported that the command needs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot show must not stop the command.
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.ERROR, format="planwarden: %(message)s")
    try:
        return _run_command(build_parser().parse_args(argv), imported)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Without this the interpreter would fail again when it flushes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT.document.fileno())
        return FAILED


def _run_command(arguments: Namespace, imported: Callable[[], None]) -> int:
    if arguments.json or (arguments.speaks_protocol and not arguments.http):
        STANDARD_OUTPUT.keep()
    try:
        imported()
        check_home(arguments)
        return arguments.handler(arguments)
    except PlanwardenError as error:
        message = name_commands(error.message, build_program(arguments))
        if arguments.json:
            print_json({"error": {"code": error.code, "message": message, "details": error.details}})
        print_error(message)
        return USAGE if isinstance(error, UsageError) and not isinstance(error, _TOO_LATE) else FAILED
    finally:
        STANDARD_OUTPUT.finish()
