"""Functions as tools: their schemas, mistakes told where they are written, groups replaced as a whole, results kept."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel, Field, JsonValue, ValidationError, computed_field
from pydantic_core import to_jsonable_python

import planwarden
from planwarden.agent.common.artifact import INLINE_VALUES, MAX_ARTIFACT_BYTES, PREVIEW_CHARS, ResultWithArtifacts
from planwarden.agent.common.errors import StaleDefinition, ToolError, UsageError
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.base import Tool, as_tool, define
from planwarden.tools.function import build_reader, tool
from planwarden.tools.registry import MAX_FORMER_BYTES
from tests.kit import Ledger, Registry, decide, first_only, plan, requirement, tool_step, warden
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
    assert registry.find_former(first.digest) == first
    registry.replace_group("g", [])
    with pytest.raises(ToolError, match="no longer exists"):
        await registry.call("g_a", {}, build_context(first.digest))


def test_the_oldest_former_definitions_are_forgotten_when_all_together_are_too_large() -> None:
    registry = Registry()
    digests: list[str] = []
    large: dict[str, JsonValue] = {"type": "object", "description": "x" * (MAX_FORMER_BYTES // 2 - 100)}
    for number in range(4):
        registry.replace_group("g", [build_tool("g_a", f"{number}", large)])
        digests.append(registry.definitions()[0].digest)
    assert [registry.find_former(digest) is not None for digest in digests] == [False, True, True, False]


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
async def test_a_large_result_has_the_same_text_as_if_encoded_at_once(returned: object, expected: JsonValue) -> None:
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


YES = planwarden.Decision(approved=True, reason="go ahead", content={"city": "Bern"})
FORM: dict[str, JsonValue] = {"type": "object", "properties": {"city": {"type": "string"}}}


def look(what: str) -> str:
    """Look."""
    return what


@requirement("decorator:words")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"effect": "raed"}, "effect is 'raed' (did you mean 'read'?); use 'read', 'idempotent' or 'effect'"),
        ({"risk": "rd"}, "risk is 'rd'; use 'read', 'confirm', 'dangerous' or 'critical'"),
        ({"execution_mode": "bloking"}, "execution_mode is 'bloking' (did you mean 'blocking'?)"),
        ({"on_timeout": None}, "on_timeout is None; use 'reject' or 'approve'"),
        ({"timeout_s": float("inf")}, "timeout_s is inf; a limit is more than 0"),
        ({"name": 5}, "name is 5; use text"),
        ({"capabilities": "mail"}, "capabilities is 'mail'; use a list of words"),
        ({"on_resume": {}}, "on_resume is {}; give a function"),
    ],
)
def test_a_wrong_word_of_the_decorator_is_refused_with_its_file_and_line(words: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        planwarden.tool(**words)(look)
    assert message in refused.value.message
    assert f"test_python_tools.py:{look.__code__.co_firstlineno}: " in refused.value.message


def take_unknown(x: object) -> None:
    raise AssertionError(x)


take_unknown.__annotations__["x"] = "Unknown"


def test_an_annotation_that_cannot_be_read_is_refused_with_its_file_and_line() -> None:
    with pytest.raises(UsageError, match="an annotation cannot be read: name 'Unknown'") as refused:
        planwarden.tool(take_unknown)
    assert f"test_python_tools.py:{take_unknown.__code__.co_firstlineno}: " in refused.value.message


@requirement("decorator:words")
def test_a_tool_that_only_needs_to_be_read_only_reads() -> None:
    def effect_of(**words: Any) -> str:
        return as_tool(planwarden.tool(**words)(lambda: None)).definition.effect

    assert effect_of(name="a", risk="read") == "read"
    assert effect_of(name="a", risk="read", effect="effect") == effect_of(name="a") == "effect"


@requirement("decorator:words")
@pytest.mark.parametrize("words", [{"on_timeout": "aprove"}, {"risk": "rd"}, {"timeout_s": 0}, {"message": 5}])
def test_a_question_with_a_wrong_word_fails_its_call(words: Any) -> None:
    with pytest.raises(ToolError, match="its question cannot be asked"):
        cast("Any", planwarden.Suspend)(**{"message": "Book it?", **words})


def booking(finish: Callable[..., object]) -> object:
    @planwarden.tool(execution_mode="blocking", risk="confirm", on_resume=finish)
    async def book(seat: str) -> planwarden.Suspend:
        """Hold a seat and ask where it is for."""
        return planwarden.Suspend(message=f"Where to with {seat}?", form=FORM, resume_payload={"hold": seat})

    return book


def subscript(payload: JsonValue, decision: Any) -> str:
    return decision["city"]


def stop(payload: JsonValue, decision: Any) -> str:
    raise SystemExit(3)


def mended(payload: JsonValue, decision: Any) -> str:
    return f"booked for {decision.content['city']}"


def return_the_decision(payload: JsonValue, decision: planwarden.Decision) -> object:
    return decision


@requirement("decorator:on-resume")
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (subscript, f"test_python_tools.py:{subscript.__code__.co_firstlineno + 1} with TypeError: "),
        (stop, f"test_python_tools.py:{stop.__code__.co_firstlineno + 1} with SystemExit: 3"),
        (return_the_decision, "what it returned cannot be kept"),
    ],
)
async def test_a_mistake_in_on_resume_is_named_with_its_line_and_the_mended_one_gets_the_same_answer(
    mistake: Callable[..., object], message: str
) -> None:
    functions, received = [mistake], list[object]()

    def finish(payload: JsonValue, decision: planwarden.Decision) -> object:
        assert payload == {"hold": "4A"}
        received.append(decision)
        return functions[0](payload, decision)

    async with warden(Ledger(), tools=[booking(finish)]) as w:
        booked = await w.execute_plan(plan(tool_step("a", "book", {"seat": "4A"})))
        asked = await w.resume_execution(booked.thread_id, booked.suspensions[0].suspension_id, YES)
        [question] = asked.suspensions
        assert question.kind == "reconcile"
        [reason] = [found for found in question.found if message in found]
        assert "the person's answer is kept" in reason
        functions[0] = mended
        did_not = planwarden.Decision(approved=True, content={"happened": False})
        done = await w.resume_execution(asked.thread_id, question.suspension_id, did_not)
    assert done.status == "completed" and done.steps[0].result == "booked for Bern"
    assert received == [YES, YES]


def test_the_schema_of_a_signature_is_the_same_in_every_version() -> None:
    @planwarden.tool
    def book(seat: str, days: Annotated[int, Field(ge=1)], notes: list[str] | None = None, price: float = 1.5) -> None:
        """Book."""

    definition = as_tool(book).definition
    assert json.dumps(definition.input_schema) == (
        '{"additionalProperties": false, "properties": {"seat": {"type": "string"}, '
        '"days": {"minimum": 1, "type": "integer"}, '
        '"notes": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": null}, '
        '"price": {"default": 1.5, "type": "number"}}, "required": ["seat", "days"], "type": "object"}'
    )
    assert build_reader("x", {})[0] == {"additionalProperties": False, "properties": {}, "type": "object"}


def test_a_function_gets_values_of_its_annotated_types() -> None:
    _, read = build_reader("x", {"when": (float, ...), "ids": (list[int], ...), "note": (str | None, None)})
    assert repr(read({"when": 5, "ids": [1, 2.0, "3"]})) == "{'when': 5.0, 'ids': [1, 2, 3], 'note': None}"
    sent: tuple[dict[str, Any], ...] = ({}, {"when": "soon", "ids": []}, {"when": 5, "ids": [], "more": 1})
    for wrong in sent:
        with pytest.raises(ValidationError):
            read(wrong)


class Label(BaseModel):
    tag: str = "x"


class Options(BaseModel):
    force: bool = True
    depth: int
    label: Label = Label()
    inner: "Options | str | None" = None


USUAL = cast("Options", {"depth": 0})
"""A default that pydantic does not check, so that its schema lacks what the model adds to it."""


@requirement("approval:defaults")
@pytest.mark.parametrize(
    "arguments",
    [
        {"o": {"depth": 1}},
        {"o": {"depth": 1, "label": {}, "inner": {"depth": 2, "inner": {"depth": 3, "force": False}}}},
        {"o": {"depth": 1, "inner": "none"}, "rows": [{"depth": 2}, {"depth": 3, "label": {"tag": "y"}}]},
        {"o": {"depth": 1}, "named": {"a": {"depth": 2}, "b": {"depth": 3}}, "pair": [{"depth": 4}, 5]},
    ],
)
async def test_a_question_shows_every_default_of_the_models_that_the_function_gets(arguments: Any) -> None:
    received: list[object] = []

    @planwarden.tool
    async def sweep(
        o: Options,
        rows: list[Options] | None = None,
        named: dict[str, Options] | None = None,
        pair: tuple[Options, int] | None = None,
        usual: Options = USUAL,
    ) -> None:
        """Sweep."""
        values = {"o": o, "rows": rows, "named": named, "pair": pair, "usual": usual}
        received.append(to_jsonable_python(values))

    async with warden(tools=[sweep]) as w:
        asked = await w.execute_plan(plan(tool_step("a", "sweep", arguments)))
        [question] = asked.suspensions
        assert received == []
        await decide(w, question)
    assert question.tool_call is not None and received == [question.tool_call.arguments]


def test_a_default_that_json_cannot_hold_is_left_out_of_the_schema_without_a_warning() -> None:
    schema, read = build_reader("note", {"at": (int, object)})
    assert schema["properties"] == {"at": {"type": "integer"}} and read({})["at"] is object


def test_a_parameter_may_be_called_as_a_method_of_a_model_is() -> None:
    names = ("json", "copy", "schema", "model_dump", "model_validate", "model_fields", "self")
    _, read = build_reader("x", {name: (str, name) for name in names})
    assert read({"json": "a"}) == {**{name: name for name in names}, "json": "a"}


def hide(_context: CallContext, _place: str) -> None:
    """Name a parameter that pydantic leaves out of a model."""


def configure(model_config: str = "x") -> None:
    """Name a parameter like the configuration of a model."""


def divide(share: float = float("nan")) -> None:
    """Have a default that JSON cannot hold."""


def list_slowly() -> Iterator[int]:
    """Do nothing until somebody reads the result."""
    yield 1


async def list_later() -> AsyncIterator[int]:
    """Do nothing at all when a call only awaits it."""
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (hide, "parameter '_place' cannot be passed by name"),
        (configure, "parameter 'model_config' cannot be passed by name"),
        (divide, "it contains NaN"),
        (list_slowly, "'list_slowly' uses yield; return the whole result instead"),
        (list_later, "'list_later' uses yield"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_with_its_file_and_line(
    function: Callable[..., None], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        planwarden.tool(function)
    assert f"test_python_tools.py:{function.__code__.co_firstlineno}: " in refused.value.message


def test_a_class_is_refused_as_a_tool() -> None:
    with pytest.raises(UsageError, match="'Registry' is a class; mark a function"):
        planwarden.tool(Registry)


@pytest.mark.parametrize("parameters", [{"x": (object(), ...)}, {"x": (Registry, ...)}])
def test_a_signature_without_a_json_schema_is_refused(parameters: Any) -> None:
    with pytest.raises(UsageError, match="its signature has no JSON schema"):
        build_reader("x", parameters)
