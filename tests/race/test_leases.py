"""Who owns an execution when processes stand still, clocks jump, or calls come back late."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.runtime import scheduler
from planwarden.agent.runtime.adoption import RENEW_S, SILENT_S, UNLIMITED_S
from planwarden.agent.runtime.scheduler import TICK_S
from tests.harness import team
from tests.harness import team as engines
from tests.harness.ledger import Ledger
from tests.kit import Decision, Engine, Tool, define, first_only, requirement
from tests.storage.suite import LEASE_S, BackEnd
from tests.support.fakes import StoreCall, WatchedStore

LIMIT_S = 300.0


@dataclass
class SlowMail:
    """Sends mail after a wait, as a tool does whose server has to start first. One for each process."""

    ledger: Ledger
    is_waiting: anyio.Event = field(default_factory=anyio.Event)
    is_cancelled: anyio.Event = field(default_factory=anyio.Event)
    may_send: anyio.Event = field(default_factory=anyio.Event)
    may_return: anyio.Event = field(default_factory=anyio.Event)
    sent: list[str] = field(default_factory=list[str])

    async def call(self, arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
        self.is_waiting.set()
        try:
            await self.may_send.wait()
        except anyio.get_cancelled_exc_class():
            self.is_cancelled.set()
            raise
        await context.confirm_lease()
        key = context.idempotency_key
        self.ledger.write("done", key=key, tool="mail", arguments=arguments, value="sent")
        self.sent.append(key)
        with anyio.CancelScope(shield=True):
            await self.may_return.wait()
        return "sent"

    def tool(self) -> Tool:
        definition = ToolDefinition(
            name="mail", description="Sends.", input_schema={"type": "object"}, risk="read", timeout_s=LIMIT_S
        )
        return Tool(define(definition), self.call)


class Place(team.Team):
    """`owner` has begun a call and stands still, `other` is another process."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        super().__init__(back_end, folder)
        self.mail, self.other_mail = SlowMail(self.ledger), SlowMail(self.ledger)
        self.silent = team.SilentStore(back_end.connect())
        self.other_mail.may_send.set()
        self.other_mail.may_return.set()

    @asynccontextmanager
    async def processes(self) -> AsyncGenerator[tuple[Engine, Engine, ExecutionState]]:
        async with (
            self.process(tools=[self.mail.tool()], on=lambda _: self.silent) as owner,
            self.process(tools=[self.other_mail.tool()]) as other,
        ):
            running = await team.start(owner, team.ALONE)
            await self.mail.is_waiting.wait()
            yield owner, other, running

    async def take_over(self, other: Engine, running: ExecutionState) -> ExecutionState:
        """Let time pass until the other process has asked what became of the call."""
        self.clock.advance(LEASE_S)
        while (await self.stored(running)).status == "running":
            await other.tick()
            self.clock.advance(LIMIT_S)
            await anyio.lowlevel.checkpoint()
        return await other.wait(running, 60)

    def let_mail_end(self) -> None:
        self.mail.may_send.set()
        self.mail.may_return.set()


@pytest.fixture
def no_own_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first turn, an engine takes only those that the test asks for."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)


@pytest.fixture
def place(back_end: BackEnd, tmp_path: Path) -> Place:
    return Place(back_end, tmp_path)


async def answer(engine: Engine, execution: ExecutionState, decision: Decision) -> ExecutionState:
    return await engine.wait(await engines.answer(engine, execution, decision), 60)


@requirement("lease:effect")
@pytest.mark.parametrize("decision", [team.DID_NOT_HAPPEN, team.NO], ids=["did not happen", "give up"])
async def test_an_owner_that_was_replaced_while_it_waited_sends_nothing(place: Place, decision: Decision) -> None:
    async with place.processes() as (_, other, running):
        asked = await place.take_over(other, running)
        question = await team.find_question(other, asked)
        assert question.kind == "reconcile" and "lives but does not respond" in " ".join(question.found)
        done = await answer(other, asked, decision)
        place.let_mail_end()
        await other.wait(done, 60)
    again = [f"{running.execution_id}:mail:1"] if decision is team.DID_NOT_HAPPEN else []
    assert place.ledger.tools_run() == ["mail"] * len(again)
    assert (place.mail.sent, place.other_mail.sent) == ([], again)


