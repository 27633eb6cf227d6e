"""What stops a job, and only that job."""

import asyncio
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from planwarden.agent.runtime import job_scope, job_tasks
from planwarden.agent.runtime.job_scope import JobScope
from planwarden.agent.runtime.job_tasks import JobTasks

pytestmark = pytest.mark.anyio


def assert_nothing_is_left() -> None:
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@pytest.mark.parametrize(
    ("limit_s", "is_cancelled", "waits", "is_late"),
    [
        (0.0, False, False, False),
        (0.0, False, True, True),
        (-1.0, False, True, True),
        (None, True, False, False),
        (None, True, True, False),
    ],
    ids=["in time", "too long", "the limit begins before the job", "cancelled and over", "cancelled"],
)
async def test_a_job_is_stopped_where_it_first_waits_by_its_limit_or_somebody_and_leaves_no_cancellation(
    limit_s: float | None, is_cancelled: bool, waits: bool, is_late: bool
) -> None:
    seen = list[str]()

    async def work() -> str:
        seen.append("begun")
        if waits:
            try:
                await anyio.sleep_forever()
            finally:
                seen.append("clean")
        return "done"

    def begin() -> JobScope:
        scope = JobScope(limit_s)
        if is_cancelled:
            scope.cancel()
        return scope

    with anyio.fail_after(60):
        scope = begin()
        with scope:
            await work()
        again = begin()
        assert await again.run(work()) == (None if waits else "done")
        await anyio.lowlevel.checkpoint()
    for ended in (scope, again):
        assert (ended.is_cancelled, ended.is_late) == (is_cancelled or is_late, is_late)
    assert seen == (["begun", "clean"] * 2 if waits else ["begun"] * 2)
    assert_nothing_is_left()


async def test_a_job_that_goes_on_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_scope, "AGAIN_S", 0.0)
    swallowed = 0
    with anyio.fail_after(60), JobScope(0.0) as scope:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()
    assert (swallowed, scope.is_late) == (2, True)
    assert_nothing_is_left()


@pytest.mark.parametrize("how", ["scope", "tasks"])
async def test_what_anyio_shields_is_over_before_it_is_cancelled(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_scope, "LOOK_S", 0.0)
    monkeypatch.setattr(job_tasks, "LOOK_S", 0.0)
    has_begun, may_end, seen = asyncio.Event(), asyncio.Event(), list[str]()

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        with anyio.CancelScope(shield=True), anyio.CancelScope():
            has_begun.set()
            await may_end.wait()
            seen.append("over")
        await anyio.sleep_forever()

    async def look() -> None:
        await has_begun.wait()
        # It is looked at in each of these turns.
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        may_end.set()

    with anyio.fail_after(60):
        looking = asyncio.get_running_loop().create_task(look())
        if how == "scope":
            assert await JobScope(0.0).run(work()) is None
        else:
            tasks = JobTasks(lambda fault: None)
            tasks.start(work())
            await has_begun.wait()
            await tasks.end()
        await looking
    assert seen == ["over"]


async def test_a_cancellation_of_somebody_else_passes_through() -> None:
    has_begun = asyncio.Event()

    async def work(scope: JobScope) -> None:
        with scope:
            has_begun.set()
            await asyncio.Event().wait()

    for is_cancelled_too in (False, True):
        has_begun.clear()
        scope = JobScope(None)
        task = asyncio.get_running_loop().create_task(work(scope))
        with anyio.fail_after(60):
            await has_begun.wait()
            if is_cancelled_too:
                scope.cancel()
                # Its own cancellation is on its way.
                await anyio.lowlevel.checkpoint()
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()


async def test_work_that_is_given_up_is_closed() -> None:
    is_cleaned = False

    async def work() -> None:
        nonlocal is_cleaned
        try:
            await asyncio.Event().wait()
        finally:
            is_cleaned = True

    running = JobScope(None).run(work())
    running.send(None)
    running.close()
    assert is_cleaned


async def test_tasks_end_however_often_they_have_to_be_cancelled_and_one_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_tasks, "AGAIN_S", 0.0)
    faults: list[BaseException] = []
    tasks, has_begun, has_ended = JobTasks(faults.append), asyncio.Event(), False

    async def fail() -> None:
        raise ZeroDivisionError

    async def swallow() -> None:
        nonlocal has_ended
        has_begun.set()
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        has_ended = True

    tasks.start(fail())
    tasks.start(swallow())
    with anyio.fail_after(60):
        await has_begun.wait()
        await tasks.end()
    # What a task raises is told once.
    assert has_ended and [type(fault) for fault in faults] == [ZeroDivisionError]
