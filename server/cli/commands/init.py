"""The command `init`: makes the folder with settings, tools and a plan that runs, and says what to do next."""

import os
import shlex
import sys
from argparse import Namespace
from importlib.resources import files
from pathlib import Path

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.hosts import find_program
from planwarden.server.cli.output import DONE, FAILED, write_result
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.catalogue import build_command_prefix
from planwarden.server.settings.configuration import FILE, find_home

TOOLS, PLANS, PLAN = "tools.py", "plans", "first.json"
SOURCES = {FILE: FILE, TOOLS: TOOLS, f"{PLANS}/{PLAN}": PLAN}
"""Each file in the folder, and the file of `planwarden.server.cli.templates` that it is a copy of."""


class InitResult(msgspec.Struct, frozen=True):
    home: Path
    created: tuple[Path, ...]
    existing: tuple[Path, ...]
    """What was there before; then nothing was created."""

    @property
    def commands(self) -> tuple[tuple[str, str], ...]:
        """Command lines to go on with, and what each does; none where nothing was created."""
        if not self.created:
            return ()
        _, *home = build_command_prefix(self.home, None)
        program = (*find_program(), *home)
        return (
            (
                shlex.join([*program, "run", str(self.home / PLANS / PLAN)]),
                "runs the plan: it asks you before it writes a note",
            ),
            (
                shlex.join([*program, "config", "print", "claude-code"]),
                "prints what connects Claude Code; or another host",
            ),
            (shlex.join([*program, "doctor"]), "checks everything"),
        )


def add_init(parser: CommandParser) -> None:
    parser.handle(handle_init, needs_home=False)


def handle_init(arguments: Namespace) -> int:
    result = create_home(find_home(arguments.home, os.environ))
    document: dict[str, JsonValue] = {
        "home": str(result.home),
        "created": [str(path) for path in result.created],
        "found": [str(path) for path in result.existing],
        "next": [command for command, _ in result.commands],
    }
    write_result(arguments, document, lambda terminal: draw_result(terminal, result))
    return FAILED if result.existing else DONE


def create_home(home: Path) -> InitResult:
    """Make the folder and its files. Changes nothing where one of them exists.

    Raises:
        StoreError: the folder or a file cannot be made.
    """
    names = (FILE, TOOLS, PLANS)
    existing = tuple(home / name for name in names if os.path.lexists(home / name))
    if existing:
        return InitResult(home, (), existing)
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
            with open(home / name, "xb", opener=_open_private) as file:
                file.write(text)
            created.append(home / name)
    except OSError as error:
        where = error.filename or str(home)
        raise StoreError(
            f"cannot make {str(where)!r}: {error.strerror or error}; name another folder with --home"
        ) from error
    return InitResult(home, tuple(created), ())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def draw_result(terminal: Terminal, result: InitResult) -> None:
    if result.existing:
        names = ", ".join(path.name for path in result.existing)
        text = f"{result.home} has {names} already; nothing was changed."
        terminal.say(TerminalLine((text, "warn"), mark="note"))
        return
    for path in result.created:
        terminal.say(TerminalLine(str(path), mark="done"))
    terminal.say("", TerminalLine(("Next:", "bold")))
    for command, does in result.commands:
        terminal.say(TerminalLine((f"# {does}", "dim"), indent=1))
        terminal.say_unbroken(f"  {command}")