@requirement("lease:effect")
async def test_an_owner_that_stood_still_after_it_stored_the_intent_makes_no_call(place: Place) -> None:
    is_stored, may_go_on = anyio.Event(), anyio.Event()

    async def stand_still(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "after"):
            is_stored.set()
            await may_go_on.wait()

    # A tool that does not ask for the lease itself.
    async with (
        place.process(tools=("mail",), on=lambda store: team.SilentStore(WatchedStore(store, stand_still))) as owner,
        place.process(tools=("mail",)) as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(team.start, owner, team.ALONE)
        await is_stored.wait()
        [header] = await place.store.executions(team.PRINCIPAL, 1)
        asked = await place.take_over(other, await other.find(header.execution_id))
        may_go_on.set()
        while "CallReportedLate" not in await place.kinds(asked):
            await anyio.lowlevel.checkpoint()
    assert place.ledger.tools_run() == []


@requirement("lease:effect")
async def test_an_owner_that_notices_another_one_stops_its_calls(place: Place) -> None:
    async with place.processes() as (owner, other, running):
        await place.take_over(other, running)
        place.silent.is_awake = True
        await owner.tick()
        await place.mail.is_cancelled.wait()
    assert place.ledger.tools_run() == []


@requirement("lease:late-report", "engine:fenced", "store:takeover")
async def test_a_result_that_comes_late_stands_in_the_open_question(place: Place) -> None:
    place.mail.may_send.set()
    async with place.processes() as (_, other, running):
        await team.until(lambda: bool(place.mail.sent))
        asked = await place.take_over(other, running)
        before = await team.find_question(other, asked)
        place.mail.may_return.set()
        while "CallReportedLate" not in await place.kinds(running):
            await anyio.lowlevel.checkpoint()
        [after] = [found.question for found in (await place.stored(running)).open_suspensions]
        assert 'reported later that it returned: "sent"' in after.found[-1]
        assert (after.revision, after.suspension_id) == (before.revision + 1, before.suspension_id)
        assert after.digest != before.digest
        assert (await place.stored(running)).status == "suspended"
        assert "ToolReturned" not in await place.kinds(running)
        done = await answer(other, asked, Decision(approved=True, content={"happened": True, "result": "sent"}))
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])


@requirement("lease:living")
async def test_a_living_owner_keeps_its_execution_when_the_time_jumps_or_all_processes_slept(place: Place) -> None:
    place.silent.is_awake = True
    async with place.processes() as (owner, other, running):
        jumps = [lambda seconds=seconds: place.clock.jump(seconds) for seconds in (60, -3_600, 86_400)]
        for pass_time in (*jumps, lambda: place.clock.advance(LEASE_S + UNLIMITED_S)):
            pass_time()
            for engine in (other, owner, other):
                await engine.tick()
            header = await place.header(running)
            assert (header.owner, header.fence) == (owner.owner, 1)
        place.let_mail_end()
        done = await owner.wait(running, 60)
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])
    assert "ToolOutcomeUnknown" not in await place.kinds(running)


@requirement("lease:living")
async def test_a_silent_owner_is_replaced_when_the_longest_of_its_calls_can_no_longer_begin(place: Place) -> None:
    async with place.processes() as (_, other, running):
        for seconds in (LEASE_S, SILENT_S, LIMIT_S - SILENT_S - RENEW_S):
            place.clock.advance(seconds)
            await other.tick()
            assert (await place.stored(running)).status == "running"
        while (await place.stored(running)).status == "running":
            place.clock.advance(RENEW_S)
            await other.tick()
            await anyio.lowlevel.checkpoint()


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
@pytest.mark.parametrize("turns_before", first_only(*sorted(range(int(RENEW_S / TICK_S)), key=lambda n: n % 4), keep=3))
async def test_a_silent_owner_with_no_effect_is_replaced_when_its_lease_ends(place: Place, turns_before: int) -> None:
    begun = team.Gate()
    mail = [place.tool("mail", effect="read")]
    async with (
        place.process(begun, tools=("mail",), effect="read", on=lambda _: place.silent) as owner,
        place.process(tools=mail) as other,
    ):
        for _ in range(turns_before):
            await other.tick()
            place.clock.advance(TICK_S)
        running, began = await team.start(owner, team.ALONE), place.clock.steady()
        # What the owner commits renews its lease, so time starts when it has nothing left to commit.
        await begun.is_reached.wait()
        while (await place.header(running)).owner == owner.owner:
            place.clock.advance(TICK_S)
            await other.tick()
        assert LEASE_S <= place.clock.steady() - began <= LEASE_S + TICK_S
        done = await other.wait(await other.find(running.execution_id), 60)
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
async def test_what_waits_for_its_silent_owner_hides_no_other_lease_that_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MAX_ROWS", 2)
    begun = team.Gate()
    held = [place.tool("mail", before=begun.hold), place.tool("look", effect="read", before=begun.hold)]
    free = ["mail", place.tool("look", effect="read")]
    async with place.process(tools=held, on=lambda _: place.silent) as owner, place.process(tools=free) as other:
        kept = [await team.start(owner, team.ALONE, thread_id=thread_id) for thread_id in ("t", "t2")]
        ended = await team.start(owner, team.step("look", "look"), thread_id="t3")
        await begun.wait_for(3)
        for _ in range(int((LEASE_S + RENEW_S) / TICK_S)):
            place.clock.advance(TICK_S)
            await other.tick()
        done = await other.wait(await other.find(ended.execution_id), 60)
        assert done.status == "completed"
        assert [(await place.stored(found)).status for found in kept] == ["running", "running"]
    assert place.ledger.tools_run() == ["look"]
