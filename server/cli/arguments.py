"""The parser of the commands, whose errors suggest the word that was probably meant, and functions that read arguments
of several commands: the home, settings, NAME=VALUE.
"""

import argparse
import ast
import os
import re
import shlex
import stat
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.cli.output import USAGE
from planwarden.server.settings.configuration import HOME_VARIABLE, STORE_VARIABLE, Settings, find_home, load_settings
from planwarden.storage.location import read_location

Handler = Callable[[Namespace], int]
"""Runs a command and returns its exit code."""
MAX_QUOTED_CHARS = 200
_NOT_A_CHOICE = re.compile(
    r"argument (.+?): invalid choice: ((['\"]).*?\3)(?:, maybe you meant .*)? \(choose from .*\)", re.DOTALL
)
_NOT_A_NUMBER = re.compile(r"argument (.+?): invalid (?:int|float) value: (.*)", re.DOTALL)
_MISSING = re.compile(r"the following arguments are required: (.*)", re.DOTALL)


def read_path(text: str) -> Path:
    """Return the path. Raises `ArgumentTypeError` if the text is empty, such as the text of an unset shell variable."""
    if not text:
        raise ArgumentTypeError("the path is empty")
    return Path(text)


class CommandParser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, with the word that was probably meant.

    The module of a command adds the arguments when the command's parser is first used, so that no command waits for
    the imports of another one.
    """

    def __init__(self, *, module: str = "", **how: Any) -> None:
        self._added: list[argparse.Action] = []
        self._commands: Any = None
        self._module = self._rest = ""
        super().__init__(**how)
        self._module = module

    def load(self) -> None:
        """Let the command's module add the arguments, unless it has added them already."""
        module, self._module = self._module, ""
        if module:
            function = f"add_{self.prog.rpartition(' ')[2].replace('-', '_')}"
            getattr(import_module(f"planwarden.server.cli.commands.{module}"), function)(self)

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """All actions of this parser; argparse has no public list of them."""
        self.load()
        return self._added

    def add_argument(self, *words: Any, **options: Any) -> argparse.Action:
        if options.get("nargs") == "*":
            # Without a default, argparse lists such an argument as required, although it may be left out.
            options.setdefault("default", [])
        return self.note(super().add_argument(*words, **options))

    def declare(self, usage: str, text: str, **how: Any) -> argparse.Action:
        """Add and return an argument, named as in `--days N`. An option without a value is a switch."""
        name, _, metavar = usage.partition(" ")
        if metavar:
            how["metavar"] = metavar
        elif "choices" not in how:
            how.setdefault("action", "store_true")
        return self.add_argument(name, help=text, **how)

    def note(self, action: argparse.Action) -> argparse.Action:
        """Record and return an action that was added to this parser or to a group of its arguments."""
        self._added.append(action)
        return action

    def add_subparsers(self, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.note(super().add_subparsers(parser_class=CommandParser, **options))

    def add_command(self, name: str, handler: Handler, text: str, **how: bool) -> "CommandParser":
        """Add a sub-command and return its parser, which has no arguments of its own yet; `how` goes to `handle`."""
        if self._commands is None:
            self._commands = self.add_subparsers(required=self.get_default("handler") is None)
        parser: CommandParser = self._commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        parser.handle(handler, **how)
        self._commands.metavar = "|".join(self._commands.choices)
        return parser

    def handle(
        self, handler: Handler, *, has_json: bool = True, uses_servers: bool = False, needs_home: bool = True
    ) -> None:
        """Set the function that runs the command, and add the options that many commands have."""
        self.add_options(argparse.SUPPRESS, uses_servers=uses_servers)
        self.set_defaults(handler=handler, json=False, needs_home=needs_home, speaks_protocol=False)
        if has_json:
            self.declare("--json", "print one JSON document on standard output")

    def add_options(self, default: str | None, *, uses_servers: bool = True) -> None:
        """Add the common options. Commands pass `SUPPRESS`: a default must not replace an option before the command."""
        text = "folder of database and settings; default: PLANWARDEN_HOME, else the platform's data folder"
        self.declare("--home DIR", text, type=read_path, default=default)
        text = (
            "postgresql://USER@HOST/DATABASE or sqlite:///FILE; default: PLANWARDEN_STORE, else planwarden.toml, else "
            "planwarden.db in the home"
        )
        self.declare("--store URL", text, default=default)
        text = (
            "caller, scripted:FILE, or a provider's model, such as anthropic:NAME; "
            "default: PLANWARDEN_MODEL, else planwarden.toml, else caller"
        )
        self.declare("--model MODEL", text, default=default)
        if uses_servers:
            text = "downstream servers; default: planwarden.json in the home"
            self.declare("--mcp-config FILE", text, type=read_path, default=default)

    def take_rest(self, name: str, metavar: str, text: str) -> None:
        """Store the words after `--` as `name`, and read none of them as an option or a command."""
        self._rest = name
        self.usage = f"{self.prog} [OPTION ...] [{metavar} ...]"
        self.note(argparse.Action([], name, argparse.REMAINDER, metavar=metavar, help=text))

    def error(self, message: str) -> NoReturn:
        refused = _NOT_A_CHOICE.fullmatch(message)
        if refused is not None:
            message = self._explain_choice(refused[1], ast.literal_eval(refused[2]))
        message = _NOT_A_NUMBER.sub(r"\1: \2 is not a number", message)
        missing = _MISSING.fullmatch(message)
        if missing is not None:
            names = missing[1].replace("|", ", ")
            is_are = "are" if "," in names else "is"
            message = f"{names} {is_are} missing" if self._commands is None else f"name a command: {names}"
        self.exit(USAGE, f"planwarden: {message}; see `{self.prog} --help`\n")

    # The overloads of argparse differ only in the type of the namespace that they return.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse the words. Refuse unknown ones here: only this parser can suggest one of its own options instead."""
        self.load()
        words = list[str](sys.argv[1:] if args is None else args)
        end = words.index("--") if self._rest and "--" in words else len(words)
        own = words[:end]
        self._refuse_unknown(self._find_unknown_option(own))
        parsed, unknown = super().parse_known_args(own, namespace)
        self._refuse_unknown(unknown)
        if self._rest:
            setattr(parsed, self._rest, words[end + 1 :])
        return parsed, unknown

    @property
    def _flags(self) -> dict[str, argparse.Action]:
        return {flag: action for action in self.actions for flag in action.option_strings}

    def _find_unknown_option(self, words: Sequence[str]) -> Sequence[str]:
        """Return the first unknown option before the command, if any: argparse would take its value for the command."""
        index = 0
        while index < len(words) and len(words[index]) > 1 and words[index].startswith("-") and words[index] != "--":
            name, has_value, _ = words[index].partition("=")
            action = self._flags.get(name)
            if action is None:
                return [words[index]]
            index += 1 if has_value or action.nargs == 0 else 2
        return []

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        if words:
            name = words[0].partition("=")[0][:MAX_QUOTED_CHARS]
            is_option = name.startswith("-")
            hint = did_you_mean(name, self._flags)
            self.error(f"there is no option {name!r}{hint}" if is_option else f"unexpected argument {name!r}")

    def _explain_choice(self, argument: str, value: str) -> str:
        """Return the message about a wrong value of an argument; `argument` is argparse's name for the argument."""
        action = next(a for a in self.actions if argument == ("/".join(a.option_strings) or a.metavar or a.dest))
        choices = list(map(str, action.choices or ()))
        kind = "command" if action.nargs == argparse.PARSER else str(action.metavar or action.dest).lower()
        hint = did_you_mean(value, choices) or f"; choose from {', '.join(choices)}"
        return f"there is no {kind} {value[:MAX_QUOTED_CHARS]!r}{hint}"


class ShowVersion(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"planwarden {version('planwarden')}")
        parser.exit()


def is_home_named(home: Path | None) -> bool:
    """Return whether somebody named the home. Only a named home must exist; the first execution creates the default."""
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
    """Raise `UsageError` if the command needs a home, and the folder of the named home or store is missing."""
    if not arguments.needs_home:
        return
    if store := arguments.store or os.environ.get(STORE_VARIABLE):
        path = read_location(store).path
        if path is not None and not os.path.isdir(path.parent):
            raise UsageError(
                f"there is no folder {path.parent}, so no store {path}; make the folder, or name another one"
            )
    elif is_home_named(arguments.home) and (missing := describe_missing_home(find_home(arguments.home, os.environ))):
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


def read_count(text: str) -> int:
    """Return a number from 1 to 10000. Raises `ArgumentTypeError` for any other text."""
    count = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= count <= 10_000:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return count
