"""Hypothesis strategies for events, derived from the events' own annotations, so that a new field is covered at once."""

from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.core import events as ev

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
    JsonValue: JSON,
}


@cache
def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a type that occurs in an event."""
    if annotation in LEAVES:
        return LEAVES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([of(argument) for argument in arguments])
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, of(arguments[1]), max_size=3)
    assert is_dataclass(annotation) and isinstance(annotation, type), f"no strategy for {annotation!r}"
    hints = get_type_hints(annotation)
    return st.builds(annotation, **{field.name: of(hints[field.name]) for field in fields(annotation)})


EVENT_TYPES: tuple[type[ev.Event], ...] = get_args(ev.Event)
EVENTS: st.SearchStrategy[ev.Event] = st.one_of([of(kind) for kind in EVENT_TYPES])
