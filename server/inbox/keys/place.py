"""Whether keys can be used where the browser is: at a name, over https or on this machine, with the extra installed."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from planwarden.server.inbox.request import InboxRequest
from planwarden.server.signatures.options import KeyPlace
from planwarden.server.signatures.signature import EXTRA, is_available, is_of_host


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyObstacle:
    """Why no key can be used, and what helps."""

    text: str
    link: str = ""
    action: str = ""
    """What the link says."""


def place_of(visit: InboxRequest) -> KeyPlace | None:
    """Where the browser is; None when keys cannot be used there."""
    origin = visit.site.origin
    parts = urlsplit(origin or "")
    if origin is None or parts.hostname is None or not is_of_host(origin, parts.hostname):
        return None
    if visit.request.headers.get("host") != parts.netloc:
        return None
    return KeyPlace(rp_id=parts.hostname, origin=origin)


def obstacle(visit: InboxRequest, path: str) -> KeyObstacle | None:
    """What keeps keys from being used on the page at `path`."""
    if not is_available():
        return KeyObstacle(text=f"Signing needs an extra that is not installed where planwarden runs: {EXTRA}")
    if place_of(visit) is not None:
        return None
    origin = visit.site.origin
    if origin is None or urlsplit(origin).netloc == visit.request.headers.get("host"):
        return KeyObstacle(text="Keys cannot be used at this address: that takes https, or localhost on this machine.")
    return KeyObstacle(
        text=f"Keys can be used at {origin} only; a browser that has not been there needs a code again.",
        link=f"{origin}{path}",
        action="Go there",
    )
