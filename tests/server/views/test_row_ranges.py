"""Rows of one question about many calls, as people write them."""

import pytest

from planwarden.server.views.row_ranges import format_ranges, read_ranges


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("1,3", [0, 2]),
        ("3-5, 1", [0, 2, 3, 4]),
        ("5", [4]),
        ("6", None),
        ("0", None),
        ("", None),
        ("all", None),
        ("3-1", None),
        ("-1", None),
        ("1-", None),
        ("1-99999999", None),
    ],
)
def test_rows_are_named_by_numbers_and_ranges(text: str, rows: list[int] | None) -> None:
    assert read_ranges(text, 5) == rows


@pytest.mark.parametrize(
    ("rows", "text"),
    [([], ""), ([0], "1"), ([3, 1, 2], "2-4"), ([0, 2, 3, 4, 9], "1,3-5,10"), ([998, 999], "999-1000")],
)
def test_rows_are_written_so_that_they_are_read_back(rows: list[int], text: str) -> None:
    assert format_ranges(rows) == text
    assert (read_ranges(text, 1_000) or []) == sorted(rows)
