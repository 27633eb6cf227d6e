"""The connection that writes, on a thread: what is asked for while it commits is committed together next.

All appends of a group are one statement. A broken connection is opened again, and the group is sent again: appends have
tokens, so one that was committed although its answer was lost is known. An operation whose commit has no answer is not
repeated, because it has no token.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

import psycopg

from planwarden.agent.common.canonical import canonical_json
from planwarden.agent.common.errors import CommitUnknown, PlanwardenError, StoreError
from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.postgres.connection import AGAIN, Connection, connect, run, store_error


class PostgresTransaction:
    """Implements `SqlTransaction`."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, name: str, parameters: Sequence[object] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        return run(self._connection, name, parameters)

    def lock(self, name: str) -> None:
        self.execute("lock", (name,))

    def add_audit(self, entries: Iterable[AuditEntry], at: float) -> None:
        """The rows get their places in the chain when they are sealed."""
        for entry in entries:
            facts = canonical_json(entry.facts)
            self.execute("add_unsealed", (at, entry.kind, entry.execution_id, entry.suspension_id, facts, ""))


Result = TypeVar("Result")
Operation = Callable[[PostgresTransaction], Result]

MAX_GROUP = 256
MAX_GROUP_CHARS = 4 * 1024 * 1024
"""Of the appends of a group, beyond which no more are added."""
PATIENCE_S = 20.0
"""Seconds from a request on for which it is sent again while the database cannot be reached."""
PAUSE_S = 0.25
HINTS_S = 0.02
"""The longest time for which a hint waits for others."""


class AppendRequest:
    """What `append_all` is given for one append, and what it returned."""

    __slots__ = ("asked_at", "error", "future", "hint", "is_notifying", "is_sent", "loop", "text", "value")

    def __init__(self, text: str, hint: str, *, is_notifying: bool) -> None:
        self.text = text
        self.hint = hint
        """What other processes are told of the commit."""
        self.is_notifying = is_notifying
        """It stores notifications, so their number must be looked at."""
        self.is_sent = False
        """The server may have committed it."""
        self.asked_at = monotonic()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[str, int | None, Any]] = self.loop.create_future()
        self.value: tuple[str, int | None, Any] = ("", None, None)
        self.error: BaseException | None = None


class _Request(Generic[Result]):
    __slots__ = ("asked_at", "error", "future", "is_statement", "loop", "operation", "value")

    def __init__(self, operation: Operation[Result], *, is_statement: bool = False) -> None:
        self.operation = operation
        self.is_statement = is_statement
        """It is one statement, which needs no transaction around it when it is alone."""
        self.asked_at = monotonic()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.value: Result | None = None
        self.error: BaseException | None = None


AnyRequest = AppendRequest | _Request[Any]


