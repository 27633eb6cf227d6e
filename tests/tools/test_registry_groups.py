"""Groups of tools in the catalogue are replaced as a whole or not at all; other tools stay."""

import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import StaleDefinition, ToolError, UsageError
from planwarden.agent.common.schema import Schema
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, define
from planwarden.tools.builtin.calculator import calculator_tool
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION, REQUEST_INPUT, WAIT
from planwarden.tools.delegate.delegation import DelegationTool
from planwarden.tools.guarded.host_tool import find_host_tool
from planwarden.tools.registry import Registry
from planwarden.tools.web.extract import web_extract_tool
from planwarden.tools.web.search import web_search_tool
from tests.requirements import requirement


def build_tool(name: str, description: str = "A tool.", schema: dict[str, JsonValue] | None = None) -> Tool:
    async def call(arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
        return description

    return Tool(define(ToolDefinition(name=name, description=description, input_schema=schema or {})), call)


def build_context(digest: str = "") -> CallContext:
    return CallContext(execution_id="e", step_id="s", call_id="s:1", idempotency_key="e:s:1", definition_digest=digest)


def test_the_schemas_of_our_own_tools_which_only_their_first_call_compiles_are_right() -> None:
    own = [
        calculator_tool(),
        DISPLAY_CONFIRMATION,
        REQUEST_INPUT,
        WAIT,
        web_extract_tool(),
        web_search_tool(None),
        DelegationTool(()).tool(),
        find_host_tool("somewhere/Bash"),
    ]
    for tool in own:
        assert tool is not None
        assert tool.definition.source == "builtin"
        assert Schema(tool.definition.input_schema).find_faults([]) != ()


@requirement("catalogue:dynamic")
def test_definitions_are_the_same_object_until_something_changes() -> None:
    registry = Registry([build_tool("own")])
    registry.replace_group("g", [build_tool("g_a"), build_tool("g_b")])
    before = registry.definitions()
    assert registry.definitions() is before
    registry.mark_group("g", None)
    assert registry.definitions() is before
    registry.mark_group("g", "it is down")
    after = registry.definitions()
    assert after is not before
    assert [(found.name, found.unavailable) for found in after] == [
        ("g_a", "it is down"),
        ("g_b", "it is down"),
        ("own", None),
    ]
    assert [found.digest for found in before] == [found.digest for found in after]


@requirement("catalogue:dynamic")
def test_a_group_with_one_bad_tool_changes_nothing() -> None:
    registry = Registry([build_tool("own")])
    registry.replace_group("g", [build_tool("g_a")])
    before = registry.definitions()
    for bad in (build_tool("own"), build_tool("bad name"), build_tool("g_b", schema={"type": "no such type"})):
        with pytest.raises(UsageError):
            registry.replace_group("g", [build_tool("g_c"), bad])
    with pytest.raises(UsageError, match="two tools"):
        registry.replace_group("h", [build_tool("g_a")])
    assert registry.definitions() is before


@pytest.mark.anyio
async def test_a_call_of_a_tool_that_changed_is_not_run() -> None:
    registry = Registry()
    registry.replace_group("g", [build_tool("g_a", "First.")])
    assert [found.name for found in registry.search("first", 5)] == ["g_a"]
    first = registry.get("g_a")
    assert first is not None
    assert await registry.call("g_a", {}, build_context(first.digest)) == "First."
    registry.replace_group("g", [build_tool("g_a", "Second.")])
    assert registry.search("first", 5) == []
    with pytest.raises(StaleDefinition):
        await registry.call("g_a", {}, build_context(first.digest))
    assert registry.earlier(first.digest) == first
    registry.replace_group("g", [])
    with pytest.raises(ToolError, match="no longer exists"):
        await registry.call("g_a", {}, build_context(first.digest))
