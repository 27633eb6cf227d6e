"""The operator's channels for notifications.

The URL of a webhook and the topic of an ntfy server can be secret, so planwarden shows, logs and stores only the name
and the host of a channel.
"""

from typing import Literal

import msgspec

from planwarden.agent.core.notifications import NotificationKind


class NotificationChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel to which notifications go. This process can deliver to it unless it has a `problem`."""

    name: str
    kind: Literal["webhook", "ntfy"]
    url: str
    host: str
    events: frozenset[NotificationKind]
    key: bytes = b""
    """For a webhook: the key that signs its messages."""
    token: str | None = None
    """For an ntfy server that requires an access token."""
    problem: str | None = None
    """Why this process cannot deliver to it."""

    def __repr__(self) -> str:
        return f"NotificationChannel({self.name!r}, {self.kind}, {self.host!r}, problem={self.problem!r})"
