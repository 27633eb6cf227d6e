"""The command `service print`: a file that keeps a server of this home running."""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE
from planwarden.server.cli.services.files import Installation, write_docker, write_launchd, write_systemd
from planwarden.server.cli.standard_output import STANDARD_OUTPUT
from planwarden.server.settings.configuration import find_home, find_operator

KINDS: dict[str, Callable[[Installation], str]] = {
    "systemd": write_systemd,
    "launchd": write_launchd,
    "docker": write_docker,
}
HINTS = {
    "systemd": "planwarden service print systemd | sudo tee /etc/systemd/system/planwarden.service\n"
    "sudo systemctl enable --now planwarden",
    "launchd": "planwarden service print launchd > ~/Library/LaunchAgents/planwarden.plist\n"
    "launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/planwarden.plist",
    "docker": "planwarden service print docker > deploy/compose.yaml   # in a checkout\n"
    "docker compose -f deploy/compose.yaml up -d",
}


def add_service(parser: CommandParser) -> None:
    text = "Print the file for a server of this home over HTTP."
    printing = parser.add_commands("print").add("print", handle_print, text, has_json=False, needs_home=False)
    printing.add_argument(
        "kind",
        choices=tuple(KINDS),
        metavar="KIND",
        help="systemd: a unit; launchd: an agent of this user; docker: a file for docker compose in a checkout",
    )


def handle_print(arguments: Namespace) -> int:
    flags = {"--store": arguments.store, "--model": arguments.model}
    options = [word for name, value in flags.items() if value is not None for word in (name, str(value))]
    home = find_home(arguments.home, os.environ)
    installation = Installation(find_program(), home, find_operator(), tuple(options))
    print(KINDS[arguments.kind](installation), end="", file=STANDARD_OUTPUT.document)
    if sys.stdout.isatty():
        print(f"\n# Install it with\n{HINTS[arguments.kind]}", file=sys.stderr)
    return DONE


def find_program() -> Path:
    """Return the absolute path of the command that runs."""
    name = sys.argv[0]
    path = shutil.which(name) or shutil.which("planwarden")
    return Path(path or name).absolute()
