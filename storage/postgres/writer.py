"""The connection that writes, on its own thread. Requests that arrive during a commit form the next group.

The appends of a group are sent together, and only reading an answer waits for the server (pipeline mode). A broken
connection is opened again, and the group is sent again: appends have tokens, so one that was committed is
recognised even if its answer was lost. An operation whose commit got no answer is not repeated: it has no token.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any, TypeVar

import psycopg
from msgspec.structs import replace

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import CommitUnknown, PlanwardenError, StoreError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.store import Lease
from planwarden.storage.postgres.connection import TRANSIENT_ERRORS, Connection, connect, run, to_store_error
from planwarden.storage.sql.append import PreparedAppend, Times, write_appends
from planwarden.storage.sql.database import Request, deliver


class PostgresTransaction:
    """Implements `SqlTransaction`."""

    __slots__ = ("_connection", "policy")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.policy = ""

    def execute(self, name: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        return run(self._connection, name, parameters)

    def lock(self, lock_name: str) -> None:
        self.execute("lock", (lock_name,))

    def add_audit(self, entries: Iterable[AuditEntry], at: float, policy: str = "") -> None:
        """Add rows to the audit. They get their places in its chain when they are sealed."""
        for entry in entries:
            facts = canonical_json(entry.facts)
            names = entry.kind, entry.execution_id, entry.suspension_id
            self.execute("add_unsealed", (at, *names, facts, policy or self.policy))


Result = TypeVar("Result")
Operation = Callable[[PostgresTransaction], Result]

MAX_GROUP = 256
MAX_GROUP_CHARS = 4 * 1024 * 1024
"""A group whose appends have this many characters gets no more requests."""
RETRY_TIMEOUT_S = 20.0
"""Seconds during which a request is tried again while the database cannot be reached."""
TRIES = 5
"""How often a group is tried if other transactions are in its way; then each of its requests is tried alone."""
PAUSE_S = 0.25
SHUTDOWN = "57P"
"""The class of the errors with which a server ends a connection; libpq's own errors belong to no class."""
HINTS_S = 0.02
"""The most seconds that a hint waits, so that other hints are sent with it."""


class _Request(Request[Result]):
    def __init__(
        self,
        operation: Operation[Result] | None = None,
        *,
        append: PreparedAppend | None = None,
        hint: str = "",
    ) -> None:
        super().__init__()
        self.operation = operation
        self.append = append
        """The append, if the request has no operation."""
        self.hint = hint
        """What other processes are told of the append."""
        self.asked_at = monotonic()


AnyRequest = _Request[Any]


