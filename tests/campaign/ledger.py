"""What really happened, written down outside planwarden: an append-only file of JSON lines.

It needs the standard library only, because the downstream server that writes it must start in a moment. A line is on
disk before anybody is told of it.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.json_lines import append_line, read_lines

FILE = "ledger"


@dataclass(frozen=True)
class Line:
    """One line: what happened, when by the clock that never jumps, in which process, and its facts."""

    what: str
    at: float
    pid: int
    facts: dict[str, Any]

    @property
    def key(self) -> str:
        """`execution:step:number` of a call; empty for lines about processes."""
        return self.facts.get("key", "")


class Ledger:
    """The ledger of one stage. `write` may be called by many processes at once."""

    def __init__(self, stage: Path) -> None:
        self.path = stage / FILE

    def write(self, what: str, **facts: Any) -> None:
        append_line(self.path, [what, time.monotonic(), os.getpid(), facts], flush=True)

    def lines(self, *kinds: str) -> list[Line]:
        """All lines of these kinds, or all lines, oldest first."""
        return [line for line in (Line(*found) for found in read_lines(self.path)) if not kinds or line.what in kinds]


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie; a stopped one is running."""
    return _find_state(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    return _find_state(pid) == "T"


def _find_state(pid: int) -> str:
    """The kernel's letter for the state of the process; empty when there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[0]
