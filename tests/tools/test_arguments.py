"""Schemas and arguments of plain signatures: exactly what pydantic makes of them."""

import json
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, List, Literal, Optional  # noqa: UP035 (old annotations, which tools still have)

import pytest
from hypothesis import example, given
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
    *(None | str, str | int, str | int | None, list[str | None], list[list[int]], list, dict[str, int], object),
    *(Literal["a", "b"], Annotated[int, Field(ge=1)], Annotated[str, {"no": "hash"}], type(None)),
)
DEFAULTS: tuple[Any, ...] = (
    *(..., None, "", "é", "\ud800", 0, -(10**30), 1.5, float("nan"), float("inf"), True, [], ["a"]),
)
ODD = ["5", "true", "\ud800", 5.0, 2**53 + 1, 10**400, [1, True], [1.0, 2], ["a", None], "2024-01-01"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
) | st.sampled_from(ODD)
SENT = st.fixed_dictionaries({}, optional={"x": VALUES, "y": VALUES, "z": VALUES})


def make_schema(parameters: Mapping[str, tuple[Any, Any]]) -> str:
    return json.dumps(build_schema(build_model("x", parameters)))


@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")
def test_the_schema_of_a_signature_is_that_of_pydantic_to_the_byte() -> None:
    signatures: list[dict[str, tuple[Any, Any]]] = [{}, {"x": (int, 1)}]
    for annotation, default in product(ANNOTATIONS, DEFAULTS):
        signatures.append({"first": (str, ...), "x": (annotation, default), "last": (int, 3)})
    for parameters in signatures:
        try:
            expected = make_schema(parameters)
        except UnicodeEncodeError:
            continue
        assert json.dumps(Arguments("x", parameters).schema) == expected, parameters


@given(sent=SENT, place=st.integers(0, len(ANNOTATIONS) - 1))
@example(sent={}, place=0)
@example(sent={"x": [1, 2], "y": "z"}, place=5)
def test_a_function_gets_what_pydantic_makes_of_the_arguments(sent: dict[str, JsonValue], place: int) -> None:
    parameters: dict[str, tuple[Any, Any]] = {"x": (ANNOTATIONS[place], ...), "y": (str, "z")}
    try:
        parsed = build_model("x", parameters).model_validate(sent)
    except ValidationError as error:
        with pytest.raises(ValidationError) as refused:
            Arguments("x", parameters).read(sent)
        assert str(refused.value) == str(error)
    else:
        expected = {name: getattr(parsed, name) for name in parameters}
        found = Arguments("x", parameters).read(sent)
        assert repr(found) == repr(expected)
        value = sent["x"]
        assert not isinstance(value, list) or (found["x"] is value) == (expected["x"] is value)
