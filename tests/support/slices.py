"""Which of all combinations `make test` runs, and which only `make exhaustive`."""

from collections.abc import Sequence
from itertools import product
from typing import cast

import pytest
from pytest import ParameterSet


def each_once(*columns: Sequence[object]) -> list[ParameterSet]:
    """All combinations. `make test` runs as many as the longest column is long, so that every value is in one of them;
    the first values of all columns are together."""
    kept = {tuple(row % len(column) for column in columns) for row in range(max(map(len, columns)))}
    everything = product(*(range(len(column)) for column in columns))
    return [
        _case(tuple(column[at] for column, at in zip(columns, row, strict=True)), is_exhaustive=row not in kept)
        for row in everything
    ]


def first_only(*cases: object, keep: int = 1) -> list[ParameterSet]:
    """`make test` runs the first `keep` cases. A tuple is a case of several parameters."""
    return [
        _case(cast("tuple[object, ...]", case) if isinstance(case, tuple) else (case,), is_exhaustive=number >= keep)
        for number, case in enumerate(cases)
    ]


def _case(values: tuple[object, ...], *, is_exhaustive: bool) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.exhaustive if is_exhaustive else ())
