"""Rows of one question about many calls as people write them, counted from 1: `1,3,6-10`. Programs count from 0."""

from collections.abc import Collection

MAX_DIGITS = 6


def read_ranges(text: str, count: int) -> list[int] | None:
    """Return the places of the rows that the text names, each once, in order; None if it names none, or one that is not
    there."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        ends = [first, last if dash else first]
        if not all(end.isascii() and end.isdecimal() and len(end) < MAX_DIGITS for end in ends):
            return None
        begin, end = map(int, ends)
        if not 1 <= begin <= end <= count:
            return None
        found.update(range(begin - 1, end))
    return sorted(found)


def format_ranges(rows: Collection[int]) -> str:
    """Return the shortest text that `read_ranges` reads as these places; empty for none."""
    parts: list[str] = []
    first = last = 0
    for number in [*(place + 1 for place in sorted(rows)), 0]:
        if number == last + 1 and last:
            last = number
            continue
        if first:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(parts)


def name_rows(rows: Collection[int]) -> str:
    """Return these places as people name them, such as `rows 1, 3-5`."""
    return f"{'row' if len(rows) == 1 else 'rows'} {format_ranges(rows).replace(',', ', ')}"