class PostgresWriter:
    """Commits groups of appends and operations."""

    def __init__(
        self,
        url: str,
        *,
        times: Callable[[], Times],
        lease_s: float,
        committed: Callable[[Connection, list[str]], None],
        prepares: bool,
    ) -> None:
        """`committed` is called to send hints on the connection; `prepares` is as in `connect`."""
        self._url = url
        self._prepares = prepares
        self._times = times
        self._lease_s = lease_s
        self._committed = committed
        self._connection: Connection | None = None
        self._failure: Exception | None = None
        """Why the last group could not reach the database; None if it could."""
        self._hints: list[str] = []
        """Hints about commits that other processes have not been told about yet."""
        self._hinted_at = 0.0
        self._requests: SimpleQueue[AnyRequest | None] = SimpleQueue()
        self._closed = False
        self._is_committing = False
        """Whether the COMMIT or ROLLBACK of the group was sent, or is about to be."""
        self._thread = threading.Thread(target=self._run, name="planwarden writer", daemon=True)
        self._thread.start()

    async def append(self, append: PreparedAppend, hint: str) -> Lease | None:
        """Return the lease that the writer holds once the append is committed. Raises what `Store.append` raises."""
        return await self._put(_Request[Lease | None](append=append, hint=hint))

    async def run(self, operation: Operation[Result], *, is_large: bool = False) -> Result:
        """Return the operation's result, once it is committed.

        Raises:
            StoreError: the database failed; nothing of the operation is stored, unless the error's text says otherwise.
            PlanwardenError: the refusal that the operation itself raised.
        """
        return await self._put(_Request(operation))

    async def _put(self, request: _Request[Result]) -> Result:
        if self._closed:
            raise StoreError("the store is closed")
        self._requests.put(request)
        return await request.future

    async def close(self) -> None:
        """Commit what is queued and close the connection."""
        if not self._closed:
            self._closed = True
            self._requests.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (first := self._requests.get()) is not None:
            self._perform(self._collect(first))
        self._drop_connection()

    def _collect(self, first: AnyRequest) -> list[AnyRequest]:
        """Return the next group out of the requests that wait."""
        group, chars = [first], 0
        while len(group) < MAX_GROUP and chars < MAX_GROUP_CHARS and not self._requests.empty():
            request = self._requests.get()
            if request is None:
                # Put the end mark back into the queue, for `_run`.
                self._requests.put(None)
                break
            group.append(request)
            if request.append is not None:
                chars += len(request.append.body) + sum(len(item.data) for item in request.append.append.artifacts)
        return group

    def _perform(self, group: list[AnyRequest]) -> None:
        """Commit the group, and give each request its value or its error."""
        tries = 0
        while group := self._dismiss_late(group):
            try:
                self._commit(group)
            # Whatever an operation raises belongs to the caller that awaits it.
            except Exception as error:  # noqa: BLE001
                tries += 1
                if isinstance(error, TRANSIENT_ERRORS) and tries < TRIES:
                    self._roll_back()
                    continue
                if not self._is_lost(error):
                    self._failure = None
                    self._perform_singly(group, error)
                    return
                self._drop_connection()
                self._failure = error
                group = self._keep_repeatable(group, error)
                if group and not self._closed:
                    sleep(PAUSE_S)
                continue
            self._failure = None
            return

    def _dismiss_late(self, group: list[AnyRequest]) -> list[AnyRequest]:
        """Fail requests that waited too long, perhaps behind others, for a database that is gone. Return the rest."""
        if self._failure is None:
            return group
        oldest = monotonic() - RETRY_TIMEOUT_S
        late = [request for request in group if self._closed or request.asked_at < oldest]
        self._fail(late, self._failure)
        return [request for request in group if request not in late]

    def _is_lost(self, error: Exception) -> bool:
        """Return whether there is no connection, it is broken or about to break, or its server became a standby.

        After a commit, PostgreSQL may report a shutdown before libpq notices that the connection is closed.
        """
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return True
        is_ending = isinstance(error, psycopg.OperationalError) and (error.sqlstate or SHUTDOWN).startswith(SHUTDOWN)
        if is_ending and not isinstance(error, psycopg.errors.PipelineAborted):
            return True
        connection = self._connection
        return isinstance(error, psycopg.Error) and (connection is None or connection.closed)

    def _perform_singly(self, group: list[AnyRequest], error: Exception) -> None:
        """Perform each request in a transaction of its own, because one broke the transaction of all."""
        self._roll_back()
        if len(group) == 1:
            self._fail(group, error)
            return
        for request in group:
            self._perform([request])

    def _keep_repeatable(self, group: list[AnyRequest], error: Exception) -> list[AnyRequest]:
        """Fail the operations that may have been committed without an answer, and return the other requests."""
        if not self._is_committing:
            return group
        appends: list[AnyRequest] = []
        for request in group:
            if request.append is not None:
                request.append = replace(request.append, is_repeated=True)
                appends.append(request)
        self._fail([request for request in group if request.append is None], error, is_unknown=True)
        return appends

    def _fail(self, group: list[AnyRequest], error: Exception, *, is_unknown: bool = False) -> None:
        for request in group:
            fault = to_store_error(error, self._url) if isinstance(error, (psycopg.Error, UnicodeError)) else error
            was_sent = is_unknown or (request.append is not None and request.append.is_repeated)
            if was_sent and isinstance(fault, StoreError):
                fault = CommitUnknown(f"{fault.message}; whether it was stored is not known yet")
            request.error = fault
        deliver(group)

    def _commit(self, group: list[AnyRequest]) -> None:
        self._is_committing = False
        if self._connection is None:
            self._connection = connect(self._url, prepares=self._prepares)
        connection = self._connection
        transaction = PostgresTransaction(connection)
        appends = [request for request in group if request.append is not None]
        operations = [request for request in group if request.append is None]
        with connection.pipeline():
            connection.execute("BEGIN")
            is_written = self._append(transaction, appends) or bool(operations)
            if not operations:
                self._end(connection, is_written=is_written)
        if operations:
            self._operate(transaction, operations)
            self._end(connection, is_written=is_written)
        deliver(group)
        self._hints += [request.hint for request in appends if request.error is None]
        if self._requests.empty() or monotonic() - self._hinted_at >= HINTS_S:
            self._send_hints(connection)

    def _append(self, transaction: PostgresTransaction, requests: list[AnyRequest]) -> bool:
        """Write the appends; return whether any of them was written."""
        appends = [request.append for request in requests if request.append is not None]
        if not appends:
            return False
        outcomes = write_appends(transaction, appends, self._times(), self._lease_s)
        for request, outcome in zip(requests, outcomes, strict=True):
            is_refused = isinstance(outcome, PlanwardenError)
            request.value, request.error = (None, outcome) if is_refused else (outcome, None)
        return any(request.error is None for request in requests)

    def _operate(self, transaction: PostgresTransaction, requests: list[AnyRequest]) -> None:
        for request in requests:
            # What an earlier attempt refused may be allowed now.
            request.error = None
            assert request.operation is not None
            try:
                request.value = request.operation(transaction)
            except PlanwardenError as refusal:
                request.error = refusal

    def _end(self, connection: Connection, *, is_written: bool) -> None:
        """End the transaction. One that wrote nothing gives its locks back without waiting for the disk."""
        self._is_committing = True
        connection.execute("COMMIT" if is_written else "ROLLBACK", prepare=False)

    def _send_hints(self, connection: Connection) -> None:
        """Send the hints of one or more groups together: each message wakes every process."""
        hints, self._hints, self._hinted_at = self._hints, [], monotonic()
        # A process that misses the hints looks for changes by itself after a while.
        with suppress(psycopg.Error):
            self._committed(connection, hints)

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.rollback()
            except psycopg.Error:
                self._drop_connection()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
