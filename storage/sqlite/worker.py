"""Threads that own a SQLite connection. Callers await a future; only the thread touches the connection.

The writer commits together whatever is waiting (group commit): one BEGIN IMMEDIATE, one COMMIT, one wait for the disk.
An operation must make its first write its only conditional one, so that refusing it leaves nothing behind. Cancelling a
caller cancels its wait, never the transaction.
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.storage.sqlite.database import FAULTS, store_error

Result = TypeVar("Result")
Operation = Callable[[sqlite3.Connection], Result]

MAX_GROUP = 256


class _Request(Generic[Result]):
    __slots__ = ("error", "future", "loop", "operation", "value")

    def __init__(self, operation: Operation[Result]) -> None:
        self.operation = operation
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.value: Result | None = None
        self.error: BaseException | None = None


class Worker:
    """Runs operations on its connection, in order. `group` makes it a writer with group commit.

    `check` is called before each transaction, and raises when the file must not be used any more.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        *,
        group: bool,
        check: Callable[[], None] = lambda: None,
        lock: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._connection = connection
        self._path = path
        self._group = group
        self._check = check
        self._lock = lock
        self._requests: deque[_Request[Any]] = deque()
        """In order; appended to by event loops, emptied by the thread."""
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        """One entry whenever there may be requests; False is the last."""
        self._waking: asyncio.AbstractEventLoop | None = None
        """The loop that will wake the thread when its present turn is over."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"planwarden {'writer' if group else 'reader'}")
        self._thread.daemon = True
        self._thread.start()

    async def run(self, operation: Operation[Result]) -> Result:
        """The operation's result once it is committed (writer) or read (reader).

        Raises:
            StoreError: the medium failed or the worker is closed; nothing of the operation is stored.
            PlanwardenError: whatever the operation itself refused.
        """
        if self._closed:
            raise StoreError("the store is closed")
        request = _Request(operation)
        self._requests.append(request)
        if not self._group:
            self._wakes.put(True)
        elif self._waking is not request.loop:
            self._waking = request.loop
            request.loop.call_soon(self._wake)
        return await request.future

    def _wake(self) -> None:
        """Called when everything that was ready in the loop's turn has run, so that what it asks for is one group.

        Woken by the first request, the thread would compete with the loop for the interpreter, statement by statement.
        """
        self._waking = None
        self._wakes.put(True)

    async def close(self) -> None:
        """Finish what is queued and close the connection."""
        if not self._closed:
            self._closed = True
            self._wakes.put(False)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        is_open = True
        while is_open:
            is_open = self._wakes.get()
            while batch := self._batch():
                self._perform(batch)
                _deliver(batch)
        # Closing the last connection checkpoints the log, which is a write. Without the lock the next opener does it.
        with suppress(StoreError), self._lock():
            self._connection.close()

    def _batch(self) -> list[_Request[Any]]:
        """The oldest requests, as many as are performed together; empty when there are none."""
        found: list[_Request[Any]] = []
        while self._requests and len(found) < (MAX_GROUP if self._group else 1):
            found.append(self._requests.popleft())
        return found

    def _perform(self, batch: list[_Request[Any]]) -> None:
        if not self._group:
            for request in batch:
                self._attempt(request)
            return
        failure, has_begun = self._commit_together(batch)
        if failure is None:
            return
        if len(batch) == 1 or not has_begun:
            for request in batch:
                request.error = failure
            return
        # One operation may have broken the transaction of all: run each in a transaction of its own.
        for request in batch:
            request.error = None
            request.error = self._commit_together([request])[0] or request.error

    def _commit_together(self, batch: list[_Request[Any]]) -> tuple[BaseException | None, bool]:
        """No failure when the transaction was committed; refusals of single operations stand in their requests.

        The second value is False when there was not even a transaction: somebody else holds the lock.
        """
        has_begun = False
        try:
            with self._lock(), self._transaction():
                has_begun = True
                for request in batch:
                    try:
                        request.value = request.operation(self._connection)
                    except PlanwardenError as refusal:
                        request.error = refusal
        except FAULTS as error:
            return _translated(error, self._path), has_begun
        # Outermost loop of this thread: whatever an operation raises belongs to the caller that awaits it.
        except Exception as error:  # noqa: BLE001
            return error, has_begun
        return None, True

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._check()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # SQLite has already rolled back after some errors, a full disk among them.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _attempt(self, request: _Request[Any]) -> None:
        try:
            self._check()
            request.value = request.operation(self._connection)
        except FAULTS as error:
            request.error = _translated(error, self._path)
        # As above.
        except Exception as error:  # noqa: BLE001
            request.error = error


def _translated(error: Exception, path: Path) -> StoreError:
    translated = store_error(error, path)
    translated.__cause__ = error
    return translated


def _deliver(batch: list[_Request[Any]]) -> None:
    """Wake each event loop once for all of its requests."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Request[Any]]] = {}
    for request in batch:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, requests in by_loop.items():
        # The loop is closed when its program ended without closing the store; the commit stands all the same.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, requests)


def _settle(requests: list[_Request[Any]]) -> None:
    for request in requests:
        if request.future.done():
            continue
        if request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.value)
