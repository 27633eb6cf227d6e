"""What several commands read from their arguments: settings, and NAME=VALUE pairs."""

from argparse import Namespace
from collections.abc import Iterator, Sequence

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.configuration import Settings, load_settings


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
