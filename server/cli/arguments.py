"""What several commands read from their arguments: settings, and NAME=VALUE pairs."""

from argparse import Namespace
from collections.abc import Iterator, Sequence

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.configuration import Settings, load_settings


def read_settings(arguments: Namespace) -> Settings:
    """Returns the settings of the home, for a command that calls neither models nor tools."""
    return load_settings(home=arguments.home)


def split_pairs(pairs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each `NAME=VALUE`. Raises `InvalidArguments` for any other form."""
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InvalidArguments(f"--arg {pair[:80]!r} is not NAME=VALUE")
        yield name, text
