"""The loopback sockets on which the inbox listens, chosen so that browsers allow signing keys there.

Browsers bind keys to a host name on a secure page. Of this machine's addresses only `localhost` qualifies, not
127.0.0.1 (https://www.w3.org/TR/webauthn-3/#rp-id, https://www.w3.org/TR/secure-contexts/#localhost). A browser may
connect to either address of that name, so links use the name only if this process listens on both: another program on
the second address would receive the one-time codes in our links.
"""

import errno
import socket

import msgspec

BACKLOG = 64
ATTEMPTS = 10
_OTHER_ADDRESS = {"127.0.0.1": "::1", "::1": "127.0.0.1"}
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""Errors that mean that this machine does not have the address, so no other program can listen on it."""


class InboxSockets(msgspec.Struct, frozen=True, kw_only=True):
    """The loopback sockets of one port."""

    sockets: tuple[socket.socket, ...]
    has_all_addresses: bool
    """This process listens on every address of `localhost` at this port."""

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
    """Listen on this port at every address of `localhost`; None if it is not free at one of them."""
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
