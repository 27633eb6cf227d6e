"""The commands that write what starts planwarden: `init`, `config print`, `service print` and `completion`.

`init` makes the folder with settings, tools and a plan that runs; `config print` prints the block for a host, and
`service print` a file for systemd, launchd or Docker that keeps a server of this home running. The scripts of
`completion` are static, so no key press starts Python. They do not complete ids: reading those takes as long as
`planwarden list`, and every command takes the beginning of an id.
"""

import json
import os
import plistlib
import re
import shlex
import shutil
import sys
from argparse import Namespace
from importlib.resources import files
from pathlib import Path

import msgspec
import shtab
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError, UsageError
from planwarden.agent.common.paths import expand_home
from planwarden.agent.models.provider.endpoint import MODE_VARIABLE, PROVIDERS, TIMEOUT_VARIABLE, URL_VARIABLE
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.hosts import CLIENTS, find_launch_command, find_program
from planwarden.server.cli.output import DONE, FAILED, STANDARD_OUTPUT, print_json
from planwarden.server.cli.program import build_parser
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import build_terminal
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import (
    FILE,
    HOME_VARIABLE,
    MODEL_VARIABLE,
    STORE_VARIABLE,
    find_home,
    find_operator,
)
from planwarden.storage.location import read_location
from planwarden.storage.ports.secrets import SECRET_KEY_VARIABLE
from planwarden.tools.web.search import KEY_VARIABLE, SEARCH_VARIABLE

SHELLS = ("bash", "zsh", "fish")
VARIABLES = (HOME_VARIABLE, MODEL_VARIABLE, MODE_VARIABLE, TIMEOUT_VARIABLE, URL_VARIABLE, SEARCH_VARIABLE)
"""Written into the block where they are set: a host starts planwarden without the environment of this shell."""
DEPLOYED = Path("/opt/planwarden/bin/planwarden"), Path("/var/lib/planwarden"), "planwarden"
"""The program, the home and the user of the page about systemd."""
_PERSONAL = (Path("/home"), Path("/root"), Path("/run/user"))
_PLAIN = re.compile(r"[\w./:=@+,-]+", re.ASCII)
HINTS = {
    "systemd": "planwarden service print systemd | sudo tee /etc/systemd/system/planwarden.service\n"
    "sudo systemctl enable --now planwarden",
    "launchd": "planwarden service print launchd > ~/Library/LaunchAgents/planwarden.plist\n"
    "launchctl bootstrap gui/$(id -u) ~/Library/LaunchAgents/planwarden.plist",
    "docker": "planwarden service print docker > deploy/compose.yaml   # in a checkout\n"
    "docker compose -f deploy/compose.yaml up -d",
}
TOOLS, PLANS, PLAN = "tools.py", "plans", "first.json"
SOURCES = {FILE: FILE, TOOLS: TOOLS, f"{PLANS}/{PLAN}": PLAN}
"""Each file in the folder, and the file of `planwarden.server.cli.templates` that it is a copy of."""


def add_config(parser: CommandParser) -> None:
    text = "Print the block for a host, ready to paste."
    block = parser.add_command("print", handle_print_config, text, has_json=False, needs_home=False)
    text = f"the host: {', '.join(CLIENTS)}"
    block.add_argument("client", choices=sorted(CLIENTS), metavar="CLIENT", help=text)


def add_completion(parser: CommandParser) -> None:
    parser.handle(handle_completion, has_json=False, needs_home=False)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {', '.join(SHELLS)}")


def handle_completion(arguments: Namespace) -> int:
    print(shtab.complete(build_parser(is_whole=True), shell=arguments.shell))
    return DONE


def handle_print_config(arguments: Namespace) -> int:
    host = CLIENTS[arguments.client]
    variables = {name: text for name in VARIABLES if (text := os.environ.get(name, "").strip())}
    home = arguments.home or variables.get(HOME_VARIABLE)
    model = arguments.model or variables.get(MODEL_VARIABLE)
    store = arguments.store or os.environ.get(STORE_VARIABLE, "").strip()
    env = dict(variables)
    location = read_location(store) if store else None
    if location is not None and not location.has_password:
        env[STORE_VARIABLE] = store
    if home is not None:
        env[HOME_VARIABLE] = str(expand_home(home).absolute())
    if model is not None:
        kind, _, file = model.partition(":")
        env[MODEL_VARIABLE] = f"scripted:{expand_home(file).absolute()}" if kind == "scripted" else model
    # The place goes to standard error, so that standard output can be redirected into a file.
    print(f"into {host.where}:", file=sys.stderr)
    provider = PROVIDERS.get((model or "").partition(":")[0])
    own_keys = provider.keys if provider is not None else ()
    keys = [name for name in (KEY_VARIABLE, *own_keys) if os.environ.get(name)]
    if location is not None and location.has_password:
        keys.append(STORE_VARIABLE)
    if os.environ.get(SECRET_KEY_VARIABLE) or (location is not None and location.path is None):
        keys.append(SECRET_KEY_VARIABLE)
    if keys:
        text = f"not written, because they are secrets: {', '.join(keys)}; the host has to give them to planwarden"
        print(text, file=sys.stderr)
    print(host.write(find_launch_command(env)))
    return DONE


