"""Takes the pictures in docs: `python -m dev.pictures NAME...`, as `make screenshots` and `make pictures` do."""

import sys

import anyio
from tests.support.browser import find_chromium, launch_browser
from tests.support.paths import DOCS

from dev.pictures import app, guard, hosts, inbox

TAKE = {"inbox": inbox.take, "app": app.take, "hosts": hosts.take, "guard": guard.take}


async def main(path: str, names: list[str]) -> None:
    """Take the pictures of each that is named, in one browser."""
    async with launch_browser(path) as browser:
        for name in names:
            await TAKE[name](browser, DOCS / "images")


if __name__ == "__main__":
    if not (chromium := find_chromium()):
        sys.exit("there is no Chromium on this machine; `apt-get install chromium` brings one")
    anyio.run(main, chromium, sys.argv[1:])
