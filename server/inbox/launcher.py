"""The inbox of a process that has no port of its own: opened on a free loopback port when a person is first needed.

Nothing is listened on and nothing of the web is imported before. Several processes of one home may each have one; all of
them show all open questions of the database, and a decision counts whichever takes it.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.ports.watchers import Commit
from planwarden.server.api.service import Service
from planwarden.server.inbox.browser import has_display, open_page
from planwarden.server.inbox.links import INBOX_PATH, build_pairing_url
from planwarden.server.inbox.sockets import InboxSockets, open_sockets
from planwarden.server.inbox.web_server import serve_app
from planwarden.server.settings.configuration import Settings, operator
from planwarden.storage.ports.sessions import sessions_of

logger = logging.getLogger(__name__)

QUIET_S = 60.0
"""A browser is not opened again so soon, nor while somebody looks at the inbox."""

Opener = Callable[[str], bool]


class InboxLauncher:
    """Opens the inbox of one service; implements `InboxOpener`."""

    def __init__(self, settings: Settings, service: Service, tasks: TaskGroup, *, opener: Opener = open_page) -> None:
        self._settings = settings
        self._service = service
        self._tasks = tasks
        self._opener = opener if settings.opens_inbox and has_display(settings.environment) else None
        self._url: str | None = None
        self._shown_suspensions = set[str]()
        self._opened_at = float("-inf")
        self._active_at = float("-inf")

    def address(self) -> str | None:
        if self._url is None:
            try:
                listening = open_sockets()
            except OSError as error:
                logger.warning("cannot open the inbox: %s; `planwarden approve` works in a terminal", error)
                return None
            self._url = f"{listening.base_url}{INBOX_PATH}"
            self._tasks.start_soon(self._serve, listening, self._url)
        return self._url

    def on_commit(self, commit: Commit | None) -> None:
        """While an execution of this process waits for a person, the inbox is open."""
        if commit is None or commit.is_foreign:
            return
        execution = commit.execution
        waiting = [found.question for found in execution.open_suspensions if found.question.addressee == "human"]
        if not waiting:
            return
        self._service.address(execution)
        asked = next((question for question in waiting if question.needs not in (None, "client")), None)
        if asked is not None:
            self.call_person(asked.suspension_id)

    def call_person(self, suspension_id: str) -> None:
        """Open the browser with a one-time code, once for each question, unless somebody looks at the inbox anyway."""
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
        """Somebody who was let in looks at a page."""
        self._active_at = anyio.current_time()

    async def _open_browser(self, opener: Opener, url: str, suspension_id: str) -> None:
        """The code goes from here to the browser; it never passes through MCP."""
        from planwarden.server.inbox.sessions import InboxAccess

        try:
            codes = await InboxAccess(self._service.engine.store).make_codes(operator(), "browser")
        except PlanwardenError as error:
            logger.warning("cannot open the inbox in a browser: %s", error.message)
            return
        page = build_pairing_url(url, codes.link, f"{INBOX_PATH}/suspensions/{suspension_id}")
        if not await anyio.to_thread.run_sync(opener, page):
            logger.warning("no browser could be opened; the inbox is at %s, `planwarden inbox` lets you in", url)

    async def _serve(self, listening: InboxSockets, url: str) -> None:
        # Only now: a server that never asks anybody does without the web.
        from planwarden.server.inbox.app import build_inbox_app
        from planwarden.server.inbox.site import InboxSite

        site = InboxSite(
            service=lambda: self._service,
            home=self._settings.home,
            passphrase_file=self._settings.passphrase_file,
            on_activity=self.record_activity,
            origin=listening.origin,
        )
        try:
            async with announce_inbox(self._service, url):
                await serve_app(build_inbox_app(site, lambda: listening.host_headers), *listening.sockets)
        except PlanwardenError as error:
            # The server goes on without an inbox; the next question tries again.
            logger.warning("cannot open the inbox: %s", error.message)
            self._url = self._service.inbox = None
        finally:
            listening.close()


@asynccontextmanager
async def with_launcher(
    settings: Settings, service: Service, *, opener: Opener = open_page
) -> AsyncGenerator[InboxLauncher]:
    """The service opens an inbox when it needs one, for as long as the block lasts."""
    async with anyio.create_task_group() as tasks:
        launcher = InboxLauncher(settings, service, tasks, opener=opener)
        service.inbox_opener = launcher
        stop = service.engine.listen(launcher.on_commit)
        try:
            yield launcher
        finally:
            stop()
            service.inbox_opener = None
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def announce_inbox(service: Service, url: str) -> AsyncGenerator[None]:
    """Other processes of the home find the inbox at `url` while the block lasts."""
    store, owner = service.engine.store, service.engine.ids.new()
    sessions = sessions_of(store)
    await sessions.open_inbox(owner, url, store.clock.now())
    service.inbox = url
    try:
        yield
    finally:
        service.inbox = None
        # A store that is closed already takes no more; the sign of life has ended with it.
        with anyio.CancelScope(shield=True), suppress(PlanwardenError):
            await sessions.close_inbox(owner)
