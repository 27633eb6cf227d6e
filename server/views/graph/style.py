"""The style of every graph, apart from its drawing: the page of the MCP App is made before a server's first answer."""

from functools import cache
from importlib.resources import files


@cache
def read_rules() -> str:
    """Returns the style sheet of every graph, without its font and colours."""
    return files("planwarden.server.views.graph").joinpath("graph.css").read_text(encoding="utf-8")
