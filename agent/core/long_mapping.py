"""A mapping in parts, for the steps of a plan: a copy with another value for one key shares all parts but one.

A chain of 2,000 steps changes them 8,000 times. Copying all of them each time is a good part of what a step takes.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TypeVar

Value = TypeVar("Value")

PART = 128
"""Keys of one part. With 2,000 of them a change copies about 150 references."""


class LongMapping(Mapping[str, Value]):
    """Immutable, in order; compared by what it holds, with any mapping."""

    __slots__ = ("parts", "places")

    places: Mapping[str, int]
    """In which part each key is."""
    parts: tuple[Mapping[str, Value], ...]
    """Each of `PART` keys, the last one perhaps of fewer."""

    def __init__(self, places: Mapping[str, int], parts: tuple[Mapping[str, Value], ...]) -> None:
        self.places = places
        self.parts = parts

    def __getitem__(self, key: str) -> Value:
        return self.parts[self.places[key]][key]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return len(self.places)


def replace_value(values: Mapping[str, Value], key: str, value: Value) -> Mapping[str, Value]:
    """Returns the values with another one for a key that is there: a dict if they are few, else a `LongMapping`."""
    if len(values) <= PART:
        return {**values, key: value}
    if not isinstance(values, LongMapping):
        values = _divide(values)
    number = values.places[key]
    changed = {**values.parts[number], key: value}
    return LongMapping(values.places, (*values.parts[:number], changed, *values.parts[number + 1 :]))


def _divide(values: Mapping[str, Value]) -> LongMapping[Value]:
    left = iter(values.items())
    parts = tuple(dict(islice(left, PART)) for _ in range(0, len(values), PART))
    return LongMapping({key: number for number, part in enumerate(parts) for key in part}, parts)
