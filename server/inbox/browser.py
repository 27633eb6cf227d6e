"""Opening a page in the person's browser, where there is one to open.

The browser is started by a short-lived process of its own with nothing to write to: the output of a browser must never
reach the standard output of a server that speaks a protocol there. What cannot be hidden is the address: while the
browser starts it may stand in the list of processes, which other users of the machine can read; a code in it is good for
one use within minutes.
"""

import subprocess
import sys
from collections.abc import Mapping

OPEN_PAGE_CODE = "import sys, webbrowser; webbrowser.open(sys.stdin.readline().strip())"


def has_display(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether somebody sits in front of this machine, as far as the environment tells."""
    if environment.get("CI") or any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")):
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_page(url: str) -> bool:
    """Start the browser with the page; False when not even the attempt could be made. Does not wait for the browser."""
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
