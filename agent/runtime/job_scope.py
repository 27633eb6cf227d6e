"""What stops one job: its time limit, or somebody who wants it stopped.

A scope of anyio does the same and more, for three times the work, and most jobs are over before anything could stop
them. This one cancels the task as `asyncio.timeout` does, so tools may use either library inside of it. It waits for
the end of what is shielded by anyio, as a scope of anyio does.
"""

import asyncio
from collections.abc import Coroutine, Generator, Mapping
from types import TracebackType, coroutine
from typing import Any, Self, TypeVar, cast

Result = TypeVar("Result")

AGAIN_S = 1.0
"""After so many seconds, what goes on although it was cancelled is cancelled again. So long it may clean up."""
LOOK_S = 0.01
"""After so many seconds, what was shielded is looked at again."""


class JobScope:
    """Use once, as a context manager, in the task that performs the job. Leaving it stops a cancellation of its own."""

    __slots__ = ("_before", "_cancels", "_deadline", "_handle", "_loop", "_task", "is_cancelled", "is_late")

    def __init__(self, limit_s: float | None) -> None:
        """The time limit, in seconds, runs from now on."""
        self._loop = asyncio.get_running_loop()
        self._deadline = None if limit_s is None else self._loop.time() + limit_s
        self._task: asyncio.Task[object] | None = None
        """The task that is inside."""
        self._handle: asyncio.Handle | None = None
        """What will cancel it."""
        self._before = self._cancels = 0
        """How often the task had been cancelled when it came in, and was cancelled by this scope since."""
        self.is_cancelled = False
        self.is_late = False
        """The time limit was over before the job was."""

    def cancel(self) -> None:
        """Stop the job, or as soon as it first waits, if it has not begun."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._cancel_soon()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Returns what the work comes to; None when this scope has stopped it. Work that never waits costs no timer."""
        try:
            waited_for = work.send(None)
        except StopIteration as over:
            return over.value
        with self:
            return await _go_on(work, waited_for)
        return None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._before = self._task.cancelling()
        if self.is_cancelled:
            self._cancel_soon()
        elif self._deadline is not None:
            self._handle = self._loop.call_at(self._deadline, self._time_out)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if not self._cancels or task is None:
            return False
        for _ in range(self._cancels):
            task.uncancel()
        # Somebody else may have cancelled the task, too.
        return kind is asyncio.CancelledError and task.cancelling() <= self._before

    def _time_out(self) -> None:
        self.is_late = True
        self.cancel()

    def _cancel_soon(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        # Not at once: a task that cancels itself would be cancelled only after it has left the scope.
        self._handle = None if self._task is None else self._loop.call_soon(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is None:
            return
        is_delayed = is_shielded(self._task)
        if not is_delayed:
            self._cancels += 1
            self._task.cancel()
        self._handle = self._loop.call_later(LOOK_S if is_delayed else AGAIN_S, self._cancel_task)


def is_shielded(task: "asyncio.Task[Any]") -> bool:
    """Whether the task is where `anyio.CancelScope(shield=True)` keeps cancellations of outer scopes from it.

    anyio says so to nobody else: https://github.com/agronholm/anyio, `_backends/_asyncio.py`.
    """
    # Most jobs are never cancelled.
    from anyio._backends import _asyncio

    states = cast("Mapping[object, Any]", getattr(_asyncio, "_task_states", {}))
    state = states.get(task)
    scope = None if state is None else state.cancel_scope
    while scope is not None:
        if scope.shield:
            return True
        scope = getattr(scope, "_parent_scope", None)
    return False


@coroutine
def _go_on(work: Coroutine[Any, Any, Result], waited_for: object) -> Generator[object, Any, Result]:
    """Goes on with work that has begun and waits for something, as `await` does with work that has not."""
    while True:
        try:
            try:
                sent = yield waited_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 (whatever it is, it is the work's)
                waited_for = work.throw(error)
            else:
                waited_for = work.send(sent)
        except StopIteration as over:
            return over.value
