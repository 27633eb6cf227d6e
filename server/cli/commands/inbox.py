"""`planwarden inbox`: lets the person at this terminal into the inbox, in the browser.

A code is worth an approval, so it goes to a terminal that somebody reads and types on, and to nothing else: not through a
pipe, not into JSON. That keeps it from a model whose shell only has pipes. It does not keep it from a program that makes a
terminal of its own as the same user; nothing here can.
"""

import getpass
from pathlib import Path

import anyio
import anyio.to_thread

from planwarden.agent.common.errors import UsageError
from planwarden.server.api.service import Service
from planwarden.server.cli.home import CliHome
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.inbox.address import BASE, listen
from planwarden.server.inbox.app import inbox_app
from planwarden.server.inbox.browser import has_display, open_page
from planwarden.server.inbox.launcher import announce_inbox, pairing_url, serve_app
from planwarden.server.inbox.passphrase import Passphrase, write_passphrase
from planwarden.server.inbox.sessions import CODE_S, InboxAccess, PairingCodes
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.configuration import operator
from planwarden.storage.ports.sessions import sessions_of


def open_inbox(home: CliHome, terminal: Terminal, name: str | None, *, opens: bool) -> None:
    """Make a one-time code and open the inbox with it: one that runs already, else one that runs here until interrupted.

    Raises:
        UsageError: nobody reads and types here, or the passphrase file is not usable.
    """
    if not terminal.can_ask:
        raise UsageError(
            "a code for the inbox lets whoever reads it approve in your name, so it is shown on a terminal only and "
            "never written into a pipe; run `planwarden inbox` in a terminal"
        )
    if home.settings.passphrase_file is not None:
        Passphrase.read(home.settings.passphrase_file)
    opens = opens and has_display(home.settings.environment)

    async def work() -> None:
        async with home.acting() as service:
            store = service.engine.store
            running = await sessions_of(store).inboxes()
            codes = await InboxAccess(store).make_codes(name or operator(), "terminal")
            if running:
                await _show(terminal, running[0], codes, opens=opens)
            else:
                await _serve(home, terminal, service, codes, opens=opens)

    anyio.run(work)


def end_sessions(home: CliHome) -> int:
    """End every session and void every code of the home; gives the number of sessions."""

    async def work() -> int:
        async with home.acting(follows=False) as service:
            return await InboxAccess(service.engine.store).end_all(operator())

    return anyio.run(work)


def set_passphrase(home: CliHome, terminal: Terminal) -> Path:
    """Ask for a passphrase twice and keep its hash; gives the file.

    Raises:
        UsageError: no file is configured, nobody types here, or the two are not the same.
    """
    path = home.settings.passphrase_file
    if path is None:
        raise UsageError('name the file first: [inbox] passphrase_file = "inbox.passphrase" in planwarden.toml')
    if not terminal.can_ask:
        raise UsageError("a passphrase is typed at a terminal, and there is none here")
    first = getpass.getpass("Passphrase: ", terminal.out)
    if getpass.getpass("Once more: ", terminal.out) != first:
        raise UsageError("the two were not the same; nothing was changed")
    write_passphrase(path, first)
    return path


async def _serve(home: CliHome, terminal: Terminal, service: Service, codes: PairingCodes, *, opens: bool) -> None:
    """An inbox of this command's own."""
    listening = listen()
    url = f"{listening.base_url}{BASE}"
    site = InboxSite(
        service=lambda: service,
        home=home.settings.home,
        passphrase_file=home.settings.passphrase_file,
        origin=listening.origin,
    )
    async with announce_inbox(service, url), anyio.create_task_group() as tasks:
        tasks.start_soon(serve_app, inbox_app(site, lambda: listening.hosts), *listening.sockets)
        await _show(terminal, url, codes, opens=opens)
        terminal.say(TerminalLine((("The inbox runs here until Ctrl-C.", "dim"),)))


async def _show(terminal: Terminal, url: str, codes: PairingCodes, *, opens: bool) -> None:
    link = pairing_url(url, codes.link)
    is_open = opens and await anyio.to_thread.run_sync(open_page, link)
    terminal.say("Opened in the browser. If it did not appear:" if is_open else "Open this in a browser:")
    # Written as it is: a link that is broken over lines to fit cannot be copied.
    terminal.out.write(f"{link}\n")
    lines = [
        TerminalLine(("or open ", (url, "bold"), " and type the code ", (codes.typed, "bold"))),
        TerminalLine(
            ((f"Good for one browser, once, within {CODE_S / 60:.0f} minutes. Do not paste it into a chat.", "dim"),)
        ),
    ]
    for line in lines:
        terminal.say(line)


def ended_text(count: int) -> str:
    return f"{count} session{'' if count == 1 else 's'} ended; codes that were not used are void"
