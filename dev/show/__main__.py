"""`python -m dev.show` (`make show`) writes docs/saved-plans.md, unless only ids and times would change."""

import sys
import tempfile
from pathlib import Path

from tests.clients.installed import Unavailable

from dev.show.page import PAGE
from dev.show.show import run_show
from dev.show.transcript import mask


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            page = run_show(Path(folder))
        except Unavailable as error:
            print(f"cannot be shown here: {error}", file=sys.stderr)
            return 1
    if not PAGE.exists() or mask(PAGE.read_text(encoding="utf-8")) != mask(page):
        PAGE.write_text(page, encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
