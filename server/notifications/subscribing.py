"""A person chooses a browser to be notified in, keeps it, or stops it. What the browser says of itself is foreign."""

import hashlib
import ipaddress
from urllib.parse import urlsplit

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, UsageError
from planwarden.agent.core.audit import AuditEntry, Kind
from planwarden.agent.ports.store import Store
from planwarden.server.notifications.browsers import NOT_INSTALLED, is_push_installed
from planwarden.storage.ports.browsers import MAX_BROWSERS, NotifiedBrowser, browsers_of
from planwarden.storage.ports.sessions import NAMED_DIGITS, InboxSession
from planwarden.tools.web.access import special_range

KEPT_S = 30 * 24 * 3600.0
"""A browser is forgotten when the person was not in the inbox with it for so long."""
MAX_ENDPOINT_CHARS = 2_048
PORT = 443
_PROGRAMS = (("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (
    *(("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("CrOS", "ChromeOS"), ("Windows", "Windows")),
    *(("Mac OS X", "macOS"), ("Linux", "Linux")),
)


async def add_browser(
    store: Store, session: InboxSession, *, endpoint: str, p256dh: str, auth: str, label: str
) -> NotifiedBrowser:
    """Notify this person in that browser from now on.

    Raises:
        UsageError: the extra is not installed, or the session has ended.
        InvalidArguments: the address or the keys are none that a browser has.
        LimitExceeded: there are too many browsers.
    """
    if not is_push_installed():
        raise UsageError(NOT_INSTALLED)
    from planwarden.server.notifications.web_push import read_browser_keys

    check_endpoint(endpoint)
    read_browser_keys(p256dh, auth)
    now = store.clock.now()
    browser = NotifiedBrowser(
        browser_id=derive_browser_id(session.principal, endpoint),
        principal=session.principal,
        session=session.hash,
        endpoint=endpoint,
        p256dh=p256dh,
        auth=auth,
        label=label,
        created_at=now,
        expires_at=now + KEPT_S,
    )
    if not await browsers_of(store).add(browser, _build_entry("browser_added", browser.browser_id, session)):
        raise LimitExceeded(f"you have {MAX_BROWSERS} browsers, or there are too many of all people; stop one first")
    return browser


async def renew_browser(store: Store, session: InboxSession, endpoint: str) -> bool:
    """Let a browser of this person belong to this session; False if it is none of theirs."""
    if len(endpoint) > MAX_ENDPOINT_CHARS:
        return False
    now = store.clock.now()
    browser_id = derive_browser_id(session.principal, endpoint)
    return await browsers_of(store).renew(browser_id, session.hash, now, now + KEPT_S)


async def remove_browser(store: Store, session: InboxSession, browser_id: str) -> bool:
    """Forget a browser of this person; False if it is none of theirs."""
    entry = _build_entry("browser_removed", browser_id, session)
    return await browsers_of(store).remove(browser_id, session.principal, store.clock.now(), entry)


async def list_browsers(store: Store, principal: str) -> tuple[NotifiedBrowser, ...]:
    """The browsers of one person, oldest first."""
    return tuple(found for found in await browsers_of(store).all(store.clock.now()) if found.principal == principal)


def check_endpoint(endpoint: str) -> None:
    """Raises `InvalidArguments` unless it may be the address of a public push service.

    A name is looked up when a message is sent, and every address of it is checked then.
    """
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise InvalidArguments("this is not the address of a push service") from None
    is_usable = len(endpoint) <= MAX_ENDPOINT_CHARS and endpoint.isascii() and endpoint.isprintable()
    if not is_usable or " " in endpoint or parts.scheme != "https" or not parts.hostname or port not in (None, PORT):
        raise InvalidArguments(
            f"the address of a push service is https, on port {PORT}, with at most {MAX_ENDPOINT_CHARS} characters"
        )
    if parts.username is not None or parts.password is not None or parts.fragment or _is_special(parts.hostname):
        raise InvalidArguments("this is not the address of a public push service")


def _is_special(host: str) -> bool:
    try:
        return special_range(ipaddress.ip_address(host)) is not None
    except ValueError:
        return False


def derive_browser_id(principal: str, endpoint: str) -> str:
    """One address has another id for each person, so that nobody can replace what is somebody else's."""
    text = f"planwarden browser/v1\0{principal}\0{endpoint}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def name_browser(user_agent: str) -> str:
    """Which program on which system says so of itself, in planwarden's own words."""
    program = next((name for mark, name in _PROGRAMS if mark in user_agent), "A browser")
    system = next((name for mark, name in _SYSTEMS if mark in user_agent), None)
    return program if system is None else f"{program} on {system}"


def _build_entry(kind: Kind, browser_id: str, session: InboxSession) -> AuditEntry:
    return AuditEntry(
        kind=kind,
        facts={
            "browser": browser_id[:NAMED_DIGITS],
            "principal": session.principal,
            "session": session.hash[:NAMED_DIGITS],
            "channel": "inbox",
        },
    )
