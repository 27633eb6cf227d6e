"""The PostgreSQL of the benchmark, with PostgreSQL's own settings for durability, on the disk of temporary files."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from tests.support.postgres import Server

SLOWER_MS = 3
"""By which a flush takes longer where the disk is made slow."""


@contextmanager
def started() -> Generator[Server]:
    """A new server, deleted at the end."""
    server = Server(fsync="on", shared_buffers="128MB")
    try:
        yield server
    finally:
        server.end()


@contextmanager
def slow_disk(server: Server) -> Generator[None]:
    """Make each flush of the log take `SLOWER_MS` longer during the block.

    `commit_delay` sleeps where a flush is about to begin, with the lock of the log held, even if others commit: as a
    slower disk does, except that commits which come during the sleep still join the flush.
    """
    _set(server, commit_delay=str(SLOWER_MS * 1_000), commit_siblings="0")
    try:
        yield
    finally:
        _set(server, commit_delay="0", commit_siblings="5")


def settle(server: Server) -> None:
    """Returns when the server has written what it still had to write, and cleans no table any more."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        busy = "SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"
        while connection.execute(busy).fetchone() is not None:
            time.sleep(1.0)


def version(server: Server) -> str:
    """PostgreSQL's version."""
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
        return str(row[0]) if row else "unknown"


def read_cpu(folder: Path) -> float:
    """Seconds of CPU of all processes that work in the folder below this one."""
    ticks = 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and str((process / "cwd").readlink()).startswith(str(folder)):
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            # It has ended.
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _set(server: Server, **settings: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")
    # A session reads its settings again before its next statement.
    time.sleep(0.2)
