"""The SQLite file as the modules of `planwarden.storage.sql` use it."""

import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from planwarden.agent.core.audit import AuditEntry
from planwarden.storage.locks import LivenessFile
from planwarden.storage.sql.database import Rows
from planwarden.storage.sqlite.audit import add_entries
from planwarden.storage.sqlite.reader import Reader
from planwarden.storage.sqlite.statements import SQL
from planwarden.storage.sqlite.writer import Writer

Result = TypeVar("Result")

TICKER = "ticker-"
"""The beginning of the names of processes that start what is due."""


class SqliteTransaction:
    """Implements `SqlTransaction` over a connection with an open one."""

    __slots__ = ("_connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, name: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(SQL[name], parameters)

    def lock(self, name: str) -> None:
        """Nobody else writes while this transaction is open."""

    def add_audit(self, entries: Iterable[AuditEntry], at: float) -> None:
        add_entries(self._connection, entries, at)


class SqliteDatabase:
    """Implements `Database` over the store's writer and reader."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer = writer
        self._reader = reader

    async def write(self, operation: Callable[[SqliteTransaction], Result]) -> Result:
        return await self._writer.run(lambda connection: operation(SqliteTransaction(connection)))

    async def fetch(self, name: str, parameters: Sequence[object] = ()) -> Rows:
        return await self._reader.fetch(name, parameters)


class FileLiveness:
    """Implements `Liveness` over the files of the home's processes."""

    def __init__(self, files: LivenessFile) -> None:
        self._files = files

    async def announce(self, owner: str) -> None:
        self._files.announce(owner)

    async def is_dead(self, owner: str) -> bool:
        return self._files.is_dead(owner)


class FileAttendance:
    """Implements `Attendance` over the same files."""

    def __init__(self, files: LivenessFile) -> None:
        self._files = files
        self._name = f"{TICKER}{secrets.token_hex(8)}"

    async def attend(self) -> None:
        self._files.announce(self._name)

    async def is_attended(self) -> bool:
        return self._files.is_anyone_alive(TICKER)
