"""The control connection, on its own thread, shows that owners live, takes hints, reads the time and seals the audit.

It goes directly to the server, never through a pooler, because advisory locks and LISTEN belong to a connection.
Everything stays correct without it: leases expire, and a process that gets no hints looks for commits by itself.
"""

import hashlib
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any

import psycopg
from psycopg import errors

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.ports.store import Changes
from planwarden.storage.postgres.connection import IN_USE_LOCK, Connection, connect, run
from planwarden.storage.postgres.hints import EVERYTHING, read_hints
from planwarden.storage.sql.rows import chain_audit, read_audit_row

logger = logging.getLogger(__name__)

CHANNEL = "planwarden"
SEAL_S = 0.5
CLOCK_S = 5.0
GATHER_S = 0.01
PAUSE_S = 0.5
REFUSED_S = 5.0
"""Seconds after which a statement that the server refused is tried again."""
MAX_PAYLOAD = 7_000
"""The most bytes of a hint; PostgreSQL accepts fewer than 8,000."""
MAX_SEALED = 5_000
"""The most rows that one transaction seals."""


def seal(connection: Connection) -> None:
    """Number and hash the rows of the audit that were committed before the call.

    If several processes seal at once, only one of them seals each row. Transactions do not chain their own rows,
    because all commits of all processes would then queue. The price: for half a second, a row is not tamper-evident.
    Raises `StoreError` when a row is damaged; that row and those of the same batch then stay unsealed.
    """
    while run(connection, "is_unsealed").fetchone() is not None:
        with connection.transaction():
            if _seal_some(connection) < MAX_SEALED:
                return


def _seal_some(connection: Connection) -> int:
    # Lock before reading, so that no other process moves the end of the chain that is read here.
    run(connection, "lock_audit")
    waiting = run(connection, "unsealed", (MAX_SEALED,)).fetchall()
    if not waiting:
        return 0
    rows = chain_audit(run(connection, "last_audit").fetchone(), map(_read_unsealed, waiting))
    run(connection, "add_audit", [list(column) for column in zip(*rows, strict=True)])
    run(connection, "end_audit", (rows[-1][0],))
    run(connection, "forget_unsealed", ([row[0] for row in waiting],))
    return len(waiting)


def _read_unsealed(row: tuple[Any, ...]) -> tuple[float, AuditEntry, str]:
    *columns, policy = row
    unsealed = read_audit_row((*columns, b""), "unsealed row")
    return unsealed.at, unsealed.entry, policy


def lock_key(owner: str) -> int:
    """Return the key of the advisory lock that `owner` holds while it lives."""
    return int.from_bytes(hashlib.sha256(owner.encode()).digest()[:8], "big", signed=True)


def send_hint(connection: Connection, sender: str, hints: list[str]) -> None:
    """Tell every process which executions have new commits. Do not call this in a transaction: a hint slows it down."""
    if hints:
        payload = "\n".join((sender, *dict.fromkeys(hints)))
        if len(payload.encode()) > MAX_PAYLOAD:
            payload = f"{sender}\n{EVERYTHING}"
        run(connection, "hint", (CHANNEL, payload))


