"""`@planwarden.tool`: schemas and arguments of signatures, mistakes told where they are written, and `on_resume`."""

import json
from collections.abc import Callable
from typing import Annotated, Any, cast

import pytest
from pydantic import Field, JsonValue, ValidationError

import planwarden
from planwarden.agent.common.errors import ToolError, UsageError
from planwarden.tools.base import as_tool
from planwarden.tools.function import Arguments
from tests.kit import Ledger, plan, requirement, tool_step, warden

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
    assert f"test_decorator.py:{look.__code__.co_firstlineno}: " in refused.value.message


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
        (subscript, f"test_decorator.py:{subscript.__code__.co_firstlineno + 1} with TypeError: "),
        (stop, f"test_decorator.py:{stop.__code__.co_firstlineno + 1} with SystemExit: 3"),
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
    assert Arguments("x", {}).schema == {"additionalProperties": False, "properties": {}, "type": "object"}


def test_a_function_gets_values_of_its_annotated_types() -> None:
    arguments = Arguments("x", {"when": (float, ...), "ids": (list[int], ...), "note": (str | None, None)})
    assert repr(arguments.read({"when": 5, "ids": [1, 2.0, "3"]})) == "{'when': 5.0, 'ids': [1, 2, 3], 'note': None}"
    sent: tuple[dict[str, Any], ...] = ({}, {"when": "soon", "ids": []}, {"when": 5, "ids": [], "more": 1})
    for wrong in sent:
        with pytest.raises(ValidationError):
            arguments.read(wrong)


def test_a_parameter_may_be_called_as_a_method_of_a_model_is() -> None:
    names = ("json", "copy", "schema", "model_dump", "model_validate", "model_fields", "self")
    arguments = Arguments("x", {name: (str, name) for name in names})
    assert arguments.read({"json": "a"}) == {**{name: name for name in names}, "json": "a"}


@pytest.mark.parametrize("parameters", [{"x": (object(), ...)}, {"x": (Arguments, ...)}])
def test_a_signature_without_a_json_schema_is_refused(parameters: Any) -> None:
    with pytest.raises(UsageError, match="its signature has no JSON schema"):
        Arguments("x", parameters)
