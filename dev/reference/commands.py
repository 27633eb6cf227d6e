"""The commands, from the parser that reads them, and the blocks to paste into hosts."""

import argparse
from collections.abc import Iterator, Mapping
from typing import cast

from dev.reference.code import table
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.hosts import CLIENTS, LaunchCommand
from planwarden.server.cli.output import EXIT_CODES
from planwarden.server.cli.program import build_parser

_EVERYWHERE = ("--help", "--home", "--store", "--model", "--mcp-config", "--json", "--version")
"""Described once for all commands."""


def everywhere() -> str:
    """Flags of many commands."""
    makers = (build_parser(), *(made for words, made in _leaves(build_parser(), ()) if words == ("list",)))
    found = {flag: action for made in makers for action in made.actions for flag in action.option_strings}
    return table(("flag", "meaning"), ((_spelled(found[flag]), _meaning(found[flag])) for flag in _EVERYWHERE))


def commands() -> str:
    """A section for each command."""
    return "\n\n".join(_section(words, made) for words, made in _leaves(build_parser(), ()))


def exit_codes() -> str:
    """The table of exit codes."""
    lines = (line.split(maxsplit=1) for line in EXIT_CODES.strip().splitlines()[1:])
    return table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in lines))


def _leaves(made: CommandParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], CommandParser]]:
    """Yields every command that does something, with the words that call it."""
    groups = [action for action in made.actions if action.nargs == argparse.PARSER]
    if not groups or (words and made.get_default("handler") is not None):
        yield words, made
    for group in groups:
        for name, child in cast("Mapping[str, CommandParser]", group.choices).items():
            yield from _leaves(child, (*words, name))


def _section(words: tuple[str, ...], made: CommandParser) -> str:
    own = [
        action
        for action in made.actions
        if not set(action.option_strings) & set(_EVERYWHERE) and action.nargs != argparse.PARSER
    ]
    usage = " ".join([f"planwarden {' '.join(words)}", *map(_in_usage, own)])
    assert made.description
    parts = [f"### {' '.join(words)}", made.description, f"```console\n$ {usage}\n```"]
    if own:
        rows = ((_spelled(action), _default(action), _meaning(action)) for action in own)
        parts.append(table(("argument", "default", "meaning"), rows))
    if any("--json" in action.option_strings for action in made.actions):
        parts.append("Takes `--json`.")
    return "\n\n".join(parts)


def _name(action: argparse.Action) -> str:
    if action.choices is not None and action.option_strings:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_name(action)}`"
    flag = next(flag for flag in action.option_strings if flag.startswith("--"))
    return f"`{flag}`" if action.nargs == 0 else f"`{flag} {_name(action)}`"


def _in_usage(action: argparse.Action) -> str:
    plain = _spelled(action).strip("`")
    if not action.option_strings:
        return {"*": f"[{plain} ...]", "?": f"[{plain}]"}.get(str(action.nargs), plain)
    again = " ..." if isinstance(action.default, list) else ""
    return f"{plain}{again}" if action.required else f"[{plain}{again}]"


def _default(action: argparse.Action) -> str:
    if action.nargs == 0 or action.default in (None, [], argparse.SUPPRESS):
        return ""
    return f"`{action.default}`"


def _meaning(action: argparse.Action) -> str:
    if not action.help:
        raise ValueError(f"the argument {action.dest!r} has no help; add one to its parser")
    return action.help.replace("; default %(default)s", "")


def config(name: str) -> str:
    """The block of one host, and where it goes."""
    client = CLIENTS[name]
    language = {"codex": "toml", "goose": "yaml"}.get(name, "json")
    return f"Goes into: {client.where}\n\n```{language}\n{client.write(LaunchCommand('uvx', ('planwarden',)))}\n```"
