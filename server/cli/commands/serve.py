"""The commands `serve` (MCP over standard streams or HTTP; the default) and `worker` (an engine without MCP)."""

import signal
import sys
from argparse import ArgumentTypeError, Namespace
from functools import partial
from importlib import import_module

import anyio

from planwarden.agent.common.errors import UsageError
from planwarden.server.api.warden import Warden
from planwarden.server.cli.arguments import CommandParser, read_count, read_settings
from planwarden.server.cli.output import DONE, STANDARD_OUTPUT
from planwarden.server.settings.configuration import CONCURRENCY, PROCESS_ROLES, Settings
from planwarden.server.telemetry.logs import log_to_stderr
from planwarden.server.transports.stdio import serve_stdio

TRUST_BANNER = """\
**********************************************************************************
planwarden: [approvals] trust_caller is on: any client of this server approves its
own actions, and nobody is asked. Each such decision is recorded as `claimed`.
**********************************************************************************"""


def add_serve(parser: CommandParser) -> None:
    parser.handle(handle_serve, has_json=False, uses_servers=True, needs_home=False)
    parser.set_defaults(speaks_protocol=True)
    parser.declare("--http", "serve Streamable HTTP instead, at /mcp, and each server of planwarden.json at /gate/NAME")
    text = "address to listen on; one that other machines can reach needs tokens and allowed_hosts; default 127.0.0.1"
    parser.declare("--host HOST", text)
    parser.declare("--port PORT", "port to listen on; default 8765", type=_read_port)
    parser.declare(
        "--i-know-the-caller-can-approve-itself",
        "allow [approvals] trust_caller on an address that other machines can reach",
        dest="accepts_trust",
    )
    parser.declare(
        "--role",
        "on a shared store: front answers and runs nothing, worker does the same as `planwarden worker`; "
        "default %(default)s",
        choices=PROCESS_ROLES,
        default="both",
    )


def add_worker(parser: CommandParser) -> None:
    parser.handle(handle_worker, has_json=False, uses_servers=True)
    text = "executions at a time, at most 10000; default %(default)s"
    parser.declare("--concurrency N", text, type=read_count, default=CONCURRENCY)


def _read_port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= port < 65_536:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return port


def handle_serve(arguments: Namespace) -> int:
    if not arguments.http and (arguments.host, arguments.port) != (None, None):
        raise UsageError("--host and --port are for HTTP; add --http, or leave them out")
    settings = read_settings(arguments)
    if settings.policy.trust_caller:
        print(TRUST_BANNER, file=sys.stderr)
    if arguments.role == "worker":
        anyio.run(run_worker, settings, CONCURRENCY)
    elif arguments.http:
        _serve_over_http(settings, arguments)
    else:
        if sys.stdin.isatty():
            text = "planwarden speaks MCP here and waits for a client. Try `planwarden demo`, or `planwarden --help`."
            print(text, file=sys.stderr)
        anyio.run(serve_stdio, settings, STANDARD_OUTPUT.document, arguments.role)
    return DONE


def handle_worker(arguments: Namespace) -> int:
    anyio.run(run_worker, read_settings(arguments), arguments.concurrency)
    return DONE


async def run_worker(settings: Settings, concurrency: int) -> None:
    """Run the store's executions, `concurrency` at a time, until SIGINT or SIGTERM; then give calls a moment to end."""
    log_to_stderr(settings.observation)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with Warden(settings=settings, whole_process=True, role="worker", concurrency=concurrency):
            print(f"planwarden works on {settings.store}, {concurrency} executions at a time", file=sys.stderr)
            async for _ in signals:
                break


def _serve_over_http(settings: Settings, arguments: Namespace) -> None:
    from planwarden.server.transports.http import serve_http

    serve = partial(
        serve_http,
        settings,
        host=arguments.host or "127.0.0.1",
        port=8765 if arguments.port is None else arguments.port,
        role=arguments.role,
        accepts_trust=arguments.accepts_trust,
        serve_gates=import_module("planwarden.server.gate.endpoint").serving_gates,
        started=lambda url: print(describe_addresses(url, settings.http.public_url), file=sys.stderr),
    )
    anyio.run(serve)


def describe_addresses(url: str, public_url: str | None) -> str:
    """Return the line that names `url` and the inbox; `public_url` is the address for clients if there is a proxy."""
    origin = (public_url or url.removesuffix("/mcp")).rstrip("/")
    reached = "" if public_url is None else f", for clients {origin}/mcp"
    return f"planwarden listens on {url}{reached}; its inbox is {origin}/inbox, and `planwarden inbox` lets you in"
