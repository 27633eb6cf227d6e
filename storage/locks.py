"""Advisory file locks that the operating system drops when their holder dies, however it dies.

Two uses: the write lock that serialises writers on SQLite versions with the WAL-reset bug
(https://sqlite.org/wal.html#walresetbug, fixed in 3.51.3), and the sign of life of a process that owns executions.
"""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.filelock import try_lock, unlock


def _opened(path: Path) -> int:
    """A descriptor of the file at `path`, made with its folder when there is none."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror}; nothing was lost") from error


class WriteLock:
    """One writer at a time among all processes; held for a transaction, never longer."""

    def __init__(self, path: Path, *, timeout_s: float = 30.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._descriptor = _opened(path)

    @contextmanager
    def held(self) -> Generator[None]:
        """Blocks the calling thread until the lock is free. Raises `StoreError` after `timeout_s`."""
        pause, deadline = 0.0005, time.monotonic() + self._timeout_s
        while not try_lock(self._descriptor):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"another process has held {self._path.name} for {self._timeout_s:.0f} s; "
                    "stop it, or wait and try again"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        try:
            yield
        finally:
            unlock(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class LivenessFile:
    """A file per living process, locked for as long as the process lives.

    A process that finds the file of another one unlocked or gone knows that the other one is dead, without waiting for
    its leases to run out, and across containers that share the folder but not their process numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def announce(self, owner: str) -> None:
        """Say that `owner` lives in this process; does nothing the second time. Raises `StoreError`."""
        if owner in self._held:
            return
        descriptor = _opened(self._folder / f"{owner}.alive")
        try_lock(descriptor)
        self._held[owner] = descriptor

    def is_dead(self, owner: str) -> bool:
        """True only when it is certain; clears the file away."""
        if owner in self._held:
            return False
        path = self._folder / f"{owner}.alive"
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            if not try_lock(descriptor):
                return False
            path.unlink(missing_ok=True)
            return True
        finally:
            os.close(descriptor)

    def retire(self) -> None:
        """Take back every sign of this process."""
        for owner, descriptor in self._held.items():
            (self._folder / f"{owner}.alive").unlink(missing_ok=True)
            os.close(descriptor)
        self._held.clear()
