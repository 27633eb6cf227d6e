"""Decides where a home's inbox is: a port that stays the same, and which of the home's processes serves there.

A lock in the home admits one process. The operating system frees the lock when that process ends, however it ends. The
next process that takes the lock listens at the same port, which a file in the home remembers. A paused process keeps
both lock and port. A process that uses another store with the settings of this home has an inbox of its own.

Browsers bind signing keys to a host name on a secure page. Of this machine's names only `localhost` qualifies, and
127.0.0.1 does not (https://www.w3.org/TR/webauthn-3/#rp-id, https://www.w3.org/TR/secure-contexts/#localhost). For
`localhost`, a browser may connect to 127.0.0.1 or to ::1, so links use the name only if no other program can listen on
either address; otherwise that program would receive the one-time codes in our links.
"""

import errno
import hashlib
import logging
import os
import socket
import time
from contextlib import ExitStack
from urllib.parse import urlencode

import msgspec

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.paths import replace_file
from planwarden.server.settings.configuration import DATABASE, Settings
from planwarden.storage.locks import WriteLock

logger = logging.getLogger(__name__)

INBOX_PATH = "/inbox"
"""The path of the inbox; every page is below it."""
PORT = 8766
"""The port of an inbox for which the settings name none."""
NEXT_PORTS = range(PORT + 1, PORT + 20)
"""The ports to try in this order when the wanted port is taken; after them, any free port will do."""
PATIENCE_S = 3.0
"""How long a port may stay busy after its process has ended. If it is busy for longer, another program has taken it."""
MAX_RECORD_BYTES = 1_000
HOSTS = ("localhost", "127.0.0.1")
BACKLOG = 64
ATTEMPTS = 10
_OTHER_ADDRESS = {"127.0.0.1": "::1", "::1": "127.0.0.1"}
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""Errors that mean that this machine does not have the address, so no other program can listen on it."""


def build_pairing_url(url: str, code: str, target: str = INBOX_PATH) -> str:
    """Return a link that works once: it opens the inbox in one browser, which then goes to `target`."""
    return f"{url}/pair?{urlencode({'code': code, 'next': target})}"


class InboxSockets(msgspec.Struct, frozen=True, kw_only=True):
    """The loopback sockets of one port."""

    sockets: tuple[socket.socket, ...]
    has_all_addresses: bool
    """Whether this process listens at this port on every address of `localhost` that the machine has."""

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    @property
    def origin(self) -> str | None:
        """The origin at which keys can be used; None if there is none."""
        return f"http://localhost:{self.port}" if self.has_all_addresses else None

    @property
    def base_url(self) -> str:
        """The address for links."""
        return self.origin or f"http://127.0.0.1:{self.port}"

    @property
    def host_headers(self) -> tuple[str, ...]:
        """The `Host` headers of requests to this inbox."""
        return tuple(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def close(self) -> None:
        for listener in self.sockets:
            listener.close()


def open_port(port: int) -> InboxSockets | None:
    """Listen on this port at every address of `localhost`; return None if the port is taken at any of them."""
    try:
        opened = pair_socket(socket.create_server(("127.0.0.1", port), backlog=BACKLOG))
    except OSError:
        return None
    if opened.has_all_addresses:
        return opened
    opened.close()
    return None


def open_sockets() -> InboxSockets:
    """Listen on a free port, if possible on every address of `localhost`. Raises `OSError` if no port is free."""
    for _ in range(ATTEMPTS):
        if (opened := open_port(0)) is not None:
            return opened
    return pair_socket(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))


def pair_socket(listener: socket.socket) -> InboxSockets:
    """Return the socket, and one on the other loopback address at the same port if that port is free there."""
    address, port = listener.getsockname()[:2]
    other = _OTHER_ADDRESS.get(address)
    if other is None:
        return InboxSockets(sockets=(listener,), has_all_addresses=False)
    try:
        family = socket.AF_INET6 if ":" in other else socket.AF_INET
        return InboxSockets(
            sockets=(listener, socket.create_server((other, port), family=family, backlog=BACKLOG)),
            has_all_addresses=True,
        )
    except OSError as error:
        return InboxSockets(sockets=(listener,), has_all_addresses=error.errno in _NO_SUCH_ADDRESS)


class PlaceRecord(msgspec.Struct, frozen=True):
    """What the home remembers of its inbox."""

    port: int
    host: str
    """The host in links to the inbox: `localhost`, or `127.0.0.1` if another program may listen at `localhost`."""
    pid: int
    """The process that serves the inbox, or served it last."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{INBOX_PATH}"


