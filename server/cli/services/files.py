"""Files for systemd, launchd and Docker, for one installation and one home."""

import json
import plistlib
import re
from importlib.resources import files
from pathlib import Path

import msgspec

from planwarden.agent.common.errors import UsageError

LABEL = "planwarden"
DEPLOYED = Path("/opt/planwarden/bin/planwarden"), Path("/var/lib/planwarden"), "planwarden"
"""The program, the home and the user of the page about systemd."""
_PERSONAL = (Path("/home"), Path("/root"), Path("/run/user"))
_PLAIN = re.compile(r"[\w./:=@+,-]+", re.ASCII)


class Installation(msgspec.Struct, frozen=True):
    """Where planwarden is, where its home is, and who runs it."""

    program: Path
    home: Path
    user: str
    options: tuple[str, ...] = ()
    """Words that follow `serve --http`."""


def write_systemd(installation: Installation) -> str:
    """Return the unit of a system service. It may write to the home, and to nothing else of the file system.

    Raises:
        UsageError: a path cannot stand in a unit.
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
        reason = "# The home or the program is below what `yes` would hide."
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
        "Label": LABEL,
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
    """Return the file for `docker compose`, as in `deploy/`; the home of the container is its own."""
    command = ["serve", "--http", "--host", "0.0.0.0"]
    return _read("compose.yaml").replace(json.dumps(command), json.dumps([*command, *installation.options]))


def _read(name: str) -> str:
    return files("planwarden.server.cli.services").joinpath(name).read_text(encoding="utf-8")


def _quote(value: object) -> str:
    """A word of a unit file (https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html)."""
    text = str(value).replace("%", "%%")
    if not text.isprintable():
        raise UsageError(f"{str(value)!r} cannot stand in a unit; use a path without control characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return text if _PLAIN.fullmatch(text) else f'"{escaped}"'
