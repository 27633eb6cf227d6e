"""Numbers and rows as people write them: rows are counted from 1, `1,3,6-10`. Programs count from 0."""

from collections.abc import Collection

MAX_DIGITS = 6


def read_number(text: str) -> int | None:
    """Return the number that a text of a few digits writes; None for every other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def read_ranges(text: str, count: int) -> list[int] | None:
    """Return the places of the rows that the text names, each once, in order; None if it names none, or one that is not
    there."""
    rows: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        begin, end = read_number(first), read_number(last if dash else first)
        if begin is None or end is None or not 1 <= begin <= end <= count:
            return None
        rows.update(range(begin - 1, end))
    return sorted(rows)


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
