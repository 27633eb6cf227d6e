"""What a process does about executions that nobody owns and that it cannot continue."""

import pytest

from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.store import Lease, SuspensionRow
from planwarden.agent.runtime import adoption
from planwarden.agent.runtime.adoption import SKIPPED_S, Adoption
from planwarden.agent.runtime.known import KnownExecutions
from planwarden.agent.runtime.scheduler import CLAIMED_AT_ONCE, Scheduler
from planwarden.agent.runtime.watches import Watches
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.registry import Registry
from tests.requirements import requirement
from tests.storage.suite import Scribe

pytestmark = pytest.mark.anyio

FOREIGN = 4 * CLAIMED_AT_ONCE
REMEMBERED = 2 * CLAIMED_AT_ONCE
TURNS = 3 * FOREIGN // CLAIMED_AT_ONCE


class Others:
    """Other processes that may have the tools which this one has not."""

    generation = 0
    is_outdated = False

    def is_current(self, definition: ToolDefinition) -> bool:
        return True


class Office:
    """Executions that nobody owns: many whose tool is not here, and the newest one, which anybody can continue."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.taken: list[str] = []

    async def begin(self) -> None:
        for number in range(FOREIGN):
            await self._abandon(Scribe.on(self.store, f"e{number}", owner="gone"))
        scribe = Scribe.on(self.store, "mine", owner="gone")
        await scribe.start()
        await scribe.write(ev.ToolCallIntended(call_id="a:1", arguments={}), ev.ToolReturned(call_id="a:1"))
        await self._abandon(scribe, ev.StepCompleted(step_id="a", validation="passed"))

    async def _abandon(self, scribe: Scribe, *events: ev.Event) -> None:
        await (scribe.write(*events) if events else scribe.start())
        assert scribe.lease is not None
        await self.store.release(scribe.lease)

    def start(self, execution: ExecutionState, lease: Lease, *, is_current: bool) -> None:
        self.taken.append(execution.execution_id)

    def scheduler(self) -> Scheduler:
        async def nothing(_: object = None) -> None:
            """These tests have no grants."""

        async def wake(row: SuspensionRow) -> None:
            raise AssertionError("these tests have no questions")

        known = KnownExecutions()
        found = Adoption(
            self.store, "p1", Registry(), known, follows=True, concurrency=100, peers=Others(), start=self.start
        )
        return Scheduler(
            self.store, "p1", known, Watches(), adopts=True, refresh_grants=nothing, wake=wake, adoption=found
        )

    async def count_claims(self) -> int:
        """How often an execution changed its owner since it was abandoned."""
        headers = await self.store.walk("", FOREIGN + 1)
        return sum(header.fence - 1 for header in headers)


@requirement("scheduler:fair")
async def test_more_executions_than_a_process_remembers_and_cannot_continue_do_not_keep_it_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adoption, "MAX_SKIPPED", REMEMBERED)
    office = Office()
    await office.begin()
    turns = office.scheduler()
    has_more = [await turns.tick() for _ in range(TURNS)]
    assert has_more == [True] + [False] * (TURNS - 1)
    assert office.taken == ["mine"]
    assert await office.count_claims() == CLAIMED_AT_ONCE + 1
    office.clock.advance(SKIPPED_S)
    assert await turns.tick(), "it looks again after a while"
