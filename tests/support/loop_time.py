"""The clock of the running event loop, which a test sets forward where a limit has to expire.

A limit of milliseconds also expires before what it is to interrupt has begun, when the machine is busy. With a limit of
seconds and a clock that is set forward at the right moment, it expires there and nowhere else, and nobody waits for it.
"""

import asyncio


def pass_time(seconds: float) -> None:
    """Lets this much time pass at once for the running event loop, and for every limit and pause in it."""
    loop = asyncio.get_running_loop()
    read = loop.time
    loop.time = lambda: read() + seconds
