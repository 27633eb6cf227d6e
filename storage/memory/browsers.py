"""Browsers to notify without a disk: every law of the port except durability."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.browsers import MAX_ALL_BROWSERS, MAX_BROWSERS, NotifiedBrowser
from planwarden.storage.ports.sessions import InboxSession


class MemoryBrowsers:
    """Implements `BrowserStore` for one process."""

    def __init__(
        self,
        audit: Callable[[Sequence[AuditEntry]], Awaitable[None]],
        find_session: Callable[[str, float], InboxSession | None],
        drop_channel: Callable[[str], None],
    ) -> None:
        """`find_session` returns a session that is open; `drop_channel` deletes what waits for a channel."""
        self._audit = audit
        self._find_session = find_session
        self._drop_channel = drop_channel
        self._browsers: dict[str, NotifiedBrowser] = {}

    async def add(self, browser: NotifiedBrowser, entry: AuditEntry) -> bool:
        others = [known for known in await self.all(browser.created_at) if known.browser_id != browser.browser_id]
        own = sum(known.principal == browser.principal for known in others)
        if own >= MAX_BROWSERS or len(others) >= MAX_ALL_BROWSERS:
            return False
        if not self._is_open(browser.session, browser.principal, browser.created_at):
            return False
        for expired in [known for known in self._browsers.values() if known.expires_at <= browser.created_at]:
            self._delete(expired.browser_id)
        self._browsers[browser.browser_id] = browser
        await self._audit((entry,))
        return True

    async def renew(self, browser_id: str, session: str, now: float, expires_at: float) -> bool:
        found = self._browsers.get(browser_id)
        if found is None or not self._is_open(session, found.principal, now):
            return False
        self._browsers[browser_id] = replace(found, session=session, expires_at=expires_at)
        return True

    async def remove(self, browser_id: str, principal: str, at: float, entry: AuditEntry) -> bool:
        found = self._browsers.get(browser_id)
        if found is None or found.principal != principal:
            return False
        self._delete(browser_id)
        await self._audit((entry,))
        return True

    async def count_failure(self, browser_id: str, limit: int) -> bool:
        found = self._browsers.get(browser_id)
        if found is None:
            return False
        self._browsers[browser_id] = replace(found, failures=found.failures + 1)
        if found.failures + 1 < limit:
            return False
        self._delete(browser_id)
        return True

    async def clear_failures(self, browser_id: str) -> None:
        if browser_id in self._browsers:
            self._browsers[browser_id] = replace(self._browsers[browser_id], failures=0)

    async def all(self, now: float) -> tuple[NotifiedBrowser, ...]:
        return tuple(known for known in self._browsers.values() if known.expires_at > now)

    def end(self, session: str | None) -> None:
        """Delete those of a session that ends, or all."""
        for known in [*self._browsers.values()]:
            if session in (None, known.session):
                self._delete(known.browser_id)

    def _is_open(self, session: str, principal: str, now: float) -> bool:
        found = self._find_session(session, now)
        return found is not None and found.principal == principal

    def _delete(self, browser_id: str) -> None:
        browser = self._browsers.pop(browser_id)
        self._drop_channel(browser.channel)
