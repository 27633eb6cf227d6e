"""Channels for notifications: the operator's, and the browsers of people.

The URL of a webhook and the topic of an ntfy server can be secret, so planwarden shows, logs and stores only the name
and the host of a channel.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from planwarden.agent.core.notifications import NotificationKind

if TYPE_CHECKING:
    # Every command reads the settings, and few need what a store is made of.
    from planwarden.storage.ports.browsers import NotifiedBrowser


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationChannel:
    """A channel to which notifications go. This process can deliver to it unless it has a `problem`."""

    name: str
    kind: Literal["webhook", "ntfy", "browser"]
    url: str = field(repr=False)
    host: str
    events: frozenset[NotificationKind]
    key: bytes = field(default=b"", repr=False)
    """For a webhook and a browser: the key that signs its messages."""
    token: str | None = field(default=None, repr=False)
    """For an ntfy server that requires an access token."""
    browser: "NotifiedBrowser | None" = field(default=None, repr=False)
    """A person's browser, which chose the address itself."""
    problem: str | None = None
    """Why this process cannot deliver to it."""
