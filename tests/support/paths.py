"""Where things of this checkout are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
DOUBLES = TESTS / "support" / "doubles"
