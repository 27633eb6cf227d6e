"""A parser of commands that says what was probably meant, and the way to add commands to it."""

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import msgspec

from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.cli.exit_codes import USAGE

MAX_QUOTED_CHARS = 200
_NOT_A_CHOICE = re.compile(
    r"argument (.+?): invalid choice: ((['\"]).*?\3)(?:, maybe you meant .*)? \(choose from .*\)", re.DOTALL
)


class Subparsers(Protocol):
    """What argparse returns from `add_subparsers`."""

    def add_parser(self, name: str, **how: Any) -> Any: ...


class Parser(argparse.ArgumentParser):
    """Reports a usage error in one sentence, with the word that was probably meant."""

    def __init__(self, **how: Any) -> None:
        self.actions = [action for parent in how.get("parents", ()) for action in parent.actions]
        """What was added, which argparse does not tell."""
        super().__init__(**how)

    def add_argument(self, *words: Any, **options: Any) -> argparse.Action:
        return self.note(super().add_argument(*words, **options))

    def add_subparsers(self, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.note(super().add_subparsers(**options))

    def note(self, action: argparse.Action) -> argparse.Action:
        """Return the action, which was added to this parser or to a group of its arguments."""
        self.actions.append(action)
        return action

    @property
    def _flags(self) -> dict[str, argparse.Action]:
        return {flag: action for action in self.actions for flag in action.option_strings}

    def error(self, message: str) -> NoReturn:
        refused = _NOT_A_CHOICE.fullmatch(message)
        if refused is not None:
            message = self._explain_choice(refused[1], ast.literal_eval(refused[2]))
        self.exit(USAGE, f"planwarden: {message}; see `{self.prog} --help`\n")

    # The overloads of argparse say only which type of namespace comes back.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuses what it does not know here, because each command knows only its own options."""
        words = list[str](sys.argv[1:] if args is None else args)
        self._refuse_unknown(self._find_unknown_option(words))
        parsed, unknown = super().parse_known_args(words, namespace)
        self._refuse_unknown(unknown)
        return parsed, unknown

    def _find_unknown_option(self, words: Sequence[str]) -> Sequence[str]:
        """Returns the first unknown option in front of everything else, which would make its value a command."""
        place = 0
        while place < len(words) and len(words[place]) > 1 and words[place].startswith("-") and words[place] != "--":
            name, has_value, _ = words[place].partition("=")
            action = self._flags.get(name)
            if action is None:
                return [words[place]]
            place += 1 if has_value or action.nargs == 0 else 2
        return []

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        if words:
            name = words[0].partition("=")[0]
            hint = did_you_mean(name, self._flags) if name.startswith("-") else ""
            self.error(f"unrecognized arguments: {' '.join(words)[:MAX_QUOTED_CHARS]}{hint}")

    def _explain_choice(self, argument: str, value: str) -> str:
        """Return what to say of a value that is not among the choices of the argument that argparse names like this."""
        for action in self.actions:
            if argument == ("/".join(action.option_strings) or action.metavar or action.dest):
                choices = list(map(str, action.choices or ()))
                kind = "command" if action.nargs == argparse.PARSER else str(action.metavar or action.dest).lower()
                hint = did_you_mean(value, choices) or f"; choose from {', '.join(choices)}"
                return f"there is no {kind} {value[:MAX_QUOTED_CHARS]!r}{hint}"
        raise AssertionError(f"argparse refused a value of {argument}, which was not added")


class ShowVersion(argparse.Action):
    """Prints the version, and reads it only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"planwarden {version('planwarden')}")
        parser.exit()


class CommandGroup(msgspec.Struct, frozen=True):
    """Adds commands to one level of the command line."""

    subparsers: Subparsers
    options: Parser
    """--home, --store and --model, which every command takes."""
    server_options: Parser
    """--mcp-config, which commands take that may call tools."""

    def add(self, name: str, handler: str, text: str, *, has_json: bool = True, uses_servers: bool = False) -> Parser:
        """Add a command and return its parser, which still lacks the command's own arguments."""
        parents = [self.options, self.server_options] if uses_servers else [self.options]
        parser = self.subparsers.add_parser(name, help=text, description=text, parents=parents, allow_abbrev=False)
        parser.set_defaults(handler=handler)
        if has_json:
            parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
        else:
            parser.set_defaults(json=False)
        return parser

    def add_group(self, name: str, commands: str, text: str, *, handler: str | None = None) -> "CommandGroup":
        """Add a command that has sub-commands; `commands` names them for its usage line.

        With a `handler` it also does something without one of them.
        """
        if handler is None:
            parser = self.subparsers.add_parser(name, help=text, description=text)
        else:
            parser = self.add(name, handler, text)
        subparsers = parser.add_subparsers(metavar=commands, required=handler is None)
        return CommandGroup(subparsers, self.options, self.server_options)
