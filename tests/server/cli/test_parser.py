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


@pytest.mark.parametrize("name", [*find_handlers(build_parser())])
def test_every_command_has_a_handler(name: str) -> None:
    assert callable(load_handler(name))


def test_the_parser_knows_every_host() -> None:
    assert list(HOSTS) == list(CLIENTS)
