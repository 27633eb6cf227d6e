"""Builds addresses of the inbox, and opens a page in the person's browser if the machine has a display.

A short-lived process without output starts the browser, because a browser must not write to the standard output of a
server that speaks a protocol there. The address cannot be hidden: while the browser starts, other users of the machine
may read the address in the list of processes. So a code in the address works only once, and only for minutes.
"""

import subprocess
import sys
from collections.abc import Mapping
from urllib.parse import urlencode

INBOX_PATH = "/inbox"
"""The path of the inbox; every page is below it."""


def build_pairing_url(url: str, code: str, target: str = INBOX_PATH) -> str:
    """Return a link that works once: it opens the inbox in one browser, which then goes to `target`."""
    return f"{url}/pair?{urlencode({'code': code, 'next': target})}"


OPEN_PAGE_CODE = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.stdin.readline().strip()))"


def has_display(environment: Mapping[str, str]) -> bool:
    """Return whether the environment says that this process runs on a desktop: no CI, no SSH, a display."""
    if environment.get("CI") or any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")):
        return False
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_page(url: str) -> bool:
    """Start the browser with the page, without waiting for the page to load. Return False if that fails."""
    try:
        opener = subprocess.Popen(
            [sys.executable, "-I", "-c", OPEN_PAGE_CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        opener.communicate(f"{url}\n".encode(), timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return opener.returncode == 0
