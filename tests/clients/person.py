"""A person who decides on the page of the inbox, in a browser without script."""

import re
import signal
from pathlib import Path
from typing import Literal

import httpx2

from tests.server.cli.support import Cli, start_on_terminal
from tests.server.inbox.support import Browser

WIDE = 300
"""Columns at which no link is broken into lines."""


async def decide_on_page(home: Path, suspension_id: str, press: Literal["approve", "reject"] = "approve") -> str:
    """Opens the question as a person of this home, presses the button, and returns the words of the page.

    The inbox is that of a server that runs, or else of the command that prints the link.
    """
    terminal = start_on_terminal(Cli(home), "inbox", "--no-open", columns=WIDE)
    try:
        terminal.expect("code=")
        terminal.expect("\n")
        link = httpx2.URL(re.findall(r"http://\S+code=\S+", terminal.text)[0])
        origin = f"{link.scheme}://{link.host}:{link.port}"
        async with httpx2.AsyncClient(base_url=origin, timeout=60) as client:
            browser = Browser(client, None, origin=origin)
            await browser.pair(link.params["code"])
            page = await browser.open(f"/inbox/suspensions/{suspension_id}")
            answer = await browser.submit(page.form("/decision"), press=press)
            assert answer.status == 303, f"the page answered {answer.status}: {answer.words}"
            return page.words
    finally:
        # As Ctrl-C does; where another process serves the page, the command has ended already.
        terminal.process.send_signal(signal.SIGINT)
        terminal.finish()
        terminal.close()
