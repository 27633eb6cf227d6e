"""Every command of the parser has a handler in `planwarden.server.cli.commands`."""

import argparse
from collections.abc import Iterator, Mapping
from typing import cast

import pytest

from planwarden.server.cli.command_parser import Parser
from planwarden.server.cli.hosts import CLIENTS
from planwarden.server.cli.operator_commands import HOSTS
from planwarden.server.cli.parser import build_parser
from planwarden.server.cli.program import load_handler


def find_handlers(parser: Parser) -> Iterator[str]:
    # argparse has no public way to read the commands of a parser.
    groups = [found for found in parser._actions if found.nargs == argparse.PARSER]  # pyright: ignore[reportPrivateUsage]
    if not groups:
        yield str(parser.get_default("handler"))
    for group in groups:
        for command in cast("Mapping[str, Parser]", group.choices).values():
            yield from find_handlers(command)


def find_commands(parser: Parser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yields every parser with the words that lead to it."""
    yield path, parser
    # As above.
    for group in (found for found in parser._actions if found.nargs == argparse.PARSER):  # pyright: ignore[reportPrivateUsage]
        for name, command in cast("Mapping[str, Parser]", group.choices).items():
            if command.is_read:
                yield from find_commands(command, (*path, name))


@pytest.mark.parametrize("name", [*find_handlers(build_parser())])
def test_every_command_has_a_handler(name: str) -> None:
    """ours: the parser names handlers by text, so that no command waits for the imports of another one"""
    assert callable(load_handler(name))


@pytest.mark.parametrize("path", [path for path, _ in find_commands(build_parser())])
def test_a_parser_of_one_command_reads_and_explains_it_as_the_whole_one_does(path: tuple[str, ...]) -> None:
    """ours: a command line builds only the parsers of the commands that it names"""
    whole, part = dict(find_commands(build_parser())), dict(find_commands(build_parser(path)))
    for end in range(len(path) + 1):
        assert part[path[:end]].format_help() == whole[path[:end]].format_help()


def test_the_parser_knows_every_host() -> None:
    """ours"""
    assert list(HOSTS) == list(CLIENTS)
