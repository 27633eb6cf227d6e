"""Where things of this checkout are."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
DOUBLES = TESTS / "support" / "doubles"
MEASURED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
"""Variables that a process with an environment of its own gets, so that what it runs is measured too."""


def fill_in(page: Path, name: str, text: str) -> None:
    """Puts the text between the marks `<!--NAME-->` and `<!--/NAME-->` of the page."""
    before, opening, rest = page.read_text(encoding="utf-8").partition(f"<!--{name}-->\n")
    _, closing, after = rest.partition(f"<!--/{name}-->")
    assert closing, f"{page.name} has no place for {name!r}"
    page.write_text(f"{before}{opening}{text}{closing}{after}", encoding="utf-8")
