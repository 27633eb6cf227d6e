"""Rows of one question about many calls as people write them: `0,2,5-9`."""

from collections.abc import Collection

MAX_DIGITS = 6


def read_ranges(text: str, count: int) -> list[int] | None:
    """Returns the rows that the text names, each once, in order; None if it names none, or one that is not there."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        ends = [first, last if dash else first]
        if not all(end.isascii() and end.isdecimal() and len(end) < MAX_DIGITS for end in ends):
            return None
        begin, end = map(int, ends)
        if not begin <= end < count:
            return None
        found.update(range(begin, end + 1))
    return sorted(found)


def format_ranges(rows: Collection[int]) -> str:
    """Returns the shortest text that `read_ranges` reads as these rows; empty for none."""
    parts: list[str] = []
    first = last = -1
    for row in [*sorted(rows), -1]:
        if row == last + 1 and last >= 0:
            last = row
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = row
    return ",".join(parts)
