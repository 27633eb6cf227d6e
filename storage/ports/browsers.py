"""The browsers that a person is notified in when no page is open (Web Push): a port that every store implements.

A browser is reached through its push service, at an address that the browser chose. Only the browser can read what is
sent: with its public key and its secret each message is sealed (https://www.rfc-editor.org/rfc/rfc8291). Times are
arguments, in Unix seconds by the store's clock.
"""

from typing import Protocol, runtime_checkable

import msgspec

from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.store import Store

MAX_BROWSERS = 20
"""Of one person."""
MAX_ALL_BROWSERS = 200
"""Of all people: as many messages can be written with one question."""
CHANNEL_PREFIX = "browser:"


class NotifiedBrowser(msgspec.Struct, frozen=True, kw_only=True):
    """One browser of one person. The same browser of another person is another one."""

    browser_id: str
    """32 hexadecimal digits, from the person and the address."""
    principal: str
    session: str
    """Hash of the newest session of that person in it; it is forgotten when that one is ended."""
    endpoint: str
    """Address at the push service; whoever knows it can reach the browser, but not say anything without the keys."""
    p256dh: str
    """The browser's public key, in base64url."""
    auth: str
    """The secret that it shares with this home, in base64url."""
    label: str
    created_at: float
    expires_at: float
    failures: int = 0
    """Attempts in a row that its push service did not accept."""

    @property
    def channel(self) -> str:
        """Name of the channel of its notifications."""
        return name_channel(self.browser_id)


def name_channel(browser_id: str) -> str:
    return CHANNEL_PREFIX + browser_id


class BrowserStore(Protocol):
    """Laws:

    * A browser is stored only while its session is open, and is deleted in the transaction that ends the session.
      A session that runs out by itself deletes nothing.
    * Deleting a browser deletes its waiting notifications too.
    * What names a person changes only rows of that person.
    * `add`, and `remove` with an entry, are stored together with the row of the audit, or not at all.
    """

    async def add(self, browser: NotifiedBrowser, entry: AuditEntry) -> bool:
        """Store it, or replace the row with its id; False when the session has ended or there are too many."""
        ...

    async def renew(self, browser_id: str, session: str, now: float, expires_at: float) -> bool:
        """Let a browser belong to a newer session; False when that one is not open, or is another person's."""
        ...

    async def remove(self, browser_id: str, principal: str, at: float, entry: AuditEntry) -> bool:
        """Delete the browser if it is this person's; False if there was none."""
        ...

    async def count_failure(self, browser_id: str, limit: int) -> bool:
        """Add one to its failures, and delete it with the `limit`-th; True when it was deleted."""
        ...

    async def clear_failures(self, browser_id: str) -> None: ...

    async def all(self, now: float) -> tuple[NotifiedBrowser, ...]:
        """Those that have not expired, oldest first."""
        ...


@runtime_checkable
class HasBrowsers(Protocol):
    """A store that also stores browsers."""

    @property
    def browsers(self) -> BrowserStore: ...


def browsers_of(store: Store) -> BrowserStore:
    """The browsers beside the store's executions. Raises `UsageError` when this store has none."""
    if not isinstance(store, HasBrowsers):
        raise UsageError(f"{type(store).__name__} keeps no browsers, so it cannot notify in them")
    return store.browsers