class PostgresWriter:
    """`clock` gives the parameters `now_s` and `steady_s` of `append_all`."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], tuple[float | None, float | None]],
        lease_s: float,
        limit_notifications: Callable[[PostgresTransaction], None],
        committed: Callable[[Connection, list[str]], None],
    ) -> None:
        """`limit_notifications` is called in a transaction that added notifications, `committed` with hints."""
        self._url = url
        self._clock = clock
        self._lease_s = lease_s
        self._limit_notifications = limit_notifications
        self._committed = committed
        self._connection: Connection | None = None
        self._failure: Exception | None = None
        """Why the last group found no database."""
        self._hints: list[str] = []
        """Of what was committed, and not told to others yet."""
        self._hinted_at = 0.0
        self._requests: SimpleQueue[AnyRequest | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="planwarden writer", daemon=True)
        self._thread.start()

    async def append(self, request: AppendRequest) -> tuple[str, int | None, Any]:
        """Outcome, fence and detail, as `append_all` returns them. Raises `StoreError` when the medium fails."""
        self._put(request)
        return await request.future

    async def run(self, operation: Operation[Result]) -> Result:
        """The operation's result, once it is committed.

        Raises:
            StoreError: the database failed; nothing of the operation is stored, unless its text says otherwise.
            PlanwardenError: whatever the operation itself refused.
        """
        request = _Request(operation)
        self._put(request)
        return await request.future

    async def execute(self, name: str, parameters: Sequence[object]) -> psycopg.Cursor[tuple[Any, ...]]:
        """What the statement `name` gave, once it is committed. Raises as `run`."""
        request = _Request(lambda transaction: transaction.execute(name, parameters), is_statement=True)
        self._put(request)
        return await request.future

    def _put(self, request: AnyRequest) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        self._requests.put(request)

    async def close(self) -> None:
        """Commits what is queued and closes the connection."""
        if not self._closed:
            self._closed = True
            self._requests.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while (first := self._requests.get()) is not None:
            group, is_last = self._collect(first)
            self._perform(group)
            if is_last:
                break
        self._drop_connection()

    def _collect(self, first: AnyRequest) -> tuple[list[AnyRequest], bool]:
        """What waits, as much as is committed together; True when it is the last."""
        group, chars = [first], 0
        while len(group) < MAX_GROUP and chars < MAX_GROUP_CHARS and not self._requests.empty():
            found = self._requests.get()
            if found is None:
                return group, True
            group.append(found)
            chars += len(found.text) if isinstance(found, AppendRequest) else 0
        return group, False

    def _perform(self, group: list[AnyRequest]) -> None:
        """Commits the group, each request with its value or error."""
        while group := self._dismiss_late(group):
            try:
                self._commit(group)
            # Whatever an operation raises belongs to the caller that awaits it.
            except Exception as error:  # noqa: BLE001
                if isinstance(error, AGAIN):
                    self._roll_back()
                    continue
                if not self._is_lost(error):
                    self._failure = None
                    for request in group:
                        # The server answered, so nothing of the group is stored.
                        if isinstance(request, AppendRequest):
                            request.is_sent = False
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
        """Fails those that waited too long for a database that is gone, perhaps behind others. Returns the rest."""
        if self._failure is None:
            return group
        oldest = monotonic() - PATIENCE_S
        late = [request for request in group if self._closed or request.asked_at < oldest]
        self._fail(late, self._failure)
        return [request for request in group if request not in late]

    def _is_lost(self, error: Exception) -> bool:
        """The connection is gone, or there was none to be had, or it leads to a server that became a standby."""
        connection = self._connection
        is_broken = connection is None or connection.closed
        return isinstance(error, psycopg.errors.ReadOnlySqlTransaction) or (
            isinstance(error, psycopg.Error) and is_broken
        )

    def _perform_singly(self, group: list[AnyRequest], error: Exception) -> None:
        """One request broke the transaction of all: each in a transaction of its own."""
        self._roll_back()
        if len(group) == 1:
            self._fail(group, error)
            return
        for request in group:
            self._perform([request])

    def _keep_repeatable(self, group: list[AnyRequest], error: Exception) -> list[AnyRequest]:
        """Fails the operations that may have been committed without an answer, and returns the others."""
        unknown: list[AnyRequest] = [
            request for request in group if isinstance(request, _Request) and self._is_committing
        ]
        self._fail(unknown, error)
        return [request for request in group if request not in unknown]

    def _fail(self, group: list[AnyRequest], error: Exception) -> None:
        for request in group:
            known = error if not isinstance(error, psycopg.Error) else store_error(error, self._url)
            if isinstance(request, AppendRequest) and request.is_sent and isinstance(known, StoreError):
                known = CommitUnknown(f"{known.message}; whether it was stored is not known yet")
            request.error = known
        _deliver(group)

    def _commit(self, group: list[AnyRequest]) -> None:
        self._is_committing = False
        connection = self._open()
        appends = [request for request in group if isinstance(request, AppendRequest)]
        operations = [request for request in group if isinstance(request, _Request)]
        is_single = not operations and not any(request.is_notifying for request in appends)
        if len(group) == 1 and operations and operations[0].is_statement:
            is_single = self._is_committing = True
        if not is_single:
            connection.execute("BEGIN")
        if appends:
            self._append(connection, appends)
            if any(request.is_notifying for request in appends):
                self._limit_notifications(PostgresTransaction(connection))
        for request in operations:
            # What an attempt before refused may hold now.
            request.error = None
            try:
                request.value = request.operation(PostgresTransaction(connection))
            except PlanwardenError as refusal:
                request.error = refusal
        if not is_single:
            self._is_committing = True
            connection.execute("COMMIT")
        _deliver(group)
        self._hints += [request.hint for request in appends if request.value[0] == "stored"]
        if self._requests.empty() or monotonic() - self._hinted_at >= HINTS_S:
            self._send_hints(connection)

    def _send_hints(self, connection: Connection) -> None:
        """Hints of several groups go together while the next group waits: each wakes every process."""
        hints, self._hints, self._hinted_at = self._hints, [], monotonic()
        # Who misses them looks by itself after a while.
        with suppress(psycopg.Error):
            self._committed(connection, hints)

    def _append(self, connection: Connection, appends: list[AppendRequest]) -> None:
        text = f"[{','.join(request.text for request in appends)}]"
        for request in appends:
            request.is_sent = True
        for place, outcome, fence, detail in run(connection, "append", (text, *self._clock(), self._lease_s)):
            appends[place - 1].value = (outcome, fence, detail)

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._url)
        return self._connection

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

    _is_committing = False
    """COMMIT was sent, or is about to be."""


def _deliver(group: list[AnyRequest]) -> None:
    """Wakes each event loop once for all of its requests."""
    by_loop: dict[asyncio.AbstractEventLoop, list[AnyRequest]] = {}
    for request in group:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, requests in by_loop.items():
        # The loop is closed when its program ended without closing the store; the commit stands all the same.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, requests)


def _settle(requests: list[AnyRequest]) -> None:
    for request in requests:
        future: asyncio.Future[Any] = request.future
        if future.done():
            continue
        if request.error is not None:
            future.set_exception(request.error)
        else:
            future.set_result(request.value)
