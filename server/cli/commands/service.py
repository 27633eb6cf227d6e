"""The command `service print`: prints a file with which systemd, launchd or Docker keeps a server running."""

import json
import os
import plistlib
import re
import shutil
import sys
from argparse import Namespace
from importlib.resources import files
from pathlib import Path

import msgspec

from planwarden.agent.common.errors import UsageError
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.output import DONE, STANDARD_OUTPUT
from planwarden.server.settings.configuration import find_home, find_operator

DEPLOYED = Path("/opt/planwarden/bin/planwarden"), Path("/var/lib/planwarden"), "planwarden"
"""The program, the home and the user in `planwarden.service`; `docs/operators/systemd.md` has the same three."""
_PERSONAL = (Path("/home"), Path("/root"), Path("/run/user"))
_PLAIN = re.compile(r"[\w./:=@+,-]+", re.ASCII)


class Installation(msgspec.Struct, frozen=True):
    """Where planwarden is, where its home is, and who runs it."""

    program: Path
    home: Path
    user: str
    options: tuple[str, ...] = ()
    """Words that follow `serve --http`."""


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
    printing = parser.add_command("print", handle_print, text, has_json=False, needs_home=False)
    text = "systemd: a unit; launchd: an agent of this user; docker: a file for docker compose in a checkout"
    printing.declare("kind KIND", text, choices=tuple(HINTS))


def handle_print(arguments: Namespace) -> int:
    flags = {"--store": arguments.store, "--model": arguments.model}
    options = [word for name, value in flags.items() if value is not None for word in (name, str(value))]
    home = find_home(arguments.home, os.environ)
    name = sys.argv[0]
    program = Path(shutil.which(name) or shutil.which("planwarden") or name).absolute()
    installation = Installation(program, home, find_operator(), tuple(options))
    print(WRITERS[arguments.kind](installation), end="", file=STANDARD_OUTPUT.document)
    if sys.stdout.isatty():
        print(f"\n# Install it with\n{HINTS[arguments.kind]}", file=sys.stderr)
    return DONE


def write_systemd(installation: Installation) -> str:
    """Return the unit of a system service. The service may write only to the home and to temporary files of its own.

    Raises:
        UsageError: a path or an option has a character that cannot be printed.
    """
    text = _read("planwarden.service")
    program, home, user = DEPLOYED
    if installation.home != home:
        state = f"StateDirectory={home.name}\nStateDirectoryMode=0700\n"
        text = text.replace(state, f"ReadWritePaths={_quote(installation.home)}\n")
    words = (installation.program, "serve", "--http", *installation.options)
    command = " ".join(map(_quote, words)).replace("$", "$$")
    paths = (installation.home, installation.program)
    if any(path.is_relative_to(folder) for path in paths for folder in _PERSONAL):
        reason = "# `ProtectHome=yes` would hide the home or the program."
        text = text.replace("ProtectHome=yes", f"{reason}\nProtectHome=read-only")
    for old, new in (
        (f"Environment=PLANWARDEN_HOME={home}", f"Environment={_quote(f'PLANWARDEN_HOME={installation.home}')}"),
        (f"ExecStart={program} serve --http", f"ExecStart={command}"),
        (f"User={user}", f"User={installation.user}"),
    ):
        text = text.replace(old, new)
    return text


def write_launchd(installation: Installation) -> str:
    """Return the property list of a launch agent; its log lines go to `server.log` in the home."""
    document = {
        "Label": "planwarden",
        "ProgramArguments": [str(installation.program), "serve", "--http", *installation.options],
        "EnvironmentVariables": {"PLANWARDEN_HOME": str(installation.home), "PLANWARDEN_LOG_FORMAT": "json"},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ProcessType": "Background",
        "Umask": 0o077,
        "StandardErrorPath": str(installation.home / "server.log"),
    }
    return plistlib.dumps(document, sort_keys=False).decode()


def write_docker(installation: Installation) -> str:
    """Return `deploy/compose.yaml` with the options added. The container has its own home, not `installation.home`."""
    command = ["serve", "--http", "--host", "0.0.0.0"]
    words = json.dumps([*command, *installation.options]).replace("$", "$$")
    return _read("compose.yaml").replace(json.dumps(command), words)


def _read(name: str) -> str:
    return files("planwarden.server.cli.templates").joinpath(name).read_text(encoding="utf-8")


def _quote(value: object) -> str:
    """Quote a word for a unit file (https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html)."""
    text = str(value).replace("%", "%%")
    if not text.isprintable():
        raise UsageError(f"{str(value)!r} cannot be written into a unit; use a path without control characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return text if _PLAIN.fullmatch(text) else f'"{escaped}"'


WRITERS = {"systemd": write_systemd, "launchd": write_launchd, "docker": write_docker}