class Control:
    """The control connection, from `start` to `stop`; any thread may call the other public methods."""

    def __init__(self, url: str, changed: Callable[[Changes], None]) -> None:
        """The thread calls `changed` for hints of other processes, and after reconnecting, when hints may be lost."""
        self._url = url
        self.name = token_hex(8)
        """The name under which this process sends its own hints."""
        self._changed = changed
        self._connection: Connection | None = None
        self.reconnected_at = -math.inf
        """When the connection was last lost or opened again, in seconds of the monotonic clock."""
        self._offset_s = time.time() - time.monotonic()
        """The database's time minus the monotonic time of this machine, in seconds."""
        self._owners: list[str] = []
        self._recorded: set[str] = set()
        """Owners with a row in the database; all others count as dead, because an owner that ends deletes its row."""
        self._announced = 0
        """How many of `_owners` this connection has tried to lock."""
        self._unlocked: set[str] = set()
        """Owners that this connection has yet to lock."""
        self._condition = threading.Condition()
        self._is_stopping = False
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="planwarden control", daemon=True)

    def start(self, connection: Connection) -> None:
        """Start on a fresh connection."""
        self._set_up(connection)
        self._thread.start()

    def now(self) -> float:
        """Return the database's time, as far as this process knows, in Unix seconds."""
        return time.monotonic() + self._offset_s

    def steady(self) -> float:
        """Return the same time as `now`: here, leases are measured by the database's time too."""
        return self.now()

    def is_announced(self, owner: str) -> bool:
        return owner in self._recorded

    def announce(self, owner: str) -> None:
        """Ask the thread to lock `owner`, and wait until it has tried once, but no longer than five seconds."""
        with self._condition:
            if owner not in self._owners:
                self._owners.append(owner)
                os.write(self._wake_write, b".")
            self._condition.wait_for(lambda: owner in self._recorded or self._is_stopping, timeout=5.0)

    def stop(self) -> None:
        """Give up the locks and end."""
        self._is_stopping = True
        os.write(self._wake_write, b".")
        if self._thread.ident is not None:
            self._thread.join()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                for owner in self._owners:
                    run(connection, "retire", (owner,))
            connection.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        checked_at = seal_at = time.monotonic()
        while not self._is_stopping:
            try:
                if self._connection is None:
                    self._set_up(connect(self._url))
                    self.reconnected_at = time.monotonic()
                    self._changed(Changes(0))
                connection = self._connection
                assert connection is not None
                # Pause until a hint comes or it is time to seal.
                self._pause(max(0.0, seal_at - time.monotonic()), connection.fileno())
                self._lock_owners(connection)
                if time.monotonic() >= seal_at:
                    seal_at = time.monotonic() + self._try_to_seal(connection)
                if time.monotonic() - checked_at >= CLOCK_S:
                    checked_at = time.monotonic()
                    self._read_clock(connection)
                self._take_hints(connection)
            except (psycopg.Error, OSError) as error:
                self._lose(error)
            except Exception as error:
                # Without this thread, others would take this process for dead after the next restart of the database.
                logger.exception("the control connection to PostgreSQL failed unexpectedly")
                self._lose(error)

    def _set_up(self, connection: Connection) -> None:
        self._connection = connection
        self._announced = 0
        self._unlocked.clear()
        connection.execute(f"LISTEN {CHANNEL}".encode())
        # With this lock, `planwarden move` refuses the store while this process uses it.
        connection.execute("SELECT pg_try_advisory_lock_shared($1)", (IN_USE_LOCK,))
        self._read_clock(connection)
        self._lock_owners(connection)

    def _try_to_seal(self, connection: Connection) -> float:
        """Seal, unless a row is damaged; return after how many seconds to seal again."""
        try:
            seal(connection)
        except StoreError as error:
            # Only sealing fails; hints and locks continue. Commands that read the audit report the same error.
            logger.error("%s", error.message)
            return REFUSED_S
        return SEAL_S

    def _take_hints(self, connection: Connection) -> None:
        """Take all hints, including those that arrived while a statement ran. Then pause, so that the next hints are
        taken together: if many processes commit, waking up for each hint would take a noticeable share of the time."""
        hints = [*connection.notifies(timeout=0)]
        for hint in hints:
            sender, *texts = hint.payload.split("\n")
            if sender != self.name:
                self._changed(read_hints(texts))
        if hints:
            time.sleep(GATHER_S)

    def _lock_owners(self, connection: Connection) -> None:
        while self._announced < len(self._owners):
            owner = self._owners[self._announced]
            run(connection, "announce", (owner, lock_key(owner)))
            self._unlocked.add(owner)
            self._try_locks(connection)
            with self._condition:
                self._recorded.add(owner)
                self._announced += 1
                self._condition.notify_all()
        self._try_locks(connection)

    def _try_locks(self, connection: Connection) -> None:
        """Try each missing lock without waiting: a liveness check may hold it briefly, or another store may hold it."""
        for owner in tuple(self._unlocked):
            if connection.execute("SELECT pg_try_advisory_lock($1)", (lock_key(owner),)).fetchone() == (True,):
                self._unlocked.discard(owner)

    def _read_clock(self, connection: Connection) -> None:
        began = time.monotonic()
        [(now,)] = run(connection, "clock").fetchall()
        self._offset_s = float(now) - (began + time.monotonic()) / 2

    def _lose(self, error: Exception) -> None:
        is_refused = isinstance(error, psycopg.Error) and not isinstance(error, errors.ReadOnlySqlTransaction)
        if is_refused and self._connection is not None and not self._connection.closed:
            # A full disk, for example, is not a reason to give up the locks.
            logger.warning("PostgreSQL refused a statement (%s); trying it again", type(error).__name__)
            self._pause(REFUSED_S)
            return
        if self._connection is not None:
            logger.warning("the control connection to PostgreSQL broke (%s); opening it again", type(error).__name__)
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None
        self.reconnected_at = time.monotonic()
        self._pause(PAUSE_S)

    def _pause(self, pause_s: float, *descriptors: int) -> None:
        """Pause, but return early on `stop`, for a new owner, or if a descriptor has something to read. Even after a
        failure, trying again at once does no harm."""
        # `select.select` refuses descriptors from 1,024 on, which a process with many clients has.
        poll = select.poll()
        for descriptor in (self._wake_read, *descriptors):
            poll.register(descriptor, select.POLLIN)
        if not self._is_stopping and self._wake_read in dict(poll.poll(pause_s * 1000)):
            os.read(self._wake_read, 4096)
