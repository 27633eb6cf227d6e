"""A tuple in parts, for the calls of a loop: a copy with another value in one place shares all parts but one.

A loop of 10,000 items changes its calls 20,000 times. Copying all of them each time would take longer than the calls.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TypeVar, cast, overload

Value = TypeVar("Value")

PART = 128
"""Values of one part. With 10,000 of them a change copies about 200 references."""


class LongTuple(Sequence[Value]):
    """Immutable; compared by value, with others of its kind."""

    __slots__ = ("parts",)

    parts: tuple[tuple[Value, ...], ...]
    """Each of `PART` values, the last one perhaps of fewer."""

    def __init__(self, parts: tuple[tuple[Value, ...], ...]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return PART * (len(self.parts) - 1) + len(self.parts[-1]) if self.parts else 0

    def __iter__(self) -> Iterator[Value]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Value, ...]: ...
    def __getitem__(self, index: int | slice) -> Value | tuple[Value, ...]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return tuple(self.parts[place // PART][place % PART] for place in places)
        return self.parts[places // PART][places % PART]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LongTuple):
            return NotImplemented
        return self.parts == cast("LongTuple[object]", other).parts


def replace_at(values: Sequence[Value], place: int, value: Value) -> Sequence[Value]:
    """Return the values with another one in that place: a tuple if they are few, else a `LongTuple`."""
    if isinstance(values, tuple) and len(values) <= PART:
        return (*values[:place], value, *values[place + 1 :])
    if not isinstance(values, LongTuple):
        values = LongTuple(tuple(tuple(values[start : start + PART]) for start in range(0, len(values), PART)))
    number, rest = divmod(place, PART)
    part = values.parts[number]
    changed = (*part[:rest], value, *part[rest + 1 :])
    return LongTuple((*values.parts[:number], changed, *values.parts[number + 1 :]))
