"""Task groups inside objects that are context managers themselves, and how to end them."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


@asynccontextmanager
async def keep_running(work: Callable[[], Coroutine[object, object, object]]) -> AsyncGenerator[None]:
    """Run the work while the block runs, and cancel it at the end of the block."""
    tasks, failure = anyio.create_task_group(), None
    await tasks.__aenter__()
    tasks.start_soon(work)
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        await cancel_tasks(tasks, failure)


async def cancel_tasks(tasks: TaskGroup, error: BaseException | None) -> None:
    """Cancel the tasks and return when they are over; `error` is what ended the body, or None.

    The task group does not get an exception of the body, because it would wrap that exception in a group. It must get
    a cancellation from outside: otherwise anyio would chain a second cancellation to that one, in an endless circle.
    """
    tasks.cancel_scope.cancel()
    cancellation = None if isinstance(error, Exception) else error
    if cancellation is None:
        await tasks.__aexit__(None, None, None)
    else:
        await tasks.__aexit__(type(cancellation), cancellation, cancellation.__traceback__)
