"""Ports for tests that have to know one before anybody listens on it.

A port that the system gave and took back may be given to somebody else before it is used. These are below those that
systems give to connections, and each worker of pytest has its own.
"""

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice

FIRST, OF_WORKER, WORKERS = 20_000, 1_000, 10


def _iterate_ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    ports = range(FIRST + worker * OF_WORKER, FIRST + (worker + 1) * OF_WORKER)
    # Elsewhere than the other runs of the tests on this machine.
    skipped = random.randrange(OF_WORKER)
    return islice(cycle(ports), skipped, None)


_PORTS = _iterate_ports()


def take_port() -> int:
    """Return a port on which nobody listens at any address of `localhost`."""
    return next(filter(_is_free, _PORTS))


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                probe = stack.enter_context(socket.socket(family))
                probe.bind((address, port))
            except OSError as error:
                # A machine may be without IPv6, and then nobody listens there.
                if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                    return False
    return True
