"""Scripts that complete commands, options and choices in a shell. They are static, so no key press starts Python.

Ids are not completed: reading them takes as long as `planwarden list`, and every command takes the beginning of an id.
"""

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

import msgspec

from planwarden.server.cli.command_parser import Parser

BASH = """\
_planwarden_offer() {{
  COMPREPLY=($(compgen -W "$1" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
_planwarden() {{
  local word path= takes= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    if [ -n "$takes" ]; then
      takes=
    else
      case "$path $word" in
        {commands}) path="$path $word" ;;
      esac
      case "$word" in
        {values}) takes="$word" ;;
      esac
    fi
  done
  case "$path $takes" in
{choices}
    *" --"*) return ;;
  esac
  # Where a file or an id may follow, options are offered only after a dash.
  case "$path|${{COMP_WORDS[COMP_CWORD]}}" in
{words}
  esac
}}
complete -o default -F _planwarden planwarden
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


class CommandWords(msgspec.Struct, frozen=True):
    """What may follow one command."""

    path: tuple[str, ...]
    """The words of the command; none for the whole command line."""
    commands: Mapping[str, str]
    """Its sub-commands, and what each does."""
    options: Mapping[str, argparse.Action]
    choices: tuple[str, ...]
    """What its argument may be, where that is a choice."""
    takes_text: bool
    """It has an argument that is no choice."""


def collect_words(parser: Parser, path: tuple[str, ...] = ()) -> Iterator[CommandWords]:
    """Yields every command after the one that it belongs to."""
    actions = parser.actions
    groups = [action for action in actions if action.nargs == argparse.PARSER]
    children = {name: child for group in groups for name, child in cast("Mapping[str, Parser]", group.choices).items()}
    positional = [action for action in actions if not action.option_strings and action not in groups]
    yield CommandWords(
        path,
        {name: child.description or "" for name, child in children.items()},
        {flag: action for action in actions for flag in action.option_strings if flag.startswith("--")},
        tuple(str(choice) for action in positional for choice in action.choices or ()),
        any(action.choices is None for action in positional),
    )
    for name, child in children.items():
        yield from collect_words(child, (*path, name))


def write_bash(parser: Parser) -> str:
    """Returns the script for bash."""
    found = [*collect_words(parser)]
    paths = [" ".join(["", *entry.path]) for entry in found]
    values = {flag for entry in found for flag, action in entry.options.items() if action.nargs != 0}
    choices = [
        f'    "{path} {flag}") {_offer(map(str, action.choices))}; return ;;'
        for path, entry in zip(paths, found, strict=True)
        for flag, action in entry.options.items()
        if action.choices is not None
    ]
    words = [
        f'    "{path}|{"-" if entry.takes_text else ""}"*) '
        f"{_offer([*entry.commands, *entry.choices, *entry.options])} ;;"
        for path, entry in zip(paths, found, strict=True)
    ]
    return BASH.format(
        commands=" | ".join(f'"{path}"' for path in paths if path),
        values=" | ".join(sorted(values)),
        choices="\n".join(choices),
        words="\n".join(words),
    )


def write_zsh(parser: Parser) -> str:
    """Returns the script for zsh, which reads that for bash."""
    return ZSH + write_bash(parser)


def write_fish(parser: Parser) -> str:
    """Returns the script for fish."""
    lines = ["complete -c planwarden -e"]
    for entry in collect_words(parser):
        here = _fish_condition(entry)
        lines += [
            f"complete -c planwarden -f -n {here} -a {name} -d {shlex.quote(text)}"
            for name, text in entry.commands.items()
        ]
        lines += [f"complete -c planwarden -f -n {here} -a {choice}" for choice in entry.choices]
        for flag, action in entry.options.items():
            takes = "" if action.nargs == 0 else " -r"
            offers = "" if action.choices is None else f" -f -a {shlex.quote(' '.join(map(str, action.choices)))}"
            text = shlex.quote((action.help or "").replace("; default %(default)s", ""))
            lines.append(f"complete -c planwarden -n {here} -l {flag[2:]}{takes}{offers} -d {text}")
    return "\n".join(lines) + "\n"


SCRIPTS: Mapping[str, Callable[[Parser], str]] = {"bash": write_bash, "zsh": write_zsh, "fish": write_fish}


def _offer(words: Iterable[str]) -> str:
    return f'_planwarden_offer "{" ".join(words)}"'


def _fish_condition(entry: CommandWords) -> str:
    if not entry.path:
        return "__fish_use_subcommand"
    parts = [f"__fish_seen_subcommand_from {word}" for word in entry.path]
    if entry.commands:
        parts.append(f"not __fish_seen_subcommand_from {' '.join(entry.commands)}")
    return shlex.quote("; and ".join(parts))
