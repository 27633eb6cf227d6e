"""Secrets in files of the home, if its store is SQLite; only the user can read these files (mode 0600).

The processes of the machine share the files. A file is always replaced as a whole. The lock on a name is a lock of the
operating system, which ends when the process that holds it ends.
"""

import errno
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from glob import escape
from pathlib import Path

import anyio.to_thread

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.paths import replace_file

SECRET_KEY_VARIABLE = "PLANWARDEN_SECRET_KEY"
"""The variable with the key that seals secrets in PostgreSQL: 32 bytes in base64, the same for all processes of one
store. The processes do not serve without it; `planwarden key new-secret` makes one."""
MAX_SECRET_BYTES = 512 * 1024
LOCK_TIMEOUT_S = 45.0
"""How many seconds a process waits for a lock that another process holds."""


class SecretFiles:
    """Implements `SecretStore`: a name is a path in the home, unless `elsewhere` has another path for it."""

    def __init__(self, home: Path, elsewhere: Mapping[str, Path] | None = None) -> None:
        self._home = home
        self._elsewhere = elsewhere or {}

    async def check(self) -> None:
        """Do nothing: files need no key."""

    async def read(self, name: str) -> bytes | None:
        path = self._path(name)
        with _translating("read", path), suppress(FileNotFoundError), path.open("rb") as file:
            return _check_size(file.read(MAX_SECRET_BYTES + 1))
        return None

    async def create(self, name: str, value: bytes) -> bytes:
        path = self._path(name)
        with _translating("write", path):
            await anyio.to_thread.run_sync(partial(replace_file, path, value, is_first=True))
        current = await self.read(name)
        if current is None:
            raise StoreError(f"{str(path)!r} was deleted while it was made; try again")
        return current

    async def replace(self, name: str, value: bytes) -> None:
        path = self._path(name)
        with _translating("write", path):
            await anyio.to_thread.run_sync(replace_file, path, _check_size(value))

    async def delete(self, name: str) -> bool:
        """Delete the file, and temporary files that processes left beside it when they died while writing."""
        path = self._path(name)
        files = [*path.parent.glob(f".{escape(path.name)}.*.tmp"), *([path] if path.exists() else [])]
        with _translating("delete", path):
            for leftover in files:
                leftover.unlink(missing_ok=True)
        return path in files

    async def version(self, name: str) -> str | None:
        try:
            status = self._path(name).stat()
        except OSError:
            return None
        return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncGenerator[None]:
        path = self._path(name)
        # Imported here, because before its first answer a server only reads its key and locks nothing.
        from filelock import AsyncFileLock

        # A soft lock would outlive a killed process. No call of this lock blocks, so all of them can run on the loop.
        lock = AsyncFileLock(
            path.with_suffix(".lock"), timeout=LOCK_TIMEOUT_S, mode=0o600, fallback_to_soft=False, run_in_executor=False
        )
        with _translating("lock", path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                await lock.acquire()
            except TimeoutError:
                raise StoreError(f"another process has locked {str(path)!r}; end it, or try again") from None
        try:
            yield
        finally:
            await lock.release()

    def locate(self, name: str) -> str:
        return repr(str(self._path(name)))

    def _path(self, name: str) -> Path:
        return self._elsewhere.get(name) or self._home / name


@contextmanager
def _translating(verb: str, path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise StoreError(f"cannot {verb} {str(path)!r}: {why}; nothing was changed") from error


def _check_size(value: bytes) -> bytes:
    if len(value) > MAX_SECRET_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return value
