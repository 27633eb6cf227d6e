"""The browsers of people as channels: which of them a question concerns, and how each is reached.

A process that appends events needs the list at once, so it keeps a copy and reads it again every `LOOK_S` seconds. A
browser that was added a moment ago in another process may therefore miss a question; its page shows it anyway.
"""

import importlib.util
import logging
from collections.abc import Sequence
from functools import cache
from urllib.parse import urlsplit

from planwarden.agent.common.errors import PlanwardenError
from planwarden.agent.core.notifications import NotificationKind
from planwarden.agent.core.question import Needs
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.policy import Policy
from planwarden.server.notifications.channels import NotificationChannel
from planwarden.storage.ports.browsers import BrowserStore, NotifiedBrowser
from planwarden.storage.ports.secrets import SecretStore

logger = logging.getLogger(__name__)

LOOK_S = 2.0
MAX_FAILURES = 40
"""A browser that so many attempts in a row did not reach is forgotten: some four notifications, tried for a day."""
EVENTS: frozenset[NotificationKind] = frozenset({"asked", "reminded", "escalated"})
"""What calls for a person. A browser has to show each message, so outcomes would only be noise."""
MAX_HOST_CHARS = 100
NOT_INSTALLED = "this needs `pip install 'planwarden[push]'`"


@cache
def is_push_installed() -> bool:
    """Whether the extra `push` is there; imports nothing of it."""
    return all(importlib.util.find_spec(name) is not None for name in ("cryptography", "jwt"))


class BrowserChannels:
    """The browsers of all people, as `refresh` last read them."""

    def __init__(self, browsers: BrowserStore, clock: Clock, policy: Policy, secrets: SecretStore) -> None:
        """`policy` says whose answer counts; `secrets` keeps the key that signs what is sent."""
        self._browsers = browsers
        self._clock = clock
        self._policy = policy
        self._secrets = secrets
        self._known: tuple[NotifiedBrowser, ...] = ()
        self._key = b""
        self._problem: str | None = None

    @property
    def has_any(self) -> bool:
        return bool(self._known)

    async def refresh(self) -> None:
        """Read them again. Raises `StoreError`."""
        self._known = await self._browsers.all(self._clock.now())

    async def find_reachable(self) -> Sequence[NotificationChannel]:
        """All of them, read again; none while this process has not what it takes to write to them."""
        await self.refresh()
        if self._known and not self._key:
            await self._load_key()
        return [build_channel(browser, self._key) for browser in self._known] if self._key else ()

    def find_concerned(self, kind: NotificationKind, needs: Needs | None, owner: str) -> Sequence[NotificationChannel]:
        """The browsers of those who may answer a question of `owner` that needs this."""
        if kind not in EVENTS:
            return ()
        return [
            build_channel(browser)
            for browser in self._known
            if self._policy.worth("signed", browser.principal, owner, needs) is not None
        ]

    async def record(self, browser: NotifiedBrowser, *, is_delivered: bool, is_gone: bool) -> None:
        """Remember an attempt; forget a browser that its push service no longer knows, or never reaches."""
        if is_delivered:
            if browser.failures:
                await self._browsers.clear_failures(browser.browser_id)
        elif await self._browsers.count_failure(browser.browser_id, 1 if is_gone else MAX_FAILURES):
            logger.info("forgot %s: its push service does not reach it any more", browser.channel)

    async def _load_key(self) -> None:
        if not is_push_installed():
            return
        # Imported here: most homes have no browser to notify, and a cold start waits for every import.
        from planwarden.server.notifications.web_push import load_push_key

        try:
            self._key = await load_push_key(self._secrets)
        except PlanwardenError as error:
            if error.message != self._problem:
                logger.error("nobody is notified in a browser: %s", error.message)
            self._problem = error.message


def build_channel(browser: NotifiedBrowser, key: bytes = b"") -> NotificationChannel:
    """The browser as a channel; `key` signs what is sent to it."""
    return NotificationChannel(
        name=browser.channel,
        kind="browser",
        url=browser.endpoint,
        host=urlsplit(browser.endpoint).netloc.lower()[:MAX_HOST_CHARS],
        events=EVENTS,
        key=key,
        browser=browser,
    )
