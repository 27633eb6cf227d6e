"""Lets the processes of a home share one inbox, except those that have a port of their own.

Until a question first needs a person, no process of the home listens or imports the pages. From then on, even after a
restart, one process serves the inbox (see `inbox_port.py`), and every other process checks once a second whether it has
to take over. An open page keeps working after a takeover, because sessions, codes and everything else that a page needs
are in the store. A check costs two system calls. A decision counts, whichever process serves the page.

A short-lived process without output starts the browser, because a browser must not write to the standard output of a
server that speaks a protocol there. The address cannot be hidden: while the browser starts, other users of the machine
may read the address in the list of processes. So a code in the address works only once, and only for minutes.
"""

import logging
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.watchers import Commit
from planwarden.server.inbox.inbox_port import INBOX_PATH, InboxPort, InboxSockets, build_pairing_url
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.configuration import Settings, find_operator

if TYPE_CHECKING:
    from planwarden.server.api.service import Service

logger = logging.getLogger(__name__)

QUIET_S = 60.0
"""For how many seconds the launcher opens no other browser window after one, or after a person used the inbox."""
LOOK_AGAIN_S = 1.0
"""Seconds between two checks of whether the process that serves the inbox has ended."""

OPEN_PAGE_CODE = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.stdin.readline().strip()))"

Opener = Callable[[str], bool]


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


class InboxLauncher:
    """Opens the inbox of one service; implements `InboxOpener`."""

    def __init__(self, settings: Settings, service: "Service", tasks: TaskGroup, *, opener: Opener = open_page) -> None:
        self._settings = settings
        self._service = service
        self._tasks = tasks
        self._opener = (
            opener if settings.tables.approvals.open_inbox == "auto" and has_display(settings.environment) else None
        )
        self._place = InboxPort(settings)
        self._is_wanted = False
        self._is_serving = False
        self._problem = ""
        self._shown_suspensions = set[str]()
        self._opened_at = float("-inf")
        self._active_at = float("-inf")

    def address(self) -> str | None:
        self._is_wanted = True
        self._look()
        return self._service.inbox_url

    async def stand_by(self) -> None:
        """Serve the inbox whenever no other process does, once this process needs it or the home has had an inbox."""
        while True:
            if self._is_wanted or self._place.is_known:
                self._look()
            await anyio.sleep(LOOK_AGAIN_S)

    def leave(self) -> None:
        """Let another process of the home serve the inbox."""
        self._place.leave()
        self._service.inbox_url = None

    def _look(self) -> None:
        """Serve the inbox from now on unless a process already serves it, and tell the service the inbox's address."""
        if self._is_serving:
            return
        listening, problem = None, ""
        try:
            listening = self._place.take()
        except OSError as error:
            problem = str(error)
        if problem and problem != self._problem:
            logger.warning("cannot open the inbox: %s; decide with `planwarden approve` in a terminal", problem)
        self._problem = problem
        self._service.inbox_url = self._place.url
        if listening is not None:
            self._is_serving = True
            self._tasks.start_soon(self._serve, listening)

    def on_commit(self, commit: Commit | None) -> None:
        """Open the inbox if this process made the commit and the execution waits for a person; also open the
        browser if a question needs more than the client's answer."""
        if commit is None or commit.is_foreign:
            return
        execution = commit.execution
        waiting = [item.question for item in execution.open_suspensions if item.question.addressee == "human"]
        if not waiting:
            return
        self._service.find_inbox(execution)
        question = next((question for question in waiting if question.needs not in (None, "client")), None)
        if question is not None:
            self.show_in_browser(question.suspension_id)

    def show_in_browser(self, suspension_id: str) -> None:
        """Open the browser with a one-time code: at most once per question, and never in the quiet time `QUIET_S`."""
        now = anyio.current_time()
        if (
            self._opener is None
            or suspension_id in self._shown_suspensions
            or now - max(self._opened_at, self._active_at) < QUIET_S
        ):
            return
        url = self.address()
        if url is not None:
            self._opened_at = now
            self._shown_suspensions.add(suspension_id)
            self._tasks.start_soon(self._open_browser, self._opener, url, suspension_id)

    def record_activity(self) -> None:
        """Remember that a person with a session has just requested a page."""
        self._active_at = anyio.current_time()

    async def _open_browser(self, opener: Opener, url: str, suspension_id: str) -> None:
        """Hand a one-time code to the browser; the code never passes through MCP."""
        try:
            codes = await InboxAccess(self._service.store).make_codes(find_operator(), "browser")
        except PlanwardenError as error:
            logger.warning("cannot open the inbox in a browser: %s", error.message)
            return
        page = build_pairing_url(url, codes.link, f"{INBOX_PATH}/suspensions/{suspension_id}")
        if not await anyio.to_thread.run_sync(opener, page):
            logger.warning("cannot open a browser; the inbox is at %s, run `planwarden inbox` to log in", url)

    async def _serve(self, listening: InboxSockets) -> None:
        try:
            # A server that never needs a person never imports the pages. The import is slow, so a thread does it.
            pages = await anyio.to_thread.run_sync(import_module, "planwarden.server.inbox.app")
            await pages.serve_inbox(self._settings, self._service, listening, self.record_activity)
        # No failure of the inbox may end the server.
        except Exception:
            logger.exception("the inbox ended; this process or another one opens it again")
        finally:
            self._is_serving = False
            self.leave()


@asynccontextmanager
async def with_launcher(
    settings: Settings, service: "Service", *, opener: Opener = open_page
) -> AsyncGenerator[InboxLauncher]:
    """Let the service open an inbox when it needs one, until the block ends."""
    with ExitStack() as stack:
        async with anyio.create_task_group() as tasks:
            launcher = InboxLauncher(settings, service, tasks, opener=opener)
            stack.callback(launcher.leave)
            service.inbox_opener = launcher
            stop = service.listen(launcher.on_commit)
            tasks.start_soon(launcher.stand_by)
            try:
                yield launcher
            finally:
                stop()
                service.inbox_opener = None
                tasks.cancel_scope.cancel()
