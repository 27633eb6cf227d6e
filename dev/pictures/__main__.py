"""Takes the pictures in docs: `python -m dev.pictures NAME...`, as `make screenshots` and `make pictures` do."""

import sys
from importlib import import_module

from tests.support.browser import find_chromium
from tests.support.paths import DOCS


def main() -> int:
    """Take the pictures of each module that is named."""
    if not (browser := find_chromium()):
        print("there is no Chromium on this machine; `apt-get install chromium` brings one", file=sys.stderr)
        return 1
    for name in sys.argv[1:]:
        import_module(f"dev.pictures.{name}").take(browser, DOCS / "images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
