"""What several commands read from their arguments: home, settings, and NAME=VALUE pairs."""

import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.server.settings.configuration import HOME_VARIABLE, STORE_VARIABLE, Settings, find_home, load_settings

NEEDS_NO_HOME = frozenset(
    ("serve", "init", "demo", "doctor", "guard", "config", "service", "completion", "keys:handle_new_secret")
)
"""Modules and handlers of the commands that make the home or do without: all others work on what is in one."""


def is_home_named(home: Path | None) -> bool:
    """Return whether somebody named the home: the default one is made by the first execution."""
    return home is not None or bool(os.environ.get(HOME_VARIABLE))


def describe_missing_home(folder: Path) -> str | None:
    """Return a sentence about a home that is not a folder, with the way out; None for a folder."""
    if folder.is_dir():
        return None
    if os.path.lexists(folder):
        return f"{folder} is not a folder; name another one with --home or {HOME_VARIABLE}"
    home = () if folder == find_home(None, {}) else ("--home", str(folder))
    command = shlex.join(["planwarden", *home, "init"])
    return f"there is no folder {folder}; `{command}` makes it, with settings, a tool and a plan that runs"


def build_program(arguments: Namespace) -> str:
    """Return what a command begins with that works on the home of these arguments."""
    return shlex.join(["planwarden", *(() if arguments.home is None else ("--home", str(arguments.home)))])


def check_home(arguments: Namespace) -> None:
    """Raise `UsageError` if a command that needs a home was given one that is not there, and no store elsewhere."""
    names = {arguments.handler, arguments.handler.partition(":")[0]}
    if names & NEEDS_NO_HOME or arguments.store or os.environ.get(STORE_VARIABLE):
        return
    missing = describe_missing_home(find_home(arguments.home, os.environ)) if is_home_named(arguments.home) else None
    if missing is not None:
        raise UsageError(missing)


def read_settings(arguments: Namespace) -> Settings:
    """Returns the settings that a command works with, as `load_settings` does."""
    return load_settings(
        home=arguments.home, model=arguments.model, mcp_config=arguments.mcp_config, store=arguments.store
    )


def split_pairs(pairs: Sequence[str], option: str = "--arg") -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each `NAME=VALUE`. Raises `InvalidArguments` for any other form."""
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidArguments(f"{option} {pair[:80]!r} is not NAME=VALUE")
        yield name, text
