"""What the runner asks of a process of a side."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

HOLD_S = 150.0
"""Seconds that a held call takes, so long that its process is dead or stopped before it returns."""
TIMEOUT_S = 120.0
"""Seconds after which a process that does not answer is taken for stuck."""


class ScaleSide(Protocol):
    """One process of one system. All processes of a system share a database."""

    async def run(self, seconds: float, at_once: int) -> int:
        """Runs the job `at_once` times at once, suspension and approval included, and starts no more after `seconds`.

        Returns how many executions it has completed, all that it started.
        """
        ...

    async def wait(self, name: str) -> str:
        """Begins an execution that waits for a decision and belongs to this process; returns what `decide` needs.

        The effect after the decision is reported with `report_effect` under the name.
        """
        ...

    async def decide(self, waiting: str) -> None:
        """Decides an execution that another process waits with."""
        ...

    async def hold(self, name: str) -> None:
        """Begin an execution with a call that takes long and is reported under the name when it starts.

        Another process reports the call again when it has taken the execution over.
        """
        ...


OpenSide = Callable[[str], AbstractAsyncContextManager[ScaleSide]]


async def run_closed(run_one: Callable[[], Awaitable[object]], seconds: float, at_once: int) -> int:
    """Whenever one of the `at_once` ends, the next one starts, until the time is over; returns how many there were."""
    until = time.monotonic() + seconds

    async def work() -> int:
        done = 0
        while not done or time.monotonic() < until:
            await run_one()
            done += 1
        return done

    return sum(await asyncio.gather(*(work() for _ in range(at_once))))


def report_effect(name: str) -> None:
    """Tells the runner that the effect happens now, by the machine's clock that all processes share."""
    answer({"effect": name, "at": time.monotonic()})


def answer(found: dict[str, object]) -> None:
    """Sends one line to the runner."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


async def read_lines() -> AsyncGenerator[str]:
    """Lines of standard input, without holding the event loop up."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode()
