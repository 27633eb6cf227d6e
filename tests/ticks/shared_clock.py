"""A clock that several processes read from one file, and that one of them sets."""

import mmap
import struct
import time
from pathlib import Path

_FORM = struct.Struct("<d")


class SharedClock:
    """Stands still until `set`."""

    def __init__(self, path: Path, *, now: float | None = None) -> None:
        """With `now` the file is made, otherwise it has to be there."""
        if now is not None:
            path.write_bytes(_FORM.pack(now))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _FORM.size)

    def now(self) -> float:
        return float(_FORM.unpack_from(self._memory)[0])

    def steady(self) -> float:
        return time.monotonic()

    def set(self, now: float) -> None:
        _FORM.pack_into(self._memory, 0, now)
