"""One process at a time at a file, among all processes: what must be read, changed and written without another in between.

The operating system drops the lock when its holder dies, however it dies. Waiting for it blocks nobody else's tasks.
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from planwarden.agent.common.filelock import try_lock

WAIT_S = 45.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


@asynccontextmanager
async def file_lock(path: Path) -> AsyncGenerator[None]:
    """Holds the turn at the file, which is made when there is none; not to be taken again inside.

    Raises:
        TimeoutError: another process has held it for `WAIT_S`.
        OSError: the file cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        pause_s = _FIRST_PAUSE_S
        with anyio.fail_after(WAIT_S):
            while not try_lock(descriptor):
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        yield
    finally:
        # The lock goes with the descriptor.
        os.close(descriptor)
