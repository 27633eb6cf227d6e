"""The catalogue: groups of tools are replaced as a whole or not at all, and what a tool returned is kept.

A large result is encoded on a worker thread: the same text, and the event loop turns.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import pytest
from pydantic import BaseModel, JsonValue, computed_field

from planwarden.agent.common.artifact import INLINE_VALUES, MAX_ARTIFACT_BYTES, PREVIEW_CHARS, ResultWithArtifacts
from planwarden.agent.common.errors import StaleDefinition, ToolError, UsageError
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.base import Tool, as_tool, define
from planwarden.tools.function import tool
from tests.kit import Registry, first_only, requirement
from tests.support.loop_time import MAX_TURN_S, measure_longest_turn


def build_tool(name: str, description: str = "A tool.", schema: dict[str, JsonValue] | None = None) -> Tool:
    async def call(arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
        return description

    return Tool(define(ToolDefinition(name=name, description=description, input_schema=schema or {})), call)


def build_context(digest: str = "") -> CallContext:
    return CallContext(execution_id="e", step_id="s", call_id="s:1", idempotency_key="e:s:1", definition_digest=digest)


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


MANY = INLINE_VALUES + 1
ODD = '\u00e9\n"\\\ud800\U0001f600' * 100_000


@dataclass
class Row:
    day: date


@dataclass
class Rows:
    rows: list[int]


class Moody(BaseModel):
    @computed_field
    @property
    def mood(self) -> str:
        raise KeyError("mood")


async def call(
    returned: object, max_result_bytes: int = MAX_ARTIFACT_BYTES
) -> JsonValue | ResultWithArtifacts | Suspend:
    @tool(risk="read", effect="read")
    async def big() -> object:
        return returned

    registry = Registry([as_tool(big)], max_result_bytes=max_result_bytes)
    return await registry.call("big", {}, build_context())


ENCODED: list[tuple[object, object]] = [
    ([[]] * MANY, [[]] * MANY),
    ({number: [number] for number in range(MANY)}, {str(number): [number] for number in range(MANY)}),
    ({"a": (1, 2.5, None), "text": ODD, "rows": [{}] * MANY}, {"a": [1, 2.5, None], "text": ODD, "rows": [{}] * MANY}),
    ([[["x" * 300_000], {}], "y" * 300_000], [[["x" * 300_000], {}], "y" * 300_000]),
    ("z" * 300_000, "z" * 300_000),
    ([Row(date(2026, 1, 2))] * MANY, [{"day": "2026-01-02"}] * MANY),
    ({"x" * 300_000: {"": 1}}, {"x" * 300_000: {"": 1}}),
]


@pytest.mark.parametrize(("returned", "expected"), ENCODED)
async def test_a_large_result_has_the_same_text_as_if_it_was_encoded_at_once(
    returned: object, expected: JsonValue
) -> None:
    found = await call(returned)
    assert isinstance(found, ResultWithArtifacts)
    text = json.dumps(expected, separators=(",", ":"))
    assert found.artifacts[0].data.decode() == text
    assert isinstance(found.value, dict)
    preview = expected if isinstance(expected, str) else text
    assert (found.value["preview"], found.value["sizeBytes"]) == (preview[:PREVIEW_CHARS], len(text))


@pytest.mark.parametrize("returned", [[[1]] * MANY, ["\u00e9" * 5_000] * 50, Rows([1] * 50_000), [0] * 1_000_001])
async def test_a_result_that_is_too_large_to_be_kept_fails_the_call_and_shows_its_beginning(returned: object) -> None:
    limit = MAX_ARTIFACT_BYTES if returned == [0] * 1_000_001 else 80_000
    with pytest.raises(
        ToolError, match=rf"^big ran, but .* it has more than {limit} bytes or 1000000 values; it begins with .[\[{{]"
    ):
        await call(returned, max_result_bytes=limit)


def nest(value: object, levels: int) -> object:
    for _ in range(levels):
        value = [value]
    return value


def build_circle() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ([float("nan")] * MANY, "not JSON compliant"),
        ([*[0] * MANY, 10**5_000], "."),
        ([10**5_000, "x" * 400_000], "thousands of digits"),
        ([nest(1, 70), [0] * MANY], "nested deeper than 64 levels"),
        (nest([0] * MANY, 70), "nested deeper than 64 levels"),
        (nest(1, 70), "nested deeper than 64 levels"),
        (build_circle(), "."),
        ([object()] * MANY, "object"),
        (Moody(), "cannot be kept"),
    ],
)
async def test_a_large_result_without_json_text_fails_the_call(returned: object, why: str) -> None:
    with pytest.raises(ToolError, match=why):
        await call(returned)


@requirement("results:encoding")
@pytest.mark.parametrize("kind", first_only("rows", "lists", "text"))
async def test_the_event_loop_turns_while_a_large_result_is_encoded(kind: str) -> None:
    values: dict[str, Callable[[], object]] = {
        "rows": lambda: [{"id": number, "name": f"name {number}", "tags": ["a", "b"]} for number in range(100_000)],
        "lists": lambda: [list[int]() for _ in range(900_000)],
        "text": lambda: "x\u00e9\n" * 900_000,
    }
    value = values[kind]()
    longest_s, turns = await measure_longest_turn(lambda: call(value))
    assert longest_s < MAX_TURN_S
    assert turns > 10
