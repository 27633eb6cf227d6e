"""What downstream servers write to their standard error: kept in a bounded file each, escaped, never on our own output.

The two newest halves are kept. Messages of ours name the file and quote nothing from it: it may hold anything.
"""

import os
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 512 * 1024
"""Of each half."""
MAX_LINE_CHARS = 2_000


class ServerLog:
    """The log of one server; without a folder what is written is dropped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._size = 0

    @property
    def path(self) -> Path | None:
        return self._path

    def write(self, line: bytes) -> None:
        """One line, without its end. A disk that does not take it is no reason to fail."""
        if self._path is None:
            return
        data = f"{_escaped(line[: MAX_LINE_CHARS * 4])}\n".encode()
        try:
            if self._descriptor is None or self._size + len(data) > MAX_LOG_BYTES:
                self._open(self._path)
            assert self._descriptor is not None
            self._size += os.write(self._descriptor, data)
        except OSError:
            self.close()
            self._path = None

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _open(self, path: Path) -> None:
        self.close()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            if path.stat().st_size > MAX_LOG_BYTES // 2:
                os.replace(path, path.with_suffix(".old.log"))
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._descriptor).st_size


def _escaped(line: bytes) -> str:
    text = line.decode("utf-8", "replace")[:MAX_LINE_CHARS]
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
