"""A file of JSON lines that many processes append to, any of which may be killed in the middle of a write.

A write that crosses a page can end there when its process is killed. So every line begins with a line end of its own:
the piece stays a line by itself, and whoever reads leaves it out, as if it had never been written.
"""

import json
import os
from pathlib import Path
from typing import Any


def append_line(path: Path, value: list[Any], *, flush: bool = False) -> None:
    """Append one line, in one write; with `flush` it is on the disk before this returns."""
    line = json.dumps(value, separators=(",", ":"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"\n{line}\n".encode())
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> list[list[Any]]:
    """The lines that were written whole, oldest first; none when there is no file."""
    if not path.exists():
        return []
    found: list[list[Any]] = []
    for line in path.read_bytes().split(b"\n"):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
