"""Lets telemetry observe each request to a downstream server."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, TypeAlias

import msgspec


class ObservedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request before it is sent, without its arguments."""

    server: str
    """The operator's name for the server."""
    method: Literal["tools/call"]
    catalogue_name: str
    tool_name: str
    """The server's own name for the tool."""
    protocol_version: str | None
    """As agreed with the server."""
    address: str | None = None
    """Host of a server that is reached over HTTP; None for a child process."""
    port: int | None = None


OnRequestEnd: TypeAlias = Callable[[bool], None]
"""Takes whether the tool reported an error."""
RequestObserver: TypeAlias = Callable[[ObservedRequest], AbstractContextManager[OnRequestEnd]]
"""Returns a context that is entered while the server works on the request; it must not raise by itself."""


@contextmanager
def ignore_request(request: ObservedRequest) -> Generator[OnRequestEnd]:
    """The default, which observes nothing."""
    yield lambda is_error: None
