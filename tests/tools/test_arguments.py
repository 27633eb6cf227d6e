"""Schemas and arguments of plain signatures: exactly what pydantic makes of them, without importing it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, List, Literal, Optional  # noqa: UP035 (old annotations, which tools still have)

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from planwarden.agent.common.struct import JsonValue
from planwarden.tools.argument_model import build_model, build_schema
from planwarden.tools.arguments import Arguments

PLAIN: tuple[Any, ...] = (str, int, float, bool)
ANNOTATIONS: tuple[Any, ...] = (
    *PLAIN,
    *(list[kind] for kind in PLAIN),
    *(kind | None for kind in PLAIN),
    *(list[kind] | None for kind in PLAIN),
    Optional[str],  # noqa: UP045
    List[int],  # noqa: UP006
    None | str,
    str | int,
    str | int | None,
    list[str | None],
    list[list[int]],
    list,
    dict[str, int],
    object,
    Literal["a", "b"],
    Annotated[int, Field(ge=1)],
    Annotated[str, {"no": "hash"}],
    type(None),
)
DEFAULTS: tuple[Any, ...] = (
    ...,
    None,
    "",
    "é",
    "\ud800",
    0,
    -(10**30),
    1.5,
    float("nan"),
    float("inf"),
    True,
    [],
    ["a"],
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
) | st.sampled_from(["5", "true", "\ud800", 5.0, 2**53 + 1, 10**400, [1, True], [1.0, 2], ["a", None], "2024-01-01"])


def make_schema(parameters: Mapping[str, tuple[Any, Any]]) -> str:
    return json.dumps(build_schema(build_model("x", parameters)))


@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")
def test_the_schema_of_a_signature_is_that_of_pydantic_to_the_byte() -> None:
    for annotation, default in product(ANNOTATIONS, DEFAULTS):
        parameters = {"first": (str, ...), "x": (annotation, default), "last": (int, 3)}
        try:
            expected = make_schema(parameters)
        except UnicodeEncodeError:
            continue
        assert json.dumps(Arguments("x", parameters).schema) == expected, (annotation, default)
    for parameters in ({}, {"x": (int, 1)}):
        assert json.dumps(Arguments("x", parameters).schema) == make_schema(parameters)


@given(value=VALUES, place=st.integers(0, len(ANNOTATIONS) - 1))
def test_a_function_gets_what_pydantic_makes_of_the_arguments(value: JsonValue, place: int) -> None:
    parameters: dict[str, tuple[Any, Any]] = {"x": (ANNOTATIONS[place], ...), "y": (str, "z")}
    model = build_model("x", parameters)
    sent: dict[str, JsonValue] = {"x": value}
    try:
        parsed = model.model_validate(sent)
    except ValidationError as error:
        with pytest.raises(ValidationError) as refused:
            Arguments("x", parameters).read(sent)
        assert str(refused.value) == str(error)
    else:
        expected = {name: getattr(parsed, name) for name in parameters}
        found = Arguments("x", parameters).read(sent)
        assert repr(found) == repr(expected)
        assert not isinstance(value, list) or (found["x"] is value) == (expected["x"] is value)


@pytest.mark.parametrize("sent", [{}, {"x": 1, "y": 2}, {"x": "1"}, {"x": None}, {"y": 2}])
def test_arguments_that_do_not_fit_are_told_by_pydantic(sent: dict[str, JsonValue]) -> None:
    parameters: dict[str, tuple[Any, Any]] = {"x": (int, ...)}
    try:
        expected: object = build_model("t", parameters).model_validate(sent).model_dump()
    except ValidationError as error:
        expected = str(error)
    try:
        found: object = Arguments("t", parameters).read(sent)
    except ValidationError as error:
        found = str(error)
    assert found == expected


def test_a_plain_tool_is_made_and_called_without_pydantic() -> None:
    code = """
import asyncio, sys
import planwarden
from planwarden.agent.core.tool import CallContext
from planwarden.tools.base import as_tool
from planwarden.tools.registry import Registry

@planwarden.tool(risk="read", effect="effect")
async def charge(order: str, cents: int, notes: list[str], rate: float = 1.0, to: str | None = None) -> dict:
    return {"order": order, "cents": [cents, rate], "to": to, "notes": notes}

registry = Registry([as_tool(charge)])
sent = {"order": "A", "cents": 5, "notes": ["x"], "rate": 2}
context = CallContext(execution_id="e", step_id="s", call_id="c", idempotency_key="k")
expected = {"order": "A", "cents": [5, 2.0], "to": None, "notes": ["x"]}
assert asyncio.run(registry.call("charge", sent, context)) == expected
assert "pydantic" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
