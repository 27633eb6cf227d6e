"""The definitions of both tools."""

import pytest

from planwarden.tools.base import Tool
from planwarden.tools.web.extract import web_extract_tool
from planwarden.tools.web.search import web_search_tool


@pytest.mark.parametrize("tool", [web_extract_tool(), web_search_tool(None)], ids=lambda tool: tool.definition.name)
def test_web_tools_are_repeatable_builtins_that_need_no_approval(tool: Tool) -> None:
    definition = tool.definition
    assert (definition.risk, definition.effect, definition.source) == ("read", "read", "builtin")
    assert definition.capabilities == ("web",)
    assert definition.timeout_s is not None
    assert definition.digest