class Installation(msgspec.Struct, frozen=True):
    """Where planwarden is, where its home is, and who runs it."""

    program: Path
    home: Path
    user: str
    options: tuple[str, ...] = ()
    """Words that follow `serve --http`."""


def add_service(parser: CommandParser) -> None:
    text = "Print the file for a server of this home over HTTP."
    printing = parser.add_command("print", handle_print_service, text, has_json=False, needs_home=False)
    text = "systemd: a unit; launchd: an agent of this user; docker: a file for docker compose in a checkout"
    printing.add_argument("kind", choices=tuple(HINTS), metavar="KIND", help=text)


def handle_print_service(arguments: Namespace) -> int:
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
    """Return the file for `docker compose`, as in `deploy/`; the home of the container is its own."""
    command = ["serve", "--http", "--host", "0.0.0.0"]
    return _read("compose.yaml").replace(json.dumps(command), json.dumps([*command, *installation.options]))


def _read(name: str) -> str:
    return files("planwarden.server.cli.templates").joinpath(name).read_text(encoding="utf-8")


def _quote(value: object) -> str:
    """A word of a unit file (https://www.freedesktop.org/software/systemd/man/latest/systemd.syntax.html)."""
    text = str(value).replace("%", "%%")
    if not text.isprintable():
        raise UsageError(f"{str(value)!r} cannot stand in a unit; use a path without control characters")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return text if _PLAIN.fullmatch(text) else f'"{escaped}"'


WRITERS = {"systemd": write_systemd, "launchd": write_launchd, "docker": write_docker}


def add_init(parser: CommandParser) -> None:
    parser.handle(handle_init, needs_home=False)


def handle_init(arguments: Namespace) -> int:
    home = find_home(arguments.home, os.environ)
    existing = [home / name for name in (FILE, TOOLS, PLANS) if os.path.lexists(home / name)]
    created = [] if existing else create_home(home)
    commands = [] if existing else _list_commands(home)
    document: dict[str, JsonValue] = {
        "home": str(home),
        "created": [str(path) for path in created],
        "found": [str(path) for path in existing],
        "next": [command for command, _ in commands],
    }
    terminal = build_terminal(arguments)
    if arguments.json:
        print_json(document)
    elif existing:
        text = f"{home} has {', '.join(path.name for path in existing)} already; nothing was changed."
        terminal.say(TerminalLine((text, "warn"), mark="note"))
    else:
        terminal.say(*(TerminalLine(str(path), mark="done") for path in created))
        terminal.say("", TerminalLine(("Next:", "bold")))
        for command, does in commands:
            terminal.say(TerminalLine((f"# {does}", "dim"), indent=1))
            terminal.say_unbroken(f"  {command}")
    return FAILED if existing else DONE


def _list_commands(home: Path) -> list[tuple[str, str]]:
    """Return command lines to go on with, and what each does."""
    _, *options = build_command_prefix(home, None)
    return [
        (shlex.join([*find_program(), *options, *words]), does)
        for words, does in (
            (("run", str(home / PLANS / PLAN)), "runs the plan: it asks you before it writes a note"),
            (("config", "print", "claude-code"), "prints what connects Claude Code; or another host"),
            (("doctor",), "checks everything"),
        )
    ]


def create_home(home: Path) -> list[Path]:
    """Make the folder and its files, where none of them exists. Return the files.

    Raises:
        StoreError: the folder or a file cannot be made.
    """
    created: list[Path] = []
    try:
        is_ours = not home.exists() or not any(home.iterdir())
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_ours and sys.platform != "win32":
            # The mode of `mkdir` is cut by the umask, and an empty folder may have had another one.
            home.chmod(0o700)
        (home / PLANS).mkdir(mode=0o700)
        for name, source in SOURCES.items():
            text = (files("planwarden.server.cli.templates") / source).read_bytes()
            with open(home / name, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(text)
            created.append(home / name)
    except OSError as error:
        text = f"cannot make {str(error.filename or home)!r}: {error.strerror or error}"
        raise StoreError(f"{text}; name another folder with --home") from error
    return created
