"""The command `worker`: an engine without MCP, for a store that several processes share."""

import signal
import sys
from argparse import Namespace

import anyio

from planwarden.server.api.warden import Warden
from planwarden.server.cli.arguments import read_count, read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE
from planwarden.server.settings.configuration import CONCURRENCY, Settings
from planwarden.server.telemetry.logs import log_to_stderr


def add_worker(parser: CommandParser) -> None:
    parser.handle(handle_worker, has_json=False, uses_servers=True)
    parser.add_argument(
        "--concurrency",
        type=read_count,
        default=CONCURRENCY,
        metavar="N",
        help="executions at a time, at most 10000; default %(default)s",
    )


def handle_worker(arguments: Namespace) -> int:
    settings = read_settings(arguments)
    anyio.run(run_worker, settings, arguments.concurrency)
    return DONE


async def run_worker(settings: Settings, concurrency: int) -> None:
    """Continue executions of the store, `concurrency` at a time, until SIGINT or SIGTERM; running calls may then end.

    Raises:
        UsageError: a setting, a tool or the model is not usable.
        StoreError: the store cannot be opened.
    """
    log_to_stderr(settings.observation)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with Warden(settings=settings, whole_process=True, role="worker", concurrency=concurrency):
            print(f"planwarden works on {settings.store}, {concurrency} executions at a time", file=sys.stderr)
            async for _ in signals:
                break
