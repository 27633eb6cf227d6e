"""Where things of this checkout are."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
DOUBLES = TESTS / "support" / "doubles"


def fill_in(page: Path, name: str, text: str) -> None:
    """Puts the text between the marks `<!-- NAME: … -->` and `<!-- /NAME -->` of the page."""
    before, opening, rest = re.split(rf"(<!-- {name}: .* -->\n)", page.read_text(encoding="utf-8"))
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    assert closing, f"{page.name} has no end of {name!r}"
    page.write_text(f"{before}{opening}{text}{closing}{after}", encoding="utf-8")
