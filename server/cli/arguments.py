"""What several commands read from their arguments: home, settings, the store, and NAME=VALUE pairs."""

import os
import shlex
import stat
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.settings.configuration import HOME_VARIABLE, STORE_VARIABLE, Settings, find_home, load_settings


def is_home_named(home: Path | None) -> bool:
    """Return whether somebody named the home. A default home need not exist: the first execution creates it."""
    return home is not None or bool(os.environ.get(HOME_VARIABLE))


def describe_missing_home(folder: Path) -> str | None:
    """Return what is wrong with a home that is not a folder, and what to do; None for a folder."""
    try:
        if stat.S_ISDIR(folder.stat().st_mode):
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        return f"{folder} cannot be reached: {error.strerror}; name another home with --home or {HOME_VARIABLE}"
    if os.path.lexists(folder):
        return f"{folder} is not a folder; name another one with --home or {HOME_VARIABLE}"
    home = () if folder == find_home(None, {}) else ("--home", str(folder))
    command = shlex.join(["planwarden", *home, "init"])
    return f"there is no folder {folder}; `{command}` makes it, with settings, a tool and a plan that runs"


def build_program(arguments: Namespace) -> str:
    """Return the beginning of a command line that works on the home of these arguments."""
    return shlex.join(["planwarden", *(() if arguments.home is None else ("--home", str(arguments.home)))])


def check_home(arguments: Namespace) -> None:
    """Raise `UsageError` if the command needs a home, the named one is missing, and no store was named instead."""
    if not arguments.needs_home or arguments.store or os.environ.get(STORE_VARIABLE):
        return
    missing = describe_missing_home(find_home(arguments.home, os.environ)) if is_home_named(arguments.home) else None
    if missing is not None:
        raise UsageError(missing)


def read_settings(arguments: Namespace, *, has_servers: bool = True) -> Settings:
    """Return the settings that `load_settings` loads for these arguments."""
    return load_settings(
        home=arguments.home,
        model=arguments.model,
        mcp_config=arguments.mcp_config,
        store=arguments.store,
        has_servers=has_servers,
    )


def split_pairs(pairs: Sequence[str], option: str = "--arg", *, is_unique: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each `NAME=VALUE`.

    Raises:
        InvalidArguments: a pair has another form, or, with `is_unique`, a name occurs twice.
    """
    names: set[str] = set()
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidArguments(f"{option} {pair[:80]!r} is not NAME=VALUE")
        if is_unique and name in names:
            raise InvalidArguments(f"{option} names {name!r} twice")
        names.add(name)
        yield name, text


def read_value(text: str) -> JsonValue:
    """Return the JSON value of the text, or the text if it is not JSON. Raises `LimitExceeded` if nested too deeply."""
    try:
        return read_json(text)
    except InvalidArguments:
        return text


def add_plan_arguments(parser: CommandParser) -> None:
    """Add the arguments that name a plan and its inputs."""
    parser.take("plan PLAN", "name of a saved plan, or the file of any plan, or - for JSON on standard input")
    add_inputs(parser, "an input; the value is JSON, or text where the plan takes text")


def add_inputs(parser: CommandParser, meaning: str) -> None:
    parser.take("--input NAME=VALUE", meaning, action="append", default=[])
    parser.take("--inputs FILE", "file with inputs as one object, YAML or JSON; --input adds to it")


def read_count(text: str) -> int:
    """Return a number from 1 to 10000. Raises `ArgumentTypeError` for any other text."""
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= 10_000:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return count
