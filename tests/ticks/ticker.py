"""The program of a process that starts what schedules say until it is killed: `tests.ticks.ticker:work FOLDER NAME`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import KeyUsed
from planwarden.agent.common.ids import RandomIds
from planwarden.agent.core import events as ev
from planwarden.agent.core.requester import Requester
from planwarden.agent.ports.store import StartedExecution, StartRequest, Store
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.clock import SharedClock
from tests.harness.process import say
from tests.storage.suite import PLAN, Scribe

PAUSE_S = 0.002
ENDED = ev.ExecutionFailed(code="ended", message="it ended")


class EndedRuns:
    """Implements `PlanRunner`: each run is an execution that has ended already, stored in one transaction."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._ids = store, name, RandomIds()

    async def run_plan(
        self,
        name: str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        key: str | None = None,
        requester: Requester,
        **options: Any,
    ) -> StartedExecution:
        scribe = Scribe.on(self._store, self._ids.new(), principal=requester.principal, owner=self._name)
        append = scribe.append(ev.ExecutionCreated(goal=name), ev.PlanAccepted(plan=PLAN), ENDED)
        try:
            await self._store.append(replace(append, start=StartRequest(key=str(key), request=name)))
        except KeyUsed:
            started = await self._store.find_start(requester.principal, str(key))
            assert started is not None
            return started
        execution = append.execution
        return StartedExecution(execution_id=execution.execution_id, thread_id=execution.thread_id, request=name)


async def work(folder: Path, name: str) -> None:
    store = SqliteStore.open(folder / "planwarden.db", clock=SharedClock(folder / "clock"))
    ticker = ScheduleTicker(store, store.schedules, EndedRuns(store, name))
    # How long it lives counts from here, however long a busy machine took to start it.
    say("ready")
    while True:
        await ticker.look()
        await anyio.sleep(PAUSE_S)
