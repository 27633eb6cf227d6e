"""A wall clock that many processes share through a mapped file: it stands still until it is set, or it jumps."""

import struct
import time
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

FILE = "clock"
START = 1_800_000_000.0
_machine_time = time.time
"""As it was before a process of a stage replaced it."""


class SharedClock:
    """Unix seconds: those in the file, on top of the time of `base`."""

    def __init__(self, path: Path, *, start: float = START, base: Callable[[], float] = lambda: 0.0) -> None:
        """The first process that opens the file writes `start` into it."""
        if not path.exists():
            path.write_bytes(struct.pack("d", start))
        with path.open("r+b") as file:
            self._memory = mmap(file.fileno(), 8)
        self._base = base

    @classmethod
    def of(cls, stage: Path) -> "SharedClock":
        """Return the clock of a stage: the machine's, which `jump` moves for all processes of the stage."""
        return cls(stage / FILE, start=0.0, base=_machine_time)

    def now(self) -> float:
        return self._base() + struct.unpack("d", self._memory[:8])[0]

    def steady(self) -> float:
        return time.monotonic()

    def set(self, now: float) -> None:
        self._memory[:8] = struct.pack("d", now - self._base())

    def jump(self, seconds: float) -> None:
        self._memory[:8] = struct.pack("d", struct.unpack("d", self._memory[:8])[0] + seconds)
