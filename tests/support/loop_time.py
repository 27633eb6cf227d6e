"""The running event loop: its clock, which a test sets forward where a limit has to expire, and its longest turn.

A limit of milliseconds also expires before what it is to interrupt has begun, when the machine is busy. With a limit of
seconds and a clock that is set forward at the right moment, it expires there and nowhere else, and nobody waits for it.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel


def pass_time(seconds: float) -> None:
    """Lets this much time pass at once for the running event loop, and for every limit and pause in it."""
    loop = asyncio.get_running_loop()
    read = loop.time
    loop.time = lambda: read() + seconds


MAX_TURN_S = 0.1
TRIES = 3


async def measure_longest_turn(work: Callable[[], Awaitable[object]]) -> tuple[float, int]:
    """Return the most CPU time, in seconds, that the loop's own thread took between two turns, and their number.

    The work is done again when that is more than `MAX_TURN_S`, and the best one counts.
    """
    measured = [await _measure(work)]
    while min(measured)[0] >= MAX_TURN_S and len(measured) < TRIES:
        measured.append(await _measure(work))
    return min(measured)


async def _measure(work: Callable[[], Awaitable[object]]) -> tuple[float, int]:
    turns: list[float] = []

    async def sample() -> None:
        while True:
            before = time.thread_time()
            await anyio.lowlevel.checkpoint()
            turns.append(time.thread_time() - before)

    # A full collection in the middle would look at everything that other tests left in this process.
    gc.collect()
    gc.freeze()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sample)
            await work()
            tasks.cancel_scope.cancel()
    finally:
        gc.unfreeze()
    return max(turns), len(turns)
