"""The command `planwarden`: arguments in, one command run, an exit code out."""

import logging
import os
import sys
from collections.abc import Sequence
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
from planwarden.server.cli.handlers import print_json
from planwarden.server.cli.home import FAILED, INTERRUPTED, USAGE
from planwarden.server.cli.parser import parser

_TOO_LATE = (AlreadyDecided, Expired, RateLimited, StaleDefinition, StaleRevision, ThreadBusy)
"""Right commands at the wrong time: failures, not misuse."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot show is no reason to stop.
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.ERROR, format="planwarden: %(message)s")
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except PlanwardenError as error:
        if getattr(arguments, "json", False):
            print_json({"error": {"code": error.code, "message": error.message, "details": error.details}})
        print(f"planwarden: {error.message}", file=sys.stderr)
        return USAGE if isinstance(error, UsageError) and not isinstance(error, _TOO_LATE) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has enough; without this the interpreter complains when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
