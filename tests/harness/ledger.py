"""What really happened, written down outside planwarden: an append-only file of JSON lines.

It needs the standard library only, because the downstream server that writes it must start in a moment. Many processes
append, and any of them may be killed in the middle of a write, which can end at a page. So every line begins with a
line end of its own: the piece stays a line by itself, and readers leave it out.

The processes of a stage also share how its tools behave now, which the driver writes, and a clock that can jump.
"""

import json
import os
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from mmap import mmap
from pathlib import Path
from typing import Any


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
        return cls(stage / "ledger")

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
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[0]


MANNER = "manner.json"
DIE_BEFORE, DIE_AFTER, STAND_STILL = "die-before", "die-after", "stand-still"
"""Plans, of which one process finds each: the next call with an effect kills its downstream server, before or after
the effect; or the next process that has stored that it will call a tool with an effect stops before the call."""


@dataclass(frozen=True)
class Manner:
    list_s: float = 0.0
    """How long the downstream server takes to list its tools."""
    call_s: float = 0.02
    """How long a call takes at most, half of it before its effect."""

    def write(self, stage: Path) -> None:
        part = stage / f"{MANNER}.part"
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(stage / MANNER)

    @staticmethod
    def read(stage: Path) -> "Manner":
        try:
            return Manner(**json.loads((stage / MANNER).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Manner()

    def pause(self) -> None:
        """Wait for half a call."""
        time.sleep(random.random() * self.call_s / 2)


def plan(stage: Path, mishap: str) -> None:
    (stage / mishap).touch()


def take(stage: Path, mishap: str) -> bool:
    """Remove the plan. Return False when there is none, or another process was quicker."""
    try:
        (stage / mishap).unlink()
    except FileNotFoundError:
        return False
    return True


def carry_out(
    stage: Path, key: str, tool: str, arguments: Mapping[str, Any], *, is_effect: bool = True, may_die: bool = False
) -> dict[str, Any]:
    """Carry out a call that the ledger knows as begun, as slow as the stage wants it now, and return its result."""
    ledger, manner = Ledger.of(stage), Manner.read(stage)
    manner.pause()
    if is_effect:
        if may_die and take(stage, DIE_BEFORE):
            os._exit(3)
        ledger.write("done", key=key, tool=tool, arguments=arguments)
        if may_die and take(stage, DIE_AFTER):
            os._exit(3)
    manner.pause()
    ledger.write("ended", key=key)
    return {"receipt": key, "code": "c7"}


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
        return cls(stage / "clock", start=0.0, base=_machine_time)

    def now(self) -> float:
        return self._base() + struct.unpack("d", self._memory[:8])[0]

    def steady(self) -> float:
        return time.monotonic()

    def set(self, now: float) -> None:
        self._memory[:8] = struct.pack("d", now - self._base())

    def jump(self, seconds: float) -> None:
        self._memory[:8] = struct.pack("d", struct.unpack("d", self._memory[:8])[0] + seconds)
