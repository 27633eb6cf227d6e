"""Advisory file locks, which the operating system drops when the process that holds them dies, however it dies.

`WriteLock` serialises writers on SQLite versions with the WAL-reset bug (https://sqlite.org/wal.html#walresetbug, fixed
in 3.51.3). `LivenessFile` shows that a process with executions is alive. A store in memory has `OneProcess` instead.

Both lock an open descriptor with filelock. Its class `FileLock` takes a path instead: it would open the file each time,
which would slow every transaction, and create a missing file, which would bring a dead owner's file back.
"""

import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

from planwarden.agent.common.errors import StoreError

TRIES = 20
"""How often to try to lock an owner's file, a millisecond apart; after that, another store of this process has it."""
_OWNER = re.compile(r"[\w-]{1,100}", re.ASCII)


def _open(path: Path) -> int:
    """Return a descriptor of the file at `path`; create the file and its folder if they are missing."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror}; nothing was lost") from error


def _lock_file(path: Path, descriptor: int) -> bool:
    """Try to take the lock. Return whether that worked and `path` still leads to the file open as `descriptor`."""
    with suppress(FileNotFoundError):
        return lock_descriptor(descriptor, blocking=False) and os.path.samestat(os.fstat(descriptor), path.stat())
    return False


class WriteLock:
    """Admits one writer at a time among all processes, for one transaction each."""

    def __init__(self, path: Path, *, timeout_s: float = 30.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._descriptor = _open(path)

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the lock inside the `with` block. Block the calling thread until the lock is free.

        Raises:
            StoreError: another process held the lock for `timeout_s`.
        """
        pause, deadline = 0.0005, time.monotonic() + self._timeout_s
        while not self.try_to_take():
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
            unlock_descriptor(self._descriptor)

    @contextmanager
    def held_if_free(self) -> Generator[bool]:
        """Take the lock if nobody, in this process or another one, holds it. Yield whether it was free. Never block."""
        is_held = self.try_to_take()
        try:
            yield is_held
        finally:
            if is_held:
                unlock_descriptor(self._descriptor)

    def try_to_take(self) -> bool:
        """Take the lock if it is free; return whether it was. Raises `StoreError` if the system cannot lock files."""
        try:
            return lock_descriptor(self._descriptor, blocking=False)
        except OSError as error:
            raise StoreError(f"cannot lock {str(self._path)!r}: {error.strerror}; nothing was stored") from error

    def close(self) -> None:
        os.close(self._descriptor)


class LivenessFile:
    """One file per owner, which the owner's process keeps locked as long as it lives.

    A process that finds the file of an owner unlocked or missing knows that the owner is dead, and need not wait for
    the owner's leases to expire. This works across containers that share the folder but not their process numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def announce(self, owner: str) -> None:
        """Record that `owner` lives in this process; a second call for the same owner does nothing.

        Raises:
            StoreError: the file cannot be created.
        """
        if owner in self._held:
            return
        path = self._folder / f"{owner}.alive"
        descriptor = _open(path)
        for _ in range(TRIES):
            # A process that looks at the file before it is locked takes the owner for dead, and deletes the file.
            if _lock_file(path, descriptor):
                break
            os.close(descriptor)
            time.sleep(0.001)
            descriptor = _open(path)
        self._held[owner] = descriptor

    def is_dead(self, owner: str) -> bool:
        """Return True only when `owner` is certainly dead; its file is then deleted.

        A stored name that could lead outside this folder was never announced, so its owner is dead.
        """
        if owner in self._held:
            return False
        if not _OWNER.fullmatch(owner):
            return True
        path = self._folder / f"{owner}.alive"
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            is_dead = _lock_file(path, descriptor)
            if is_dead:
                path.unlink(missing_ok=True)
            return is_dead
        finally:
            os.close(descriptor)

    def is_anyone_alive(self, prefix: str) -> bool:
        """Return whether an owner whose name begins with `prefix` is alive; delete files of dead owners on the way."""
        names = [path.stem for path in self._folder.glob(f"{prefix}*.alive")]
        return any(not self.is_dead(name) for name in names)

    def retire(self) -> None:
        """Delete the files of this process's owners."""
        for owner, descriptor in self._held.items():
            (self._folder / f"{owner}.alive").unlink(missing_ok=True)
            os.close(descriptor)
        self._held.clear()


class OneProcess:
    """The owners of a store in memory, which end together with the store."""

    def __init__(self) -> None:
        self._owners: set[str] = set()

    def announce(self, owner: str) -> None:
        self._owners.add(owner)

    def is_dead(self, owner: str) -> bool:
        return False

    def is_anyone_alive(self, prefix: str) -> bool:
        return any(owner.startswith(prefix) for owner in self._owners)

    def retire(self) -> None:
        self._owners.clear()
