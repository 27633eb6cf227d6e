"""Pages that are half written by hand and half by a program, and tables in them."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def fill_parts(text: str, parts: Mapping[str, str]) -> str:
    """Return the page with each part between `<!--NAME-->` and `<!--/NAME-->` replaced. Every name must be there."""
    for name, part in parts.items():
        before, _, rest = text.partition(f"<!--{name}-->\n")
        _, end, after = rest.partition(f"<!--/{name}-->")
        if not end:
            raise ValueError(f"the page has no part {name!r}")
        text = f"{before}<!--{name}-->\n{part}\n{end}{after}"
    return text


def write_parts(page: Path, parts: Mapping[str, str]) -> None:
    """Print the parts, and write them into the page."""
    print("\n\n".join(parts.values()))
    page.write_text(fill_parts(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


def write_table(head: Iterable[object], rows: Iterable[Iterable[object]], *, below: str = "---:") -> str:
    """Return a table in Markdown. `below` the heads of all columns but the first says where their cells are: right.

    Raises:
        ValueError: a cell has more than one line, or a bar, which GitHub and the site treat differently.
    """
    first, *others = [[str(cell) for cell in row] for row in (head, *rows)]
    for cell in (cell for line in (first, *others) for cell in line if "|" in cell or "\n" in cell):
        raise ValueError(f"this does not fit into a cell: {cell!r}")
    head_row, *other_rows = (f"| {' | '.join(line)} |" for line in (first, *others))
    return "\n".join([head_row, f"|---|{f'{below}|' * (len(first) - 1)}", *other_rows])


def report_progress(what: str) -> None:
    """Say on standard error what begins."""
    print(what, file=sys.stderr, flush=True)
