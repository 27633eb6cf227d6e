"""A SQL database as this folder's modules use it: they name the statements, and each database has SQL for them."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.environment import Clock

Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]


_HALF_PAIR = re.compile("[\ud800-\udfff]")


def is_encodable(value: object) -> bool:
    """Return False for a text with half of a surrogate pair, otherwise True. No row contains such a text, so a lookup
    can find nothing for it."""
    return not isinstance(value, str) or value.isascii() or _HALF_PAIR.search(value) is None


class Cursor(Protocol):
    """What a statement did."""

    @property
    def rowcount(self) -> int:
        """How many rows were written."""
        ...

    def fetchone(self) -> tuple[Any, ...] | None: ...

    def fetchall(self) -> Rows: ...


class SqlTransaction(Protocol):
    """An open transaction. Other operations may share it, so an operation that is refused must have written nothing.

    In an append, statements are sent one after another; only reading a result waits for the database.
    """

    policy: str
    """Digest of the writing process's policy, for audit rows added without a policy; empty if the process has none."""

    def execute(self, name: str, parameters: Sequence[object] = ()) -> Cursor:
        """Run the statement `name`."""
        ...

    def lock(self, lock_name: str) -> None:
        """Take the lock `lock_name` as soon as no other transaction has it; needed where a condition counts rows."""
        ...

    def add_audit(self, entries: Iterable[AuditEntry], at: float, policy: str = "") -> None:
        """Append rows to the audit; `policy` is the digest of the policy behind the decisions, if not `self.policy`."""
        ...


Condition = tuple[Cursor, Callable[[Rows, float], None]]
"""A lookup already sent, and a function that checks its rows and the time, and raises an error to refuse."""


class Liveness(Protocol):
    """Which processes are alive and whether they start schedules, as far as this machine or the database knows."""

    async def announce(self, owner: str) -> None:
        """Record that this process is alive as `owner`."""
        ...

    async def is_dead(self, owner: str) -> bool:
        """Return True only when the owner's process is certainly gone."""
        ...

    async def find_dead(self) -> list[str]:
        """Return the owners of leases whose processes are certainly gone."""
        ...

    async def announce_scheduler(self) -> None:
        """Keep on record, until the store is closed, that this process starts due schedules. One call is enough."""
        ...

    async def has_scheduler(self) -> bool:
        """Return whether a living process starts schedules that are due."""
        ...


class Reads(Protocol):
    """Runs lookups, each named by its statement, with parameters. Raises `StoreError` if the medium fails."""

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return the rows of a lookup."""
        ...

    async def fetch_long(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        """Return the rows of a read that may take long."""
        ...

    async def fetch_all_long(self, *reads: tuple[str, Sequence[object]]) -> list[Rows]:
        """Return the rows of each of several long reads, all from the same snapshot."""
        ...

    async def close(self) -> None:
        """Refuse later reads."""
        ...


class Writes(Protocol):
    """Runs transactions, each of them committed by the time `run` returns."""

    async def run(self, operation: Callable[[SqlTransaction], Result], *, is_large: bool = False) -> Result:
        """Return the operation's result; a large operation may take long. Raises `StoreError` when the medium fails."""
        ...


class Database:
    """The reads and writes of one database. They raise `StoreError` when the medium fails."""

    def __init__(self, reads: Reads, writes: Writes, clock: Clock, liveness: Liveness) -> None:
        self.fetch = reads.fetch
        self._run = writes.run
        self.policy = ""
        """Digest of this process's policy, for the audit rows that it writes."""
        self.clock = clock
        self.liveness = liveness

    async def write(
        self,
        operation: Callable[[SqlTransaction], Result],
        entry: AuditEntry | None = None,
        *,
        is_large: bool = False,
    ) -> Result:
        """Return the operation's result once it is committed; unless the result is false, also audit `entry`."""

        def perform(transaction: SqlTransaction) -> Result:
            transaction.policy = self.policy
            result = operation(transaction)
            if result and entry is not None:
                transaction.add_audit((entry,), self.clock.now())
            return result

        return await self._run(perform, is_large=is_large)

    async def execute(self, name: str, parameters: Sequence[object]) -> int:
        """Return the number of rows that the statement `name` wrote, once it is committed."""
        return await self._run(lambda transaction: transaction.execute(name, parameters).rowcount)


class Request(Generic[Result]):
    """A caller's request to a writer. It keeps its outcome until `deliver` tells the caller, because the group of
    requests that it belongs to may be undone and performed again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()
        self.value: Result | None = None
        self.error: BaseException | None = None


def deliver(requests: Iterable[Request[Any]], here: asyncio.AbstractEventLoop | None = None) -> None:
    """Tell the callers their outcomes; wake each event loop only once for this. `here` is the running loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Request[Any]]] = {}
    for request in requests:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, group in by_loop.items():
        if loop is here:
            _settle(group)
            continue
        # The loop is closed if its program ended without closing the store; the commit is valid all the same.
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
