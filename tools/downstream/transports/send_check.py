"""The last check before the bytes of a request leave: a call that waited for its turn may no longer be ours to send.

The task that sends a request sets the check; the transport calls it immediately before it writes.
"""

from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import ContextVar

SendCheck = Callable[[], Coroutine[object, object, None]]
"""Raises `LeaseLost` when the request must not be sent."""

NOT_SENT = -32096
"""Our code for a request that did not reach the server, or that it refused unread."""
LOST = -32095
"""Our code for a request that was sent and not answered."""
TOO_LARGE = -32097
"""Our code for an answer that was too large to be read."""

send_check: ContextVar[SendCheck | None] = ContextVar("send_check", default=None)


@contextmanager
def checked(check: SendCheck | None) -> Generator[None]:
    """Requests that the current task sends inside are checked."""
    token = send_check.set(check)
    try:
        yield
    finally:
        send_check.reset(token)