class InboxPort:
    """The port and the lock of an inbox, as one process sees them."""

    def __init__(self, settings: Settings) -> None:
        home, path = settings.home, settings.store.path
        store = settings.store.identity.encode("utf-8", "surrogatepass")
        scope = "" if path == home / DATABASE else f"-{hashlib.sha256(store).hexdigest()[:12]}"
        self._record_path = home / f"inbox{scope}.json"
        self._lock_path = home / f"inbox{scope}.lock"
        self._wanted_port = settings.tables.inbox.port
        self._held = ExitStack()
        self._busy_since: float | None = None
        self.url: str | None = None
        """Where the inbox of any process was at the last `take`; None if there was none."""

    @property
    def is_known(self) -> bool:
        """Whether the home has had an inbox: then links may lead to it, and pages may wait for it."""
        return self._record_path.exists()

    def take(self) -> InboxSockets | None:
        """Return the sockets that this process has to serve from now on; None if another process serves the inbox.

        Also return None while the port of a process that has just ended is busy. If the lock fails, use any free port.

        Raises:
            OSError: no port is free.
        """
        self.url = None
        try:
            listening = self._take_locked()
        except StoreError as error:
            logger.warning("the port of the inbox will change: %s", error.message)
            listening = open_sockets()
            self._held.callback(listening.close)
        if listening is not None:
            self.url = f"{listening.base_url}{INBOX_PATH}"
        return listening

    def leave(self) -> None:
        """Let another process serve the inbox. The port becomes free before that process gets the lock."""
        self._held.close()
        self.url = None

    def read(self) -> PlaceRecord | None:
        """Return what the home remembers; None if there is no record, or none that can be read."""
        try:
            with self._record_path.open("rb") as file:
                record = msgspec.json.decode(file.read(MAX_RECORD_BYTES), type=PlaceRecord)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return record if record.port in range(1, 65_536) and record.host in HOSTS else None

    def _take_locked(self) -> InboxSockets | None:
        with ExitStack() as stack:
            lock = WriteLock(self._lock_path)
            stack.callback(lock.close)
            is_free = stack.enter_context(lock.held_if_free())
            record = self.read()
            if not is_free:
                self._busy_since = None
                self.url = None if record is None else record.url
                return None
            listening = self._listen(record)
            if listening is not None:
                stack.callback(listening.close)
                self._remember(listening)
                self._held = stack.pop_all()
            return listening

    def _listen(self, record: PlaceRecord | None) -> InboxSockets | None:
        """Listen at the wanted port, else the last, else one near `PORT`; None if the last may still be in use."""
        last = None if record is None else record.port
        first = self._wanted_port or last or PORT
        for port in dict.fromkeys((first, last or first, *NEXT_PORTS)):
            listening = open_port(port)
            if listening is None and port == last and self._may_be_closing():
                return None
            if listening is not None:
                break
        else:
            listening = open_sockets()
        self._busy_since = None
        if listening.port != first:
            logger.warning(
                "port %d is not free, so the inbox is at %s from now on; [inbox] port in planwarden.toml names another",
                first,
                listening.base_url,
            )
        return listening

    def _may_be_closing(self) -> bool:
        """Return whether a killed process may still hold the port. Its port becomes free a moment after its lock."""
        now = time.monotonic()
        if self._busy_since is None:
            self._busy_since = now
        return now - self._busy_since < PATIENCE_S

    def _remember(self, listening: InboxSockets) -> None:
        host = HOSTS[0] if listening.has_all_addresses else HOSTS[1]
        record = PlaceRecord(port=listening.port, host=host, pid=os.getpid())
        try:
            replace_file(self._record_path, msgspec.json.encode(record))
        except OSError as error:
            raise StoreError(f"cannot write {str(self._record_path)!r}: {error.strerror}") from error
