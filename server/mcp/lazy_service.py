"""Where requests find the service: it opens in the background, after the answers that need nothing of it.

Opening imports most of planwarden, which on another thread would still take its turns from the thread that answers. So
it begins when a request asks for the service, or when the server has had a moment to introduce itself. A store that cannot be opened does not end the server: every call says why, which is where somebody will read it.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.server.api.service import Service
from planwarden.server.api.warden import Warden

logger = logging.getLogger(__name__)

HEADSTART_S = 0.25
"""How long opening waits to be asked for: enough for what hosts ask first, too short for anybody to notice."""

ServiceOpener = Callable[[], AbstractAsyncContextManager[Service]]


class LazyService:
    """The service of one running server, and who asks for it."""

    def __init__(self, opening: ServiceOpener, principal: Callable[[], str]) -> None:
        self._opening = opening
        self.principal = principal
        """On whose behalf the request that is being served acts."""
        self._listeners: TaskGroup | None = None
        self._service: Service | None = None
        self._failure: PlanwardenError | None = None
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._closing = anyio.Event()

    async def service(self) -> Service:
        """The service as soon as it is open, which begins now if it has not. Raises what kept it from opening."""
        self._wanted.set()
        await self._settled.wait()
        if self._service is None:
            raise self._failure or StoreError("the server is shutting down")
        return self._service

    @property
    def listener_tasks(self) -> TaskGroup:
        """Where whatever outlives a request runs; it is cancelled when the server stops. A task in it must not raise."""
        if self._listeners is None:
            raise StoreError("the server is not running")
        return self._listeners

    @asynccontextmanager
    async def run(self) -> AsyncGenerator["LazyService"]:
        """Opens in a task of its own, which also closes: a task group must be left where it was entered."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._open_until_closed)
            try:
                async with anyio.create_task_group() as self._listeners:
                    yield self
                    self._listeners.cancel_scope.cancel()
            finally:
                self._closing.set()
                self._wanted.set()

    async def _open_until_closed(self) -> None:
        """Shielded: a cancelled server still closes its store in order; the engine bounds how long that takes."""
        try:
            with anyio.move_on_after(HEADSTART_S):
                await self._wanted.wait()
            if self._closing.is_set():
                # Nobody has asked; what was never opened need not be closed.
                return
            with anyio.CancelScope(shield=True):
                async with self._opening() as service:
                    self._service = service
                    self._settled.set()
                    await self._closing.wait()
        except PlanwardenError as error:
            if self._settled.is_set():
                raise
            logger.error("cannot open the store: %s", error.message)
            self._failure = error
        finally:
            self._service = None
            self._settled.set()


def build_service_opener(warden: Warden) -> ServiceOpener:
    """Opens the warden's store and engine; for one server at a time."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Service]:
        async with warden:
            yield warden.service

    return opened
