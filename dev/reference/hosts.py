"""The blocks to paste, from the code that prints them."""

from collections.abc import Callable
from functools import partial

from planwarden.server.cli.hosts import CLIENTS, LaunchCommand

LAUNCH = LaunchCommand("uvx", ("planwarden",))
_LANGUAGES = {"codex": "toml", "goose": "yaml"}


def pasted(name: str) -> str:
    """The block of one host, and where it goes."""
    client = CLIENTS[name]
    fence = f"```{_LANGUAGES.get(name, 'json')}\n{client.write(LAUNCH)}\n```"
    return f"Goes into: {client.where}\n\n{fence}"


BLOCKS: dict[str, Callable[[], str]] = {f"config {name}": partial(pasted, name) for name in CLIENTS}
