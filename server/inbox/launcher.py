"""The inbox of a process without a port: it opens on a free loopback port when a question first needs a person.

Before that, the process listens on no port and imports no web framework. Several processes of one home may each open an
inbox. Each inbox shows all open questions of the database, and a decision counts in whichever inbox a person makes it.
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
from planwarden.server.settings.configuration import Settings, find_operator
from planwarden.storage.ports.sessions import sessions_of

logger = logging.getLogger(__name__)

QUIET_S = 60.0
"""The launcher opens no browser for so long after it opened one, or after a person used the inbox."""

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
                logger.warning("cannot open the inbox: %s; decide with `planwarden approve` in a terminal", error)
                return None
            self._url = f"{listening.base_url}{INBOX_PATH}"
            self._tasks.start_soon(self._serve, listening, self._url)
        return self._url

    def on_commit(self, commit: Commit | None) -> None:
        """Open the inbox while an execution of this process waits for a person."""
        if commit is None or commit.is_foreign:
            return
        execution = commit.execution
        waiting = [item.question for item in execution.open_suspensions if item.question.addressee == "human"]
        if not waiting:
            return
        self._service.find_inbox(execution)
        question = next((question for question in waiting if question.needs not in (None, "client")), None)
        if question is not None:
            self.call_person(question.suspension_id)

    def call_person(self, suspension_id: str) -> None:
        """Open the browser with a one-time code, once per question, unless a person has just used the inbox."""
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
        """A person with a session has just requested a page."""
        self._active_at = anyio.current_time()

    async def _open_browser(self, opener: Opener, url: str, suspension_id: str) -> None:
        """Hand a one-time code to the browser; the code never passes through MCP."""
        from planwarden.server.inbox.sessions import InboxAccess

        try:
            codes = await InboxAccess(self._service.engine.store).make_codes(find_operator(), "browser")
        except PlanwardenError as error:
            logger.warning("cannot open the inbox in a browser: %s", error.message)
            return
        page = build_pairing_url(url, codes.link, f"{INBOX_PATH}/suspensions/{suspension_id}")
        if not await anyio.to_thread.run_sync(opener, page):
            logger.warning("cannot open a browser; the inbox is at %s, run `planwarden inbox` to log in", url)

    async def _serve(self, listening: InboxSockets, url: str) -> None:
        # Imported here: a server that never needs a person never imports the web framework.
        from planwarden.server.inbox.app import build_inbox_app
        from planwarden.server.inbox.site import InboxSite

        site = InboxSite(
            service=lambda: self._service,
            settings=self._settings,
            on_activity=self.record_activity,
            origin=listening.origin,
        )
        try:
            async with announce_inbox(self._service, url):
                await serve_app(build_inbox_app(site, lambda: listening.host_headers), *listening.sockets)
        except PlanwardenError as error:
            # The server continues without an inbox; the next question tries again.
            logger.warning("cannot open the inbox: %s", error.message)
            self._url = self._service.inbox_url = None
        finally:
            listening.close()


@asynccontextmanager
async def with_launcher(
    settings: Settings, service: Service, *, opener: Opener = open_page
) -> AsyncGenerator[InboxLauncher]:
    """Let the service open an inbox when it needs one, until the block ends."""
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
    """Let the other processes of the home find the inbox at `url` until the block ends."""
    store, owner = service.engine.store, service.engine.ids.new()
    sessions = sessions_of(store)
    await sessions.open_inbox(owner, url, store.clock.now())
    service.inbox_url = url
    try:
        yield
    finally:
        service.inbox_url = None
        # A closed store raises; its liveness file has ended the entry already.
        with anyio.CancelScope(shield=True), suppress(PlanwardenError):
            await sessions.close_inbox(owner)
