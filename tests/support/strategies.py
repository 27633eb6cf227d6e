"""Hypothesis strategies for events, derived from the annotations of the events, so that new fields are covered."""

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.core.execution import events as ev

# Tools return file names and the like, so text may hold lone surrogates.
TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
NUMBERS = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LEAVES: dict[object, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    # What `JsonValue` is in a struct at run time.
    Any: JSON,
}


@cache
def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in LEAVES:
        return LEAVES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    assert isinstance(annotation, type) and issubclass(annotation, msgspec.Struct), f"no strategy for {annotation!r}"
    hints = get_type_hints(annotation)
    return st.builds(annotation, **{name: values_of(hints[name]) for name in annotation.__struct_fields__})


EVENTS: st.SearchStrategy[ev.Event] = st.one_of([values_of(kind) for kind in ev.EVENT_TYPES])
