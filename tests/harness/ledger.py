"""What really happened, written down outside planwarden: an append-only file of JSON lines.

It needs the standard library only, because the downstream server that writes it must start in a moment. Many processes
append, and any of them may be killed in the middle of a write, which can end at a page. So every line begins with a
line end of its own: the piece stays a line by itself, and readers leave it out.
"""

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """Lines about calls are `begun`, `done` when the effect happened, and `ended`; others are about processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, stage: Path) -> "Ledger":
        """Return the ledger of a stage, by its folder."""
        return cls(stage / FILE)

    def write(self, what: str, **facts: Any) -> None:
        """Append one line in one write."""
        line = json.dumps([what, time.monotonic(), os.getpid(), facts], separators=(",", ":"))
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"\n{line}\n".encode())
        finally:
            os.close(descriptor)

    def lines(self, *kinds: str) -> list[Line]:
        """Return the whole lines of these kinds, or all of them, oldest first; none when there is no file."""
        lines: list[Line] = []
        for text in self.path.read_bytes().split(b"\n") if self.path.exists() else ():
            try:
                line = Line(*json.loads(text))
            except ValueError:
                continue
            if not kinds or line.what in kinds:
                lines.append(line)
        return lines

    def effects(self) -> Counter[str]:
        """Return how often each call with an effect happened, by key."""
        return Counter(line.key for line in self.lines("done") if line.facts.get("effect") != "read")

    def tools_run(self) -> list[str]:
        """Return the names of the tools in the order in which they ran."""
        return [line.facts["tool"] for line in self.lines("done")]

    def has_happened(self, key: str) -> bool | None:
        """Return whether the call had its effect; None while a process may still carry it out."""
        lines = self.lines()
        if any(line.what == "done" and line.key == key for line in lines):
            return True
        ended = {line.pid for line in lines if line.what == "ended" and line.key == key}
        begun = {line.pid for line in lines if line.what == "begun" and line.key == key}
        if any(map(is_running, begun - ended)):
            return None
        # What was sent may still be in the pipe to a downstream server that is stopped, or whose process is dead.
        desks = [line for line in lines if line.what == "desk" and is_running(line.pid)]
        return None if any(is_stopped(desk.pid) or not is_running(desk.facts["parent"]) for desk in desks) else False

    def reconcile_answer(self, key: str) -> dict[str, Any]:
        """Return the true answer to a question about what became of the call with this key."""
        values = [line.facts.get("value") for line in self.lines("done") if line.key == key]
        return {"happened": True, "result": values[-1]} if values else {"happened": False}


def is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie; a stopped one is running."""
    return _find_state(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    return _find_state(pid) == "T"


def _find_state(pid: int) -> str:
    """Return the kernel's letter for the state of the process; empty when there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[0]
