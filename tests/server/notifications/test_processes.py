"""Notifications with processes of their own: one delivery among several, another one after a kill."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from pydantic import JsonValue

from planwarden.server.notifications.sender import CLAIM_S
from planwarden.server.settings.configuration import Settings
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.clock import SharedClock
from tests.harness.process import Worker
from tests.requirements import requirement
from tests.server.notifications.test_outbox import unwatched
from tests.server.notifications.worker import hook
from tests.support.fakes import WatchedStore
from tests.support.receiver import Receiver, serve_receiver
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROGRAM = "tests.server.notifications.worker:serve"
QUESTIONS = 20


@asynccontextmanager
async def workers(folder: Path, receiver: Receiver, count: int) -> AsyncGenerator[list[Worker]]:
    """Questions that were asked on a home, and processes that could tell of them."""
    store = SqliteStore.open(folder / "planwarden.db", clock=SharedClock(folder / "clock"))
    settings = Settings(home=folder, channels=(hook(receiver.port),))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        async with warden(Ledger(), store=WatchedStore(store, unwatched), settings=settings) as w:
            for _ in range(QUESTIONS):
                await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        found = [Worker(PROGRAM, str(folder), str(receiver.port)) for _ in range(count)]
        try:
            with anyio.fail_after(60):
                yield found
        finally:
            for worker in found:
                await anyio.to_thread.run_sync(worker.kill)


async def told(worker: Worker, command: str) -> JsonValue:
    """What the process says to a command, while this one goes on receiving."""
    question: JsonValue = [command]
    return await anyio.to_thread.run_sync(worker.ask, question)


async def deliver(worker: Worker) -> None:
    assert await told(worker, "deliver") == ["delivered"]


@requirement("notification:one-claim")
async def test_of_two_processes_that_deliver_at_the_same_time_each_notification_is_sent_by_one(tmp_path: Path) -> None:
    async with serve_receiver() as receiver, workers(tmp_path, receiver, 2) as found:
        async with anyio.create_task_group() as tasks:
            for worker in found:
                tasks.start_soon(deliver, worker)
        counts = Counter(request.notification_id for request in receiver.received)
        assert len(counts) == QUESTIONS and set(counts.values()) == {1}


@requirement("notification:at-least-once")
async def test_a_process_killed_between_sending_and_recording_leads_to_a_second_delivery_with_the_same_id(
    tmp_path: Path,
) -> None:
    async with serve_receiver() as receiver, workers(tmp_path, receiver, 2) as (dying, heir):
        assert await told(dying, "send and hang") == ["sent"]
        while len(receiver.received) < 4:
            await receiver.wait_for(len(receiver.received) + 1)
        await anyio.to_thread.run_sync(dying.kill)
        await deliver(heir)
        assert len(receiver.received) == QUESTIONS
        clock = SharedClock(tmp_path / "clock")
        clock.set(clock.now() + CLAIM_S)
        await deliver(heir)
        counts = Counter(request.notification_id for request in receiver.received)
        assert sorted(counts.values()) == [1] * (QUESTIONS - 4) + [2] * 4
        assert sum(counts.values()) == QUESTIONS + 4
