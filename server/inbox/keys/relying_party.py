"""Whether keys can be used where the browser is: at a name, over https or on this machine, with the extra installed."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from planwarden.server.inbox.request import InboxRequest
from planwarden.server.signatures.browser_options import RelyingParty
from planwarden.server.signatures.signature import EXTRA, can_use_keys_of, is_available


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyObstacle:
    """Why no key can be used, and what helps."""

    text: str
    link: str = ""
    action: str = ""
    """What the link says."""


def find_relying_party(request: InboxRequest) -> RelyingParty | None:
    """Where the browser is; None when keys cannot be used there."""
    origin = request.site.origin
    parts = urlsplit(origin or "")
    if origin is None or parts.hostname is None or not can_use_keys_of(origin, parts.hostname):
        return None
    if request.http.headers.get("host") != parts.netloc:
        return None
    return RelyingParty(rp_id=parts.hostname, origin=origin)


def find_obstacle(request: InboxRequest, path: str) -> KeyObstacle | None:
    """What keeps keys from being used on the page at `path`."""
    if not is_available():
        return KeyObstacle(text=f"Signing needs an extra that is not installed where planwarden runs: {EXTRA}")
    if find_relying_party(request) is not None:
        return None
    origin = request.site.origin
    if origin is None or urlsplit(origin).netloc == request.http.headers.get("host"):
        return KeyObstacle(text="Keys cannot be used at this address: that takes https, or localhost on this machine.")
    return KeyObstacle(
        text=f"Keys can be used at {origin} only; a browser that has not been there needs a code again.",
        link=f"{origin}{path}",
        action="Go there",
    )
