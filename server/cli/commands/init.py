"""The command `init`: makes the folder with settings, tools and a plan that runs, and says what to do next."""

import os
import shlex
import sys
from argparse import Namespace
from importlib.resources import files
from pathlib import Path

from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.hosts import find_program
from planwarden.server.cli.output import DONE, FAILED, print_json
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import build_terminal
from planwarden.server.settings.configuration import SETTINGS_FILE, build_home_option, find_home

TOOLS, PLANS, PLAN = "tools.py", "plans", "first.json"
SOURCES = {SETTINGS_FILE: SETTINGS_FILE, TOOLS: TOOLS, f"{PLANS}/{PLAN}": PLAN}
"""Each file in the folder, and the template in `planwarden.server.cli.templates` that is copied there."""


def add_init(parser: CommandParser) -> None:
    parser.handle(handle_init, needs_home=False)


def handle_init(arguments: Namespace) -> int:
    home = find_home(arguments.home, os.environ)
    existing = [home / name for name in (SETTINGS_FILE, TOOLS, PLANS) if os.path.lexists(home / name)]
    created = [] if existing else create_home(home)
    commands = _list_commands(home) if (home / PLANS / PLAN).is_file() else []
    document: dict[str, JsonValue] = {
        "home": str(home),
        "created": [str(path) for path in created],
        "found": [str(path) for path in existing],
        "next": [command for command, _ in commands],
    }
    terminal = build_terminal(arguments)
    if arguments.json:
        print_json(document)
        return FAILED if existing else DONE
    if existing:
        text = f"{home} has {', '.join(path.name for path in existing)} already; nothing was changed."
        terminal.line((text, "warn"), mark="note")
    terminal.say(*(TerminalLine(str(path), mark="done") for path in created))
    if commands:
        terminal.say("", TerminalLine(("Next:", "bold")))
        for command, does in commands:
            terminal.line((f"# {does}", "dim"), indent=1)
            terminal.say_unbroken(f"  {command}")
    return FAILED if existing else DONE


def _list_commands(home: Path) -> list[tuple[str, str]]:
    """Return the next command lines to run, and what each does."""
    return [
        (shlex.join([*find_program(), *build_home_option(home), *words]), does)
        for words, does in (
            (("run", str(home / PLANS / PLAN)), "runs the plan: it asks you before it writes a note"),
            (("config", "print", "claude-code"), "prints what connects Claude Code; or another host"),
            (("doctor",), "checks everything"),
        )
    ]


def create_home(home: Path) -> list[Path]:
    """Make the folder, if it is missing, and new files in it. Return the files.

    Raises:
        StoreError: the folder or a file cannot be made, or a file exists already.
    """
    created: list[Path] = []
    try:
        is_ours = not home.exists() or not any(home.iterdir())
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_ours and sys.platform != "win32":
            # The umask may have reduced the mode of `mkdir`, and an empty folder that existed may have another mode.
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
