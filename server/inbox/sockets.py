"""Where the inbox listens so that browsers let keys be used there.

Keys are bound to the name of a host and to secure pages: of this machine's own addresses that is `localhost` alone, not
127.0.0.1 (https://www.w3.org/TR/webauthn-3/#rp-id, https://www.w3.org/TR/secure-contexts/#localhost). A browser goes to
either of the addresses behind that name, so the name is used only where both are ours: whoever else listened on the other
one would be given the one-time codes of our links.
"""

import errno
import socket
from dataclasses import dataclass

BACKLOG = 64
ATTEMPTS = 10
_OTHER_ADDRESS = {"127.0.0.1": "::1", "::1": "127.0.0.1"}
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})
"""There is no such address on this machine, so nobody can listen on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxSockets:
    """Loopback sockets of one port."""

    sockets: tuple[socket.socket, ...]
    has_all_addresses: bool
    """Every address of `localhost` at this port is ours."""

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    @property
    def origin(self) -> str | None:
        """Where keys can be used; None where they cannot."""
        return f"http://localhost:{self.port}" if self.has_all_addresses else None

    @property
    def base_url(self) -> str:
        """For links."""
        return self.origin or f"http://127.0.0.1:{self.port}"

    @property
    def host_headers(self) -> tuple[str, ...]:
        """The `Host` headers that are ours."""
        return tuple(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def close(self) -> None:
        for listener in self.sockets:
            listener.close()


def open_sockets() -> InboxSockets:
    """A free port, if possible one that is ours at every address. Raises `OSError` when there is none."""
    for _ in range(ATTEMPTS):
        found = pair_socket(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        if found.has_all_addresses:
            return found
        found.close()
    return pair_socket(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))


def pair_socket(listener: socket.socket) -> InboxSockets:
    """The socket together with one on the other loopback address, if that can be had at the same port."""
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
