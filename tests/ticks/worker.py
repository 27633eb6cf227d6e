"""One process that starts what schedules say until it is killed: `python -m tests.ticks.worker FOLDER NAME`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import KeyUsed
from planwarden.agent.common.ids import RandomIds
from planwarden.agent.core import events as ev
from planwarden.agent.core.fold import apply
from planwarden.agent.core.plan import Plan, PlanStep
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import new_execution
from planwarden.agent.ports.store import Append, StartedExecution, StartRequest, Store
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.storage.sqlite.store import SqliteStore
from tests.ticks.shared_clock import SharedClock

PAUSE_S = 0.002
PLAN = Plan(steps=(PlanStep(step_id="a", description="report", step_type="reasoning"),))
ENDED = ev.ExecutionFailed(code="ended", message="it ended")


class EndedRuns:
    """Implements `PlanRunner`: each run is an execution that has ended already, stored in one transaction."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._ids = RandomIds()

    async def run_plan(
        self,
        name: str,
        inputs: Mapping[str, JsonValue] | None = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        options: Mapping[str, JsonValue] | None = None,
        wait_seconds: float | None = None,
        requester: Requester,
    ) -> StartedExecution:
        assert key is not None
        execution, recorded = new_execution(self._ids.new(), self._ids.new(), requester.principal), list[ev.Recorded]()
        at = self._store.clock.now()
        for event in (ev.ExecutionCreated(goal=name), ev.PlanAccepted(plan=PLAN), ENDED):
            execution = apply(execution, event, at)
            recorded.append(ev.Recorded(sequence=execution.version, at=at, event=event))
        append = Append(
            execution=execution,
            recorded=recorded,
            expected_version=0,
            lease=None,
            acquire=True,
            release=True,
            owner=self._name,
            start=StartRequest(key=str(key), request=name),
        )
        try:
            await self._store.append(append)
        except KeyUsed:
            found = await self._store.find_start(requester.principal, str(key))
            assert found is not None
            return found
        return StartedExecution(execution_id=execution.execution_id, thread_id=execution.thread_id, request=name)


async def work(folder: Path, name: str) -> None:
    store = SqliteStore.open(folder / "planwarden.db", clock=SharedClock(folder / "clock"))
    ticker = ScheduleTicker(store, store.schedules, EndedRuns(store, name))
    # How long it lives counts from here, however long a busy machine took to start it.
    (folder / f"{name}.ready").touch()
    while True:
        await ticker.look()
        await anyio.sleep(PAUSE_S)


if __name__ == "__main__":
    anyio.run(work, Path(sys.argv[1]), sys.argv[2])
