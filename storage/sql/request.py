"""What a caller asks a writer for: its value or error is set on the writer's thread, and awaited on an event loop."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Request(Generic[Result]):
    """Holds its outcome until `deliver` tells the caller, because a group may be undone and performed again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.value: Result | None = None
        self.error: BaseException | None = None


def deliver(requests: Iterable[Request[Any]], here: asyncio.AbstractEventLoop | None = None) -> None:
    """Wake each event loop once for all of its requests; `here` is the running one."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Request[Any]]] = {}
    for request in requests:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, group in by_loop.items():
        if loop is here:
            _settle(group)
            continue
        # The loop is closed when its program ended without closing the store; the commit is valid all the same.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, group)


def _settle(requests: list[Request[Any]]) -> None:
    for request in requests:
        if request.future.done():
            continue
        if request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.value)
