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


def stop_soon(scope: JobScope) -> None:
    asyncio.get_running_loop().call_soon(scope.cancel)


async def test_a_job_that_ends_in_time_is_left_alone() -> None:
    ended = False
    with JobScope(0.0) as scope:
        ended = True
    await anyio.lowlevel.checkpoint()
    assert ended and not scope.is_cancelled and not scope.is_late


async def test_a_job_without_a_limit_ends_when_it_is_cancelled() -> None:
    with anyio.fail_after(60), JobScope(None) as scope:
        stop_soon(scope)
        await anyio.sleep_forever()
    assert scope.is_cancelled and not scope.is_late


async def test_a_job_that_takes_longer_than_its_limit_is_late() -> None:
    with anyio.fail_after(60), JobScope(0.0) as scope:
        await anyio.sleep_forever()
    assert scope.is_cancelled and scope.is_late


async def test_the_limit_runs_before_the_job_begins() -> None:
    scope = JobScope(-1.0)
    with anyio.fail_after(60), scope:
        await anyio.sleep_forever()
    assert scope.is_late


async def test_a_job_that_was_cancelled_before_it_began_ends_where_it_first_waits() -> None:
    scope = JobScope(None)
    scope.cancel()
    has_begun = False
    with anyio.fail_after(60), scope:
        has_begun = True
        await anyio.sleep_forever()
    assert has_begun


async def test_a_job_that_is_over_without_waiting_leaves_no_cancellation_behind() -> None:
    scope = JobScope(None)
    scope.cancel()
    with scope:
        pass
    await anyio.lowlevel.checkpoint()
    with JobScope(0.0) as late:
        pass
    await anyio.lowlevel.checkpoint()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0 and not late.is_cancelled


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
    task = asyncio.current_task()
    assert (swallowed, scope.is_late) == (2, True)
    assert task is not None and task.cancelling() == 0


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


async def test_work_that_never_waits_is_over_before_anything_can_stop_it() -> None:
    async def work() -> str:
        return "done"

    scope = JobScope(-1.0)
    scope.cancel()
    assert await scope.run(work()) == "done" and not scope.is_late
    await anyio.lowlevel.checkpoint()


async def test_work_that_waits_goes_on_with_what_it_waited_for() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> list[str]:
        heard: list[str] = []
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(told.set_result, "first")
        heard.append(await told)
        with pytest.raises(ZeroDivisionError):
            await fail()
        with anyio.move_on_after(0):
            await anyio.sleep_forever()
        return [*heard, "last"]

    async def fail() -> None:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    with anyio.fail_after(60):
        assert await JobScope(None).run(work()) == ["first", "last"]


async def test_work_that_waits_too_long_comes_to_nothing() -> None:
    is_cleaned = False

    async def work() -> str:
        nonlocal is_cleaned
        try:
            with anyio.CancelScope():
                await anyio.sleep_forever()
        finally:
            is_cleaned = True
        return "done"

    scope = JobScope(0.0)
    with anyio.fail_after(60):
        assert await scope.run(work()) is None
    task = asyncio.current_task()
    assert scope.is_late and is_cleaned and task is not None and task.cancelling() == 0


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


async def test_an_error_of_the_job_is_its_own() -> None:
    with pytest.raises(ZeroDivisionError), JobScope(0.0) as scope:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError
    assert scope.is_late


async def test_tasks_end_however_often_they_have_to_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_tasks, "AGAIN_S", 0.0)
    faults: list[BaseException] = []
    tasks, has_begun, has_ended = JobTasks(faults.append), asyncio.Event(), False

    async def swallow() -> None:
        nonlocal has_ended
        has_begun.set()
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        has_ended = True

    tasks.start(swallow())
    with anyio.fail_after(60):
        await has_begun.wait()
        await tasks.end()
    assert has_ended and not faults


async def test_a_task_that_cleans_up_is_not_cancelled_again_for_another_one_that_is_shielded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_tasks, "LOOK_S", 0.0)
    tasks, seen = JobTasks(lambda fault: None), list[str]()
    is_shielded, is_clean = asyncio.Event(), asyncio.Event()

    async def be_shielded() -> None:
        with anyio.CancelScope(shield=True):
            is_shielded.set()
            await is_clean.wait()

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            # The other one is looked at in each of these turns.
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            seen.append("clean")
            is_clean.set()

    tasks.start(be_shielded())
    tasks.start(clean_up())
    with anyio.fail_after(60):
        await is_shielded.wait()
        await tasks.end()
    assert seen == ["clean"]


async def test_what_a_task_raises_is_told_once() -> None:
    faults: list[BaseException] = []
    is_told = asyncio.Event()

    def note(fault: BaseException) -> None:
        faults.append(fault)
        is_told.set()

    async def fail() -> None:
        raise ZeroDivisionError

    tasks = JobTasks(note)
    tasks.start(fail())
    with anyio.fail_after(60):
        await is_told.wait()
        await tasks.end()
    assert [type(fault) for fault in faults] == [ZeroDivisionError]
