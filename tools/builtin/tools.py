"""The list of the built-in tools."""

from collections.abc import Mapping

from planwarden.tools.base import Tool
from planwarden.tools.builtin.calculator import calculator_tool
from planwarden.tools.builtin.human import ASKING_TOOLS
from planwarden.tools.web.extract import web_extract_tool
from planwarden.tools.web.search import search_endpoint_from_environment, web_search_tool


def list_builtin_tools(environment: Mapping[str, str]) -> list[Tool]:
    """Return every built-in tool except `delegate_to_agent`, which exists only if a downstream server is an agent.

    Raises `UsageError`: the environment names a search service that cannot be used.
    """
    search = web_search_tool(search_endpoint_from_environment(environment))
    return [calculator_tool(), *ASKING_TOOLS.values(), web_extract_tool(), search]
