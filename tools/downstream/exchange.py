"""One request to a downstream server, as told to whoever looks on."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """What is known before it is sent; no arguments."""

    server: str
    """The operator's name for it."""
    method: Literal["tools/call"]
    catalogue_name: str
    tool_name: str
    """As the server knows it."""
    protocol_version: str | None
    """As agreed with the server."""
    address: str | None = None
    """Host of a server that is reached over HTTP; None for a process of our own."""
    port: int | None = None


Ended: TypeAlias = Callable[[bool], None]
"""Told whether the tool reported an error."""
Around: TypeAlias = Callable[[ObservedRequest], AbstractContextManager[Ended]]
"""Entered while the server is asked; must not raise by itself."""


@contextmanager
def unobserved(exchange: ObservedRequest) -> Generator[Ended]:
    """The default: nobody looks on."""
    yield lambda is_error: None
