"""Where things of this checkout are."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TESTS = ROOT / "tests"
DOUBLES = TESTS / "support" / "doubles"
MEASURED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
"""Variables that a process with an environment of its own gets, so that what it runs is measured too."""
