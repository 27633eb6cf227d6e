"""Whether the browser can use keys at its address: a host name, https or localhost, and the extra installed."""

from urllib.parse import urlsplit

import msgspec

from planwarden.server.inbox.request import InboxRequest
from planwarden.server.signatures.browser_options import RelyingParty
from planwarden.server.signatures.signature import EXTRA, can_use_keys_of, is_available


class KeyObstacle(msgspec.Struct, frozen=True, kw_only=True):
    """Why the browser cannot use a key, and what helps."""

    text: str
    link: str = ""
    action: str = ""
    """The text of the link."""


def find_relying_party(request: InboxRequest) -> RelyingParty | None:
    """The relying party at the browser's address; None if browsers cannot use keys there."""
    origin = request.site.origin
    parts = urlsplit(origin or "")
    if origin is None or parts.hostname is None or not can_use_keys_of(origin, parts.hostname):
        return None
    if request.http.headers.get("host") != parts.netloc:
        return None
    return RelyingParty(rp_id=parts.hostname, origin=origin)


def find_obstacle(request: InboxRequest, path: str) -> KeyObstacle | None:
    """Why the browser cannot use keys on the page at `path`; None if it can."""
    if not is_available():
        return KeyObstacle(text=f"Signing needs an extra that is not installed with planwarden: {EXTRA}")
    if find_relying_party(request) is not None:
        return None
    origin = request.site.origin
    if origin is None or urlsplit(origin).netloc == request.http.headers.get("host"):
        return KeyObstacle(
            text="Browsers cannot use keys at this address; they need https, or localhost on this machine."
        )
    return KeyObstacle(
        text=f"Browsers can use keys at {origin} only; a browser without a session there needs a new code.",
        link=f"{origin}{path}",
        action="Go there",
    )
