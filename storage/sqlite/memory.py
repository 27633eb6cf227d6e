"""The store without a disk: the same tables in a SQLite database in memory, for tests and throw-away use."""

import sqlite3
import weakref
from pathlib import Path

from planwarden.agent.ports.environment import Clock
from planwarden.storage.clock import LEASE_S, SystemClock
from planwarden.storage.locks import OneProcess
from planwarden.storage.sqlite.database import migrate
from planwarden.storage.sqlite.reader import DirectReader
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.storage.sqlite.writer import MemoryWriter

PLACE = Path(":memory:")


class MemoryStore(SqliteStore):
    """Keeps every law of the ports except durability.

    Several engines may share one instance, as processes share a file; it is used from one event loop.
    """

    def __init__(self, clock: Clock | None = None, *, lease_s: float = LEASE_S) -> None:
        connection = sqlite3.connect(PLACE, isolation_level=None, check_same_thread=False, cached_statements=256)
        weakref.finalize(self, connection.close)
        migrate(connection, PLACE)
        reader = DirectReader(connection, PLACE)
        super().__init__(PLACE, MemoryWriter(connection, PLACE), reader, OneProcess(), clock or SystemClock(), lease_s)

    async def close(self) -> None:
        """Close nothing: the content stays for the next user of the instance."""
