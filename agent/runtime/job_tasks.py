"""The tasks in which an engine's runs work.

A task group of anyio does the same for four times the work, and an execution begins two of them.
"""

import asyncio
from collections.abc import Callable, Coroutine

from planwarden.agent.runtime.job_scope import AGAIN_S, LOOK_S, is_shielded


class JobTasks:
    """Belongs to one event loop. `on_fault` is called with what a task raised."""

    def __init__(self, on_fault: Callable[[BaseException], None]) -> None:
        self._on_fault = on_fault
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Begin in a new task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel every task that is not shielded; does not wait for its end."""
        for task in self._tasks:
            if not is_shielded(task):
                task.cancel()

    async def end(self) -> None:
        """Returns when every task has ended, cancelled as often as it takes."""
        while self._tasks:
            await asyncio.gather(*map(_end_one, self._tasks))

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_fault(error)


async def _end_one(task: asyncio.Task[None]) -> None:
    while not task.done():
        is_delayed = is_shielded(task)
        if not is_delayed:
            task.cancel()
        await asyncio.wait([task], timeout=LOOK_S if is_delayed else AGAIN_S)
