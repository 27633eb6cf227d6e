"""The service that requests use, opened in the background after the first answers, which do not need it.

Opening imports most of planwarden. Even on another thread, the imports would slow down the thread that answers. So
opening begins when a request needs the service, or after `HEADSTART_S`. If the store cannot be opened, the server
continues, and every call that needs the service returns the reason to its caller.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import anyio
from anyio.abc import TaskGroup
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.server.api.service import Service

logger = logging.getLogger(__name__)

HEADSTART_S = 0.25
"""How long opening waits unless a request needs the service: enough for hosts' first requests, too short to notice."""

ServiceOpener = Callable[[], AbstractAsyncContextManager[Service]]


class LazyService:
    """The service of one running server, and the principal of the current request."""

    def __init__(self, opening: ServiceOpener, principal: Callable[[], str]) -> None:
        self._opening = opening
        self.principal = principal
        """The function that returns the principal of the request that is being served."""
        self.listener_tasks: TaskGroup
        """The tasks that outlive their request. They must not raise; a server that stops cancels them."""
        self._service: Service | None = None
        self._failure: PlanwardenError | None = None
        self._wanted = anyio.Event()
        self._settled = anyio.Event()
        self._closing = anyio.Event()

    async def service(self) -> Service:
        """Return the service once it is open; open it if necessary. Raises the error that prevented opening."""
        self._wanted.set()
        await self._settled.wait()
        if self._service is None:
            raise self._failure or StoreError("the server is shutting down")
        return self._service

    @asynccontextmanager
    async def run(self) -> AsyncGenerator["LazyService"]:
        """Open and close the service in one task of its own: a task group must exit in the task that entered it."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._open_until_closed)
            try:
                async with anyio.create_task_group() as self.listener_tasks:
                    yield self
                    self.listener_tasks.cancel_scope.cancel()
            finally:
                self._closing.set()
                self._wanted.set()

    async def _open_until_closed(self) -> None:
        """Open the service, and close it at the end. A shield lets even a cancelled server close its store; closing
        takes only as long as the engine allows."""
        try:
            with anyio.move_on_after(HEADSTART_S):
                await self._wanted.wait()
            if self._closing.is_set():
                # No request needed the service, so there is nothing to close.
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


ServiceContext = ServerRequestContext[LazyService, Any]


@contextmanager
def translate_errors(code: int = INTERNAL_ERROR) -> Generator[None]:
    """Raise each `PlanwardenError` as an error of the protocol, for methods whose results have no place for errors."""
    try:
        yield
    except PlanwardenError as error:
        raise MCPError(code=code, message=f"{error.code}: {error.message}") from None
