"""What an execution leaves on the disk: commits and bytes, read from the files themselves.

Commits are counted in the write-ahead log: the last frame of every transaction carries the size of the database
(https://sqlite.org/fileformat2.html#the_write_ahead_log). Bytes are the size of the database file after everything in
the log has been moved into it, divided by the number of executions; index pages and free space included.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

HEADER, FRAME_HEADER = 32, 24
PATIENCE_S = 10.0


def settle(database: Path) -> int:
    """Moves the log into the database, empties it, and returns the size of the database. No other process may write."""
    is_busy = True
    give_up_at = time.monotonic() + PATIENCE_S
    with closing(sqlite3.connect(database)) as connection:
        # planwarden's own checkpoint, on a thread, may still be under way.
        while is_busy and time.monotonic() < give_up_at:
            is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if is_busy:
        raise RuntimeError(f"{database.name} is being written; its log cannot be emptied")
    return database.stat().st_size


def commits(database: Path) -> int:
    """Returns the transactions in the log since it was last emptied. The caller keeps it too small for a checkpoint."""
    return sum(1 for size in _frames(database) if size)


def log_bytes(database: Path) -> int:
    """Returns the bytes in the log since it was last emptied."""
    return sum(1 for _ in _frames(database)) * (FRAME_HEADER + _page_size(database))


def _frames(database: Path) -> Iterator[int]:
    """Yields, for every valid frame, the size of the database after the commit that it ends, or 0."""
    content = _log(database).read_bytes()
    if len(content) < HEADER:
        return
    salt, step = content[16:24], FRAME_HEADER + _page_size(database)
    for start in range(HEADER, len(content) - step + 1, step):
        frame = content[start : start + FRAME_HEADER]
        if frame[8:16] != salt:
            return
        yield int.from_bytes(frame[4:8], "big")


def _page_size(database: Path) -> int:
    with _log(database).open("rb") as file:
        return int.from_bytes(file.read(HEADER)[8:12], "big")


def _log(database: Path) -> Path:
    return database.with_name(database.name + "-wal")
