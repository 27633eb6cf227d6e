"""The command `gate`: runs between a host and its servers, and asks a person before calls that need approval."""

import os
from argparse import Namespace
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.arguments import CommandParser, read_settings
from planwarden.server.cli.output import DONE, STANDARD_OUTPUT
from planwarden.tools.downstream.config import ServerSettings, build_slug
from planwarden.tools.downstream.gated_servers import (
    MAX_NAME_CHARS,
    build_gated_config,
    build_remote_config,
    choose_name,
)

HOSTS = ("claude-code", "codex", "gemini", "opencode", "cursor", "vscode", "claude-desktop")


def add_gate(parser: CommandParser) -> None:
    parser.handle(handle_gate, has_json=False, uses_servers=True, needs_home=False)
    parser.set_defaults(speaks_protocol=True)
    text = "name of the server in rules and on pages, which call its tools NAME_TOOL; default: from its program"
    parser.declare("--name NAME", text)
    for name, text in (
        ("install", "Show the change that puts a host's servers behind the gate, ask, and write it."),
        ("uninstall", "Show the change that removes the gate from a host's servers, ask, and write it."),
        ("status", "Say which servers of each host run behind the gate, and which bypass it."),
    ):
        # `_handle_hosts` imports the module of these commands, which a gate that serves does not need.
        changing = parser.add_command(name, partial(_handle_hosts, name), text, needs_home=False)
        if name != "status":
            changing.declare("host HOST", f"the host: {', '.join(HOSTS)}", choices=HOSTS)
            changing.declare("servers SERVER", "names of servers; default: all", nargs="*")
            changing.declare("--yes", "do not ask; needed without a terminal")
        changing.declare("--project", "of the project of the working directory; default: of this user")
    parser.declare("--upstream URL", "the address of the server, which speaks Streamable HTTP")
    text = (
        "the command of the server with its arguments, behind two hyphens; without it and without --upstream, all "
        "servers of planwarden.json"
    )
    parser.take_rest("command", "-- COMMAND", text)


def _handle_hosts(name: str, arguments: Namespace) -> int:
    commands = import_module("planwarden.server.cli.commands.gate_hosts")
    handlers = {"install": commands.install, "uninstall": commands.uninstall, "status": commands.show_status}
    return handlers[name](arguments)


def handle_gate(arguments: Namespace) -> int:
    words = arguments.command
    if words and arguments.upstream is not None:
        raise UsageError("a server is a command or an address: leave out --upstream, or what is behind the two hyphens")
    if words and Path(words[0]).name == "planwarden":
        raise UsageError("planwarden cannot wrap itself")
    # Imported here, because most commands do not serve.
    serving = import_module("planwarden.server.gate.serving")
    if not words and arguments.upstream is None:
        if arguments.name is not None:
            raise UsageError("--name needs a server: planwarden gate --name NAME -- COMMAND ARGUMENT...")
        anyio.run(serving.serve_gates, read_settings(arguments), STANDARD_OUTPUT.document)
        return DONE
    url: str = arguments.upstream or ""
    name = choose_name(words) if words else _choose_remote_name(url)
    name = name if arguments.name is None else arguments.name
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or not name.strip():
        raise UsageError(f"--name is {name[:64]!r}; a name has 1 to {MAX_NAME_CHARS} characters")
    settings = read_settings(arguments)
    server_settings = settings.tables.servers.get(name, ServerSettings())
    if words:
        environment = import_module("planwarden.server.gate.upstream").list_environment(os.environ)
        config = build_gated_config(name, words, Path.cwd(), server_settings, environment)
    else:
        config = build_remote_config(name, url, server_settings, settings.servers.configs)
    anyio.run(serving.serve_gate, settings, config, STANDARD_OUTPUT.document)
    return DONE


def _choose_remote_name(url: str) -> str:
    """Return a name for the server at an address. Raises `UsageError` if `url` is not an http or https address."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host or not url.startswith(("http://", "https://")):
        raise UsageError("--upstream is the address of a server, which begins with http:// or https://")
    return build_slug(host)[:MAX_NAME_CHARS]
