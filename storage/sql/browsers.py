"""Browsers to notify in a SQL database, beside the sessions that they belong to."""

from typing import Any

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.ports.browsers import MAX_ALL_BROWSERS, MAX_BROWSERS, NotifiedBrowser, name_channel
from planwarden.storage.sql.database import Database, SqlTransaction


def end_browsers(transaction: SqlTransaction, session: str | None) -> None:
    """Delete those of a session that ends, or all, inside the caller's transaction."""
    for (browser_id,) in transaction.execute("browsers_of_session", (session, session)).fetchall():
        _delete(transaction, browser_id)


class SqlBrowsers:
    """Implements `BrowserStore`; every condition is checked in the transaction that relies on it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, browser: NotifiedBrowser, entry: AuditEntry) -> bool:
        def add(transaction: SqlTransaction) -> bool:
            transaction.lock("browsers")
            others = transaction.execute("other_browsers", (browser.browser_id, browser.created_at)).fetchall()
            own = sum(principal == browser.principal for (principal,) in others)
            if own >= MAX_BROWSERS or len(others) >= MAX_ALL_BROWSERS:
                return False
            if not _is_open(transaction, browser.session, browser.principal, browser.created_at):
                return False
            for (expired,) in transaction.execute("expired_browsers", (browser.created_at,)).fetchall():
                _delete(transaction, expired)
            row = (browser.browser_id, browser.principal, browser.session, browser.endpoint, browser.p256dh)
            transaction.execute(
                "add_browser", (*row, browser.auth, browser.label, browser.created_at, browser.expires_at)
            )
            transaction.add_audit((entry,), browser.created_at)
            return True

        return await self._database.write(add)

    async def renew(self, browser_id: str, session: str, now: float, expires_at: float) -> bool:
        def renew(transaction: SqlTransaction) -> bool:
            found = transaction.execute("browser_principal", (browser_id,)).fetchone()
            if found is None or not _is_open(transaction, session, found[0], now):
                return False
            return transaction.execute("renew_browser", (session, expires_at, browser_id)).rowcount == 1

        return await self._database.write(renew)

    async def remove(self, browser_id: str, principal: str, at: float, entry: AuditEntry) -> bool:
        def remove(transaction: SqlTransaction) -> bool:
            found = transaction.execute("browser_principal", (browser_id,)).fetchone()
            if found is None or found[0] != principal or not _delete(transaction, browser_id):
                return False
            transaction.add_audit((entry,), at)
            return True

        return await self._database.write(remove)

    async def count_failure(self, browser_id: str, limit: int) -> bool:
        def count(transaction: SqlTransaction) -> bool:
            found = transaction.execute("count_browser_failure", (browser_id,)).fetchone()
            return found is not None and found[0] >= limit and _delete(transaction, browser_id)

        return await self._database.write(count)

    async def clear_failures(self, browser_id: str) -> None:
        await self._database.write(
            lambda transaction: transaction.execute("clear_browser_failures", (browser_id,)).rowcount
        )

    async def all(self, now: float) -> tuple[NotifiedBrowser, ...]:
        return tuple(map(_browser, await self._database.fetch("browsers", (now,))))


def _is_open(transaction: SqlTransaction, session: str, principal: str, now: float) -> bool:
    """Whether the session is open and that person's; nobody else ends it before this transaction does."""
    found = transaction.execute("hold_session", (session, now)).fetchone()
    return found is not None and found[0] == principal


def _delete(transaction: SqlTransaction, browser_id: str) -> bool:
    transaction.execute("delete_channel_notifications", (name_channel(browser_id),))
    return transaction.execute("delete_browser", (browser_id,)).rowcount == 1


def _browser(row: tuple[Any, ...]) -> NotifiedBrowser:
    browser_id, principal, session, endpoint, p256dh, auth, label, created_at, expires_at, failures = row
    return NotifiedBrowser(
        browser_id=browser_id,
        principal=principal,
        session=session,
        endpoint=endpoint,
        p256dh=p256dh,
        auth=auth,
        label=label,
        created_at=created_at,
        expires_at=expires_at,
        failures=failures,
    )
