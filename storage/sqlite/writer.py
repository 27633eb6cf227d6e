"""The connection that writes: it commits on the event loop while the disk is quick, otherwise on its own thread.

Whatever is asked for in one turn of the loop is committed together when the turn is over (group commit): one BEGIN
IMMEDIATE, one COMMIT, one wait for the disk. A detour through a thread takes longer than an ordinary commit. So
the loop commits by itself, unless recent commits were slow, somebody else holds the database, or a request is large;
then a thread waits, never the loop. An operation must check everything before its first write, so that a refused one
leaves nothing behind. Cancelling a caller cancels its wait, never the transaction. `MemoryWriter` has no thread.
"""

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.storage.locks import WriteLock
from planwarden.storage.sql.database import Request, deliver
from planwarden.storage.sql.rows import chain_audit
from planwarden.storage.sqlite.database import BUSY_TIMEOUT_MS, FAULTS, SQL, is_busy, leave_log, to_store_error
from planwarden.storage.sqlite.disk_pace import Pace


class SqliteTransaction:
    """Implements `SqlTransaction` on a connection whose transaction is open."""

    __slots__ = ("connection", "policy")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.policy = ""

    def execute(self, name: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(SQL[name], parameters)

    def lock(self, lock_name: str) -> None:
        """Do nothing: nobody else writes while this transaction is open."""

    def add_audit(self, entries: Iterable[AuditEntry], at: float, policy: str = "") -> None:
        """Append the entries to the chain; if the policy is new, put a row that names it before them."""
        last, policy = self.execute("last_audit").fetchone(), policy or self.policy
        self.connection.executemany(SQL["add_audit"], chain_audit(last, ((at, entry, policy) for entry in entries)))


Result = TypeVar("Result")
Operation = Callable[[SqliteTransaction], Result]

MAX_GROUP = 256
CHECKPOINT_ESTIMATE = 5_000
"""Pages of the write-ahead log, by `_estimate_pages`, after which the thread moves the log into the database."""
CHECKPOINT_PAGES = 8_000
"""Pages of the log after which a commit itself moves the log; committing a large artifact can reach this."""


class _Request(Request[Result]):
    def __init__(self, operation: Operation[Result], *, is_large: bool) -> None:
        super().__init__()
        self.operation = operation
        self.is_large = is_large


class Writer:
    """Runs operations on its connection, in order, up to `MAX_GROUP` in one transaction.

    `check` is called before each transaction, and raises when the file must no longer be used. `lock` keeps other
    processes from writing, where SQLite alone is not enough.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        *,
        check: Callable[[], None] = lambda: None,
        lock: WriteLock | None = None,
    ) -> None:
        self._connection = connection
        self._transaction = SqliteTransaction(connection)
        self._path = path
        self._check = check
        self._held = lock.held if lock is not None else nullcontext
        self._held_if_free = lock.held_if_free if lock is not None else lambda: nullcontext(True)
        self.pace = Pace()
        self._requests: deque[_Request[Any]] = deque()
        """Requests in the order in which they arrived. Event loops append them; the holder of `_using` takes them."""
        self._using = threading.Lock()
        """Held by the loop or the thread that uses the connection."""
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        """Each entry makes the thread look for requests; False comes last and ends the thread."""
        self._turning: asyncio.AbstractEventLoop | None = None
        """The loop that will commit when its present turn is over."""
        self._rows = 0
        """Rows that this connection has changed so far."""
        self._pages = 0
        """An estimate of the pages that this connection has added to the log since the last move into the database."""
        self._foreign_changes = 0
        """The number that `_look_for_foreign_changes` read last."""
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA busy_timeout = 0")

    async def run(self, operation: Operation[Result], *, is_large: bool = False) -> Result:
        """Return the result once the operation is committed. A large operation is always left to the thread.

        Raises:
            StoreError: the medium failed or the writer is closed; nothing of the operation is stored.
            PlanwardenError: the operation itself raised it, as a refusal.
        """
        if self._closed:
            raise StoreError("the store is closed")
        request = _Request(operation, is_large=is_large)
        self._requests.append(request)
        if self._turning is not request.loop:
            # This caller commits for everybody who asks in this turn of the loop, and goes on without being woken.
            self._turning = request.loop
            try:
                await asyncio.sleep(0)
            except BaseException:
                # The caller gave up. What it and others asked for is committed all the same.
                request.future.cancel()
                if not request.loop.is_closed():
                    request.loop.call_soon(self._end_turn, request.loop)
                raise
            self._end_turn(request.loop)
        return await request.future

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit as one group what was asked for in this turn of the loop, now that all ready callbacks have run."""
        if self._turning is loop:
            self._turning = None
        if self._closed or not self._requests:
            # The thread has taken what was asked for.
            return
        if not self.pace.is_quick:
            self._wake(True)
        elif self._using.acquire(blocking=False):
            self._commit_here(loop)
        # Otherwise, the thread or loop that uses the connection looks for requests when it is done.

    def _commit_here(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit the waiting requests on the loop's thread, or leave them to the writer's own thread."""
        is_done = False
        try:
            batch = self._batch()
            # Another process or connection may be writing, or taking the lock may fail.
            with suppress(_Busy, StoreError):
                if not any(request.is_large for request in batch):
                    with self._held_if_free() as is_free:
                        if is_free:
                            self._perform(batch, self.pace.note_loop_wait)
                            is_done = True
            if not is_done:
                self._requests.extendleft(reversed(batch))
        finally:
            self._using.release()
        if is_done:
            deliver(batch, loop)
        if self._requests or self._pages >= CHECKPOINT_ESTIMATE:
            self._wake(True)

    def read_foreign_changes(self) -> int:
        """Return a number that changes whenever another connection changes the file, but not when this one does.

        While the thread uses the connection, return the number after its last commit. Never wait.

        Raises:
            StoreError: the file must no longer be used, or the writer is closed.
        """
        if self._closed:
            raise StoreError("the store is closed")
        self._check()
        if self._using.acquire(blocking=False):
            try:
                self._look_for_foreign_changes()
            finally:
                self._using.release()
            if self._requests:
                # A caller asked for a commit while the connection was in use.
                self._wake(True)
        return self._foreign_changes

    def _look_for_foreign_changes(self) -> None:
        # If the number cannot be read now, the next call reads it.
        with suppress(*FAULTS):
            self._foreign_changes = int(self._connection.execute(SQL["data_version"]).fetchone()[0])

    def _wake(self, keeps_running: bool) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="planwarden writer", daemon=True)
                self._thread.start()
        self._wakes.put(keeps_running)

    async def close(self) -> None:
        """Commit what is queued and close the connection."""
        if not self._closed:
            self._closed = True
            self._wake(False)
            assert self._thread is not None
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        keeps_running = True
        while keeps_running:
            keeps_running = self._wakes.get()
            with self._using:
                while batch := self._batch():
                    self._wait_and_perform(batch)
                    # Look before delivering, so that the callers find the connection free when they go on.
                    self._look_for_foreign_changes()
                    deliver(batch)
                    if keeps_running and self._can_hand_back():
                        break
                if keeps_running and self._pages >= CHECKPOINT_ESTIMATE:
                    self._checkpoint()
            self._hand_back()
        # Closing the last connection moves the log to the database. If the lock stays taken, the next process does it.
        with suppress(StoreError), self._held():
            self._connection.close()
            return
        leave_log(self._connection)
        self._connection.close()

    def _can_hand_back(self) -> bool:
        """Return whether the loop can commit what is waiting: it is faster than the thread while commits are quick."""
        try:
            return self.pace.is_quick and not self._requests[0].loop.is_closed()
        except IndexError:
            return False

    def _hand_back(self) -> None:
        """Let the loop commit what is waiting. Call this after releasing `_using`, so that no request is missed."""
        try:
            loop = self._requests[0].loop
            loop.call_soon_threadsafe(self._end_turn, loop)
        except IndexError:
            pass
        except RuntimeError:
            # The loop is closed if its program ended without closing the store; the thread still commits its requests.
            self._wakes.put(True)

    def _batch(self) -> list[_Request[Any]]:
        """Take the oldest requests, at most `MAX_GROUP`, out of the queue and return them; empty if there are none."""
        return [self._requests.popleft() for _ in range(min(len(self._requests), MAX_GROUP))]

    def _wait_and_perform(self, batch: list[_Request[Any]]) -> None:
        """Wait on the thread for other writers, and perform the batch. If the wait fails, the whole batch fails."""
        try:
            with self._held():
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
                try:
                    self._perform(batch, self.pace.note_thread_wait)
                finally:
                    self._connection.execute("PRAGMA busy_timeout = 0")
        except (StoreError, *FAULTS) as error:
            for request in batch:
                request.error = error if isinstance(error, StoreError) else to_store_error(error, self._path)

    def _perform(self, batch: list[_Request[Any]], note: Callable[[float], None]) -> None:
        """Commit the batch and set the value or error of each request; note how long one operation alone would have
        waited. Raise `_Busy` if another connection is writing; then nothing was done."""
        failure = self._commit_together(batch, note)
        if failure is None:
            return
        if len(batch) == 1:
            batch[0].error = failure
            return
        # One operation may have broken the whole batch's transaction: run each in a transaction of its own.
        for request in batch:
            request.error = None
        for request in batch:
            try:
                request.error = self._commit_together([request], note) or request.error
            except _Busy as error:
                request.error = to_store_error(error, self._path)

    def _commit_together(self, batch: list[_Request[Any]], note: Callable[[float], None]) -> BaseException | None:
        """Commit the batch in one transaction. Return None, or why it failed; each request holds its own refusal."""
        try:
            began = perf_counter()
            self._begin()
            try:
                for request in batch:
                    try:
                        request.value = request.operation(self._transaction)
                    except PlanwardenError as refusal:
                        request.error = refusal
                worked_s = perf_counter() - began
                self._connection.execute("COMMIT")
                rows, self._rows = self._rows, self._connection.total_changes
                self._pages += _estimate_pages(self._rows - rows)
            except BaseException:
                # SQLite has already rolled back after some errors, such as a full disk.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            note(perf_counter() - began - worked_s * (1 - 1 / len(batch)))
        except _Busy:
            raise
        except FAULTS as error:
            return to_store_error(error, self._path)
        # Whatever an operation raises belongs to the caller that awaits it.
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _begin(self) -> None:
        self._check()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if is_busy(error):
                raise _Busy(*error.args) from error
            raise

    def _checkpoint(self) -> None:
        """Move the log into the database, as far as readers allow. A failed move is tried again after more rows."""
        self._pages = 0
        with suppress(StoreError, *FAULTS), self._held():
            self._check()
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


class MemoryWriter:
    """Commits on the caller's own thread, because memory never makes it wait."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    async def run(self, operation: Operation[Result], *, is_large: bool = False) -> Result:
        """Return the operation's result once the operation is committed. Raises what `Writer.run` raises."""
        try:
            self._connection.execute("BEGIN")
            try:
                result = operation(SqliteTransaction(self._connection))
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except FAULTS as error:
            raise to_store_error(error, self._path) from error
        return result

    def read_foreign_changes(self) -> int:
        """Return a number that changes with every written row, because several engines share the connection."""
        return self._connection.total_changes

    async def close(self) -> None:
        """Close nothing: the connection stays open as long as the store."""


def _estimate_pages(rows: int) -> int:
    """Estimate how many pages of the log a transaction that changed `rows` rows takes; err on the high side.

    With its indexes, a row takes up to three pages. Rows of a group share pages; index entries of random ids do not.
    """
    return min(3 * rows, 40 + rows // 2)


class _Busy(sqlite3.OperationalError):
    """Another connection is writing; nothing was done."""

    sqlite_errorcode = sqlite3.SQLITE_BUSY
