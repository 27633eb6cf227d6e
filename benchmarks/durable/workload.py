"""The job that every system does, the points at which its process can be killed, and what an adapter offers.

Five steps for one order: two lookups, a refund that a person has to approve, a note, a summary. The refund is the only
effect. It appends a line to a ledger outside of the system that is measured, and waits until it is on disk.
"""

import inspect
import os
import signal
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Point = Literal["before asking", "asked", "decided", "claimed", "effect done", "recorded"]
Points = tuple[Point | None, Point | None]
Question = Literal["approve", "outcome"]
JOB = "order-1207"
SENT, REFUSED = "refund sent", "refund refused"
PATIENCE_S = 30.0
"""How long an adapter waits for its system to come to rest."""

_sent: list[str] = []


class System:
    """One system in one process, on one job, with its state in a folder or at the URL of a PostgreSQL database.

    `works` is false where the process only answers or asks for a result, while another one may be at work.
    """

    def __init__(self, folder: Path, url: str, works: bool) -> None:
        self.folder, self.url, self.works = folder, url, works

    async def open(self) -> None:
        """Open the system's store."""

    async def close(self) -> None:
        """Close what `open` opened."""

    async def advance(self) -> None:
        """Start the job, or after a crash do what the documentation says; return when it waits or is over."""

    async def question(self) -> Question | None:
        """Return what a person is asked now: to approve, or whether the refund happened."""

    async def answer(self, yes: bool) -> None:
        """Answer the open question, and return when the job waits or is over. Raise if it is not taken."""

    async def result(self) -> str | None:
        """Return the outcome to a caller that comes late: `SENT`, `REFUSED`, or None where there is none to have."""


def reach(point: Point | None) -> None:
    """End this process with SIGKILL if this is the point at which it has to die."""
    if point and os.environ.get("KILL_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def commit(before: Point | None = None, after: Point | None = None) -> Generator[None]:
    """Mark a commit of the system between two points; the first one after the refund ends with `recorded`."""
    reach(before)
    yield
    reach(after)
    if _sent:
        reach("recorded")


def unnamed(*_: Any) -> Points:
    """Return no points, for a commit that can only be `recorded`."""
    return (None, None)


def points(kinds: Collection[str], asks: str, decides: str) -> Points:
    """Return the points before and after a commit, by the kinds of what it stores."""
    return ("before asking", "asked") if asks in kinds else (None, "decided" if decides in kinds else None)


def watch(store: Any, name: str, points: Callable[..., Points] = unnamed) -> None:
    """Make a store's method a commit between the points for its arguments."""
    method = getattr(store, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        with commit(*points(*arguments)):
            return method(*arguments, **named)

    async def awaited(*arguments: Any, **named: Any) -> Any:
        with commit(*points(*arguments)):
            return await method(*arguments, **named)

    setattr(store, name, awaited if inspect.iscoroutinefunction(method) else watched)


def send_refund(order: str) -> str:
    """Send the money: append a line to the ledger, with the time, and return when it is on disk."""
    reach("claimed")
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, f"{time.monotonic_ns()}\n".encode())
    os.fsync(ledger)
    os.close(ledger)
    _sent.append(order)
    reach("effect done")
    return SENT


def save_file(path: Path, text: str) -> None:
    """Replace a file so that it is on disk when this returns, as an application does that must not lose it."""
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _read(name: str) -> Callable[[str], str]:
    def step(order: str) -> str:
        return f"{order}: {name}"

    step.__name__ = name
    return step


STEPS = {
    name: send_refund if name == "send_refund" else _read(name)
    for name in ("look_up_order", "check_stock", "send_refund", "add_note", "summarise")
}
