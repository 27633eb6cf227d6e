"""The command `inbox`: lets the person at this terminal into the inbox in the browser.

Anybody with a code can approve. So a code goes only to a terminal with a person, never through a pipe or into JSON. A
model whose shell has only pipes cannot get a code. A program of the same user that opens its own terminal can, and
nothing prevents it.
"""

import getpass
from argparse import Namespace
from collections.abc import Sequence

import anyio
import anyio.to_thread
import httpx2

from planwarden.agent.common.errors import UsageError, count_of
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home, run_with
from planwarden.server.cli.output import DONE
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.inbox.app import serve_inbox
from planwarden.server.inbox.inbox_port import INBOX_PATH, InboxPort, InboxSockets, build_pairing_url, open_sockets
from planwarden.server.inbox.launcher import has_display, open_page
from planwarden.server.inbox.passphrase import InboxPassphrase
from planwarden.server.inbox.sessions import CODE_S, InboxAccess, PairingCodes
from planwarden.server.inbox.web_server import HEALTH_PATH
from planwarden.server.settings.configuration import find_operator
from planwarden.server.settings.secrets import find_secrets, open_secrets
from planwarden.storage.sessions import RunningInboxes

ANSWER_S = 3.0
"""How many seconds an inbox may take to answer."""
LOOK_AGAIN_S = 0.1


def add_inbox(parser: CommandParser) -> None:
    parser.handle(handle_inbox)
    parser.declare("--as NAME", "name of the person who decides; default: the user name", dest="name")
    parser.declare("--no-open", "only print the link and the code")
    other = parser.add_mutually_exclusive_group()
    for flag, meaning in (
        ("--end-sessions", "log every browser out and void every code"),
        ("--set-passphrase", "ask for the passphrase of [inbox] and store its hash"),
        ("--forget-passphrase", "delete the hash that --set-passphrase wrote into PostgreSQL"),
    ):
        parser.note(other.add_argument(flag, action="store_true", help=meaning))


def handle_inbox(arguments: Namespace) -> int:
    home, terminal = open_home(arguments), build_terminal(arguments)
    settings = home.settings
    if arguments.end_sessions:
        count = home.run(lambda service: InboxAccess(service.store).end_all_sessions(find_operator()), "recorder")
        text = f"{count_of(count, 'session')} ended; codes that were not used are void"
        write_result(arguments, {"sessionsEnded": count}, Terminal.say, text)
    elif arguments.json:
        raise UsageError("--json goes with --end-sessions only; a code is never part of a document")
    elif arguments.set_passphrase:
        passphrase = _ask_for_passphrase(home, terminal)
        run_with(open_secrets(settings), lambda secrets: InboxPassphrase(settings, secrets).replace(passphrase))
        location = settings.passphrase_file or settings.store
        terminal.say(f"{location}: written; the inbox asks for this passphrase from now on")
    elif arguments.forget_passphrase:
        is_deleted = run_with(open_secrets(settings), lambda secrets: InboxPassphrase(settings, secrets).forget())
        terminal.say("The inbox asks for no passphrase from now on." if is_deleted else "There was no passphrase.")
    else:
        open_inbox(home, terminal, arguments.name, opens_browser=not arguments.no_open)
    return DONE


def open_inbox(home: Home, terminal: Terminal, name: str | None, *, opens_browser: bool) -> None:
    """Make one-time codes and open an inbox with them: a running one, or one that runs here until it is interrupted."""
    terminal.check_can_ask(
        "anybody who reads a code for the inbox can approve in your name, so it is shown on a terminal only and "
        "never written into a pipe; run `planwarden inbox` in a terminal"
    )
    opens_browser = opens_browser and has_display(home.settings.environment)

    async def work(service: Service) -> None:
        store = service.store
        await InboxPassphrase(home.settings, find_secrets(home.settings, store)).read()
        codes = await InboxAccess(store).make_codes(name or find_operator(), "terminal")
        port = InboxPort(home.settings)
        try:
            inbox = await _find_inbox(terminal, port, await RunningInboxes(store).list_urls())
            if isinstance(inbox, str):
                await _show_codes(terminal, inbox, codes, opens_browser=opens_browser)
                return
            service.inbox_url = url = f"{inbox.base_url}{INBOX_PATH}"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_inbox, home.settings, service, inbox)
                await _show_codes(terminal, url, codes, opens_browser=opens_browser)
                terminal.line(("The inbox runs here until Ctrl-C.", "dim"))
        finally:
            port.leave()

    home.run(work)


def _ask_for_passphrase(home: Home, terminal: Terminal) -> str:
    """Return the passphrase that the person typed twice."""
    if home.settings.passphrase_file is None and home.settings.store.path is not None:
        raise UsageError('name the file first: [inbox] passphrase_file = "inbox.passphrase" in planwarden.toml')
    terminal.check_can_ask("a passphrase is typed at a terminal, and there is none here")
    first = getpass.getpass("Passphrase: ", terminal.out)
    if getpass.getpass("Once more: ", terminal.out) != first:
        raise UsageError("the two were not the same; nothing was changed")
    return first


async def _find_inbox(terminal: Terminal, port: InboxPort, announced: Sequence[str]) -> InboxSockets | str:
    """Return the address of a running inbox, or the sockets at which this process has to serve an inbox. `announced`
    has the addresses of inboxes that servers serve at their own ports.
    """
    until = anyio.current_time() + 2 * ANSWER_S
    while (listening := port.take()) is None:
        if port.url is not None and await _answers(port.url):
            return port.url
        if anyio.current_time() >= until:
            # Stopping a host with Ctrl-Z stops its server too, which then holds the port and does not answer.
            terminal.say(f"The inbox at {port.url or 'its port'} does not answer; is its process stopped?")
            return open_sockets()
        # The process that serves the inbox may be starting or ending.
        await anyio.sleep(LOOK_AGAIN_S)
    for url in announced:
        if await _answers(url):
            port.leave()
            return url
    return listening


async def _answers(url: str) -> bool:
    """Return whether an inbox answers at the address. This does not show that the inbox belongs to this home."""
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=ANSWER_S) as client:
            response = await client.get(f"{url.removesuffix(INBOX_PATH)}{HEALTH_PATH}")
        return response.status_code == 200
    except httpx2.HTTPError:
        return False


async def _show_codes(terminal: Terminal, url: str, codes: PairingCodes, *, opens_browser: bool) -> None:
    link = build_pairing_url(url, codes.link)
    is_open = opens_browser and await anyio.to_thread.run_sync(open_page, link)
    terminal.say("Opened in the browser. If it did not appear:" if is_open else "Open this in a browser:")
    # Written as it is: `say` would wrap the link at the width of the terminal, so that it could not be copied.
    terminal.out.write(f"{link}\n")
    validity = f"Good for one browser, once, within {CODE_S / 60:.0f} minutes. Do not paste it into a chat."
    terminal.line("or open ", (url, "bold"), " and type the code ", (codes.typed, "bold"))
    terminal.line((validity, "dim"))
