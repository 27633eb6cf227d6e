"""Keeps what a downstream server writes to its standard error: in a bounded file, escaped, never on our own output.

The file and its predecessor (`.old.log`) are kept. Our messages name the file and quote nothing from it, because it may
contain anything.
"""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_LOG_BYTES = 512 * 1024
"""Of each of the two files."""
MAX_LINE_CHARS = 2_000


class WithoutTraceback(logging.Filter):
    """Takes the traceback off a record about a message that does not validate: a server sent it, and we are whole."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], ValueError):
            record.exc_info = None
        return True


_SDK_LOGGERS = ("client", "mcp.client.streamable_http")
_WITHOUT_TRACEBACK = WithoutTraceback()


def shorten_sdk_log() -> None:
    """Keep what a server sends out of the tracebacks that the SDK logs; calling it again changes nothing."""
    for name in _SDK_LOGGERS:
        logging.getLogger(name).addFilter(_WITHOUT_TRACEBACK)


@dataclass
class ServerLog:
    """The log of one server; without a path, lines are dropped."""

    path: Path | None
    _descriptor: int | None = None
    _size: int = 0

    def write(self, line: bytes) -> None:
        """Append one line, given without its end. Stops logging when the disk cannot be written to."""
        if self.path is None:
            return
        data = f"{_escape(line[: MAX_LINE_CHARS * 4])}\n".encode()
        try:
            if self._descriptor is None or self._size + len(data) > MAX_LOG_BYTES:
                self._open(self.path)
            assert self._descriptor is not None
            self._size += os.write(self._descriptor, data)
        except OSError:
            self.close()
            self.path = None

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


def _escape(line: bytes) -> str:
    text = line.decode("utf-8", "replace")[:MAX_LINE_CHARS]
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
