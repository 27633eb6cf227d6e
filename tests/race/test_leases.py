"""Who owns an execution when processes stand still, clocks jump, or calls come back late."""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import psycopg
import pytest
from anyio import TaskInfo
from pydantic import JsonValue

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime import scheduler
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.agent.runtime.scheduler import TICK_S
from planwarden.agent.runtime.silence import LOOK_S, RENEW_S, SILENT_S, UNLIMITED_S
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.postgres.liveness import GONE_S
from planwarden.tools.base import Tool, define
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL, engine_on
from tests.requirements import requirement
from tests.storage.suite import BACK_END_NAMES, BACK_ENDS, LEASE_S, BackEnd, Postgres
from tests.support.fakes import (
    EffectLedger,
    Entry,
    ForgetfulStore,
    SilentStore,
    StoreCall,
    WatchedStore,
    recording_tool,
)
from tests.support.slices import first_only

pytestmark = pytest.mark.anyio

LIMIT_S = 300.0


@dataclass
class SlowMail:
    """Sends mail after a wait, as a tool does whose server has to start first. One for each process."""

    ledger: EffectLedger
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
        self.ledger.write(
            Entry(tool_name="mail", effect="effect", key=key, arguments=arguments, value="sent", process=0)
        )
        self.sent.append(key)
        with anyio.CancelScope(shield=True):
            await self.may_return.wait()
        return "sent"

    def tools(self) -> Registry:
        schema: dict[str, JsonValue] = {"type": "object"}
        definition = ToolDefinition(
            name="mail", description="Sends.", input_schema=schema, risk="read", timeout_s=LIMIT_S
        )
        return Registry([Tool(define(definition), self.call)])


class Place:
    """One store and ledger; `owner` has begun a call and stands still, `other` is another process."""

    def __init__(self, back_end: BackEnd, folder: Path) -> None:
        self.back_end, self.clock = back_end, back_end.clock
        self.ledger = EffectLedger(folder / "effects")
        self.mail, self.other_mail = SlowMail(self.ledger), SlowMail(self.ledger)
        self.store = SilentStore(back_end.connect())
        self._looking = back_end.connect()
        self.other_mail.may_send.set()
        self.other_mail.may_return.set()

    @asynccontextmanager
    async def processes(self, store: Store | None = None) -> AsyncGenerator[tuple[Engine, Engine, ExecutionState]]:
        async with (
            engine_on(store or self.store, self.mail.tools(), CallerModel()) as owner,
            engine_on(self.back_end.connect(), self.other_mail.tools(), CallerModel()) as other,
        ):
            running = await start_mail(owner, "t")
            await self.mail.is_waiting.wait()
            yield owner, other, running

    async def take_over(self, other: Engine, running: ExecutionState) -> ExecutionState:
        """Time passes until the other process has asked what became of the call."""
        self.clock.advance(LEASE_S)
        while (await self.stored(running)).status == "running":
            await other.tick()
            self.clock.advance(LIMIT_S)
            await anyio.lowlevel.checkpoint()
        return await other.wait(running, 60)

    async def read_kinds(self, running: ExecutionState) -> list[str]:
        recorded = await self._looking.read(running.execution_id)
        return [type(entry.event).__name__ for entry in recorded]

    async def stored(self, running: ExecutionState) -> ExecutionState:
        return await load_execution(self._looking, running)


async def start_mail(engine: Engine, thread_id: str) -> ExecutionState:
    return await start_call(engine, thread_id, "mail")


async def start_call(engine: Engine, thread_id: str, tool_name: str) -> ExecutionState:
    """A started execution of one call."""
    call: JsonValue = [{"toolName": tool_name, "arguments": {}}]
    step: JsonValue = {"id": tool_name, "description": tool_name, "toolCalls": call}
    plan, _ = parse_plan({"todoList": [step]}, author="caller", tools=engine.tool_facts())
    return await engine.create(
        thread_id=thread_id, requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
    )


@pytest.fixture
def no_own_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first turn, an engine takes only those that the test asks for."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)


@pytest.fixture(params=BACK_END_NAMES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    back_end = BACK_ENDS[request.param](tmp_path / "home")
    try:
        with anyio.fail_after(60):
            yield Place(back_end, tmp_path)
    finally:
        await back_end.close()


async def answer(engine: Engine, execution: ExecutionState, decision: Decision) -> ExecutionState:
    execution = await engine.find(execution.execution_id)
    [asked] = execution.open_suspensions
    answered, _ = await engine.answer(execution, asked.question.suspension_id, decision, PERSON)
    return await engine.wait(answered, 60)


DID_NOT_HAPPEN = Decision(approved=True, content={"happened": False})
GIVE_UP = Decision(approved=False)


@requirement("lease:effect")
@pytest.mark.parametrize("decision", [DID_NOT_HAPPEN, GIVE_UP], ids=["did not happen", "give up"])
async def test_an_owner_that_was_replaced_while_it_waited_sends_nothing(place: Place, decision: Decision) -> None:
    async with place.processes() as (_, other, running):
        asked = await place.take_over(other, running)
        [question] = [found.question for found in asked.open_suspensions]
        assert question.kind == "reconcile" and "lives but does not respond" in " ".join(question.found)
        done = await answer(other, asked, decision)
        place.mail.may_send.set()
        place.mail.may_return.set()
        await other.wait(done, 60)
    again = [f"{running.execution_id}:mail:1"] if decision is DID_NOT_HAPPEN else []
    assert place.ledger.tools_run() == ["mail"] * len(again)
    assert (place.mail.sent, place.other_mail.sent) == ([], again)


@requirement("lease:effect")
@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_an_owner_that_was_taken_for_dead_sends_nothing(place: Place) -> None:
    async with place.processes() as (owner, other, running):
        assert isinstance(place.back_end, Postgres)
        with psycopg.connect(place.back_end.url) as connection:
            connection.execute("DELETE FROM owners WHERE owner = %s", (owner.owner,))
        place.clock.advance(GONE_S)
        while (await place.stored(running)).status == "running":
            await other.tick()
            await anyio.lowlevel.checkpoint()
        done = await answer(other, await place.stored(running), DID_NOT_HAPPEN)
        place.mail.may_send.set()
        place.mail.may_return.set()
        await other.wait(done, 60)
    assert (place.mail.sent, len(place.other_mail.sent)) == ([], 1)


@requirement("lease:effect")
async def test_an_owner_that_notices_another_one_stops_its_calls(place: Place) -> None:
    async with place.processes() as (owner, other, running):
        await place.take_over(other, running)
        place.store.is_awake = True
        await owner.tick()
        await place.mail.is_cancelled.wait()
    assert place.ledger.tools_run() == []


@requirement("lease:late-report")
async def test_a_result_that_comes_late_stands_in_the_open_question(place: Place) -> None:
    place.mail.may_send.set()
    async with place.processes() as (_, other, running):
        while not place.mail.sent:
            await anyio.lowlevel.checkpoint()
        asked = await place.take_over(other, running)
        [before] = [found.question for found in asked.open_suspensions]
        place.mail.may_return.set()
        while "CallReportedLate" not in await place.read_kinds(running):
            await anyio.lowlevel.checkpoint()
        [after] = [found.question for found in (await place.stored(running)).open_suspensions]
        assert 'reported later that it returned: "sent"' in after.found[-1]
        assert (after.revision, after.suspension_id) == (before.revision + 1, before.suspension_id)
        assert after.digest != before.digest
        done = await answer(other, asked, Decision(approved=True, content={"happened": True, "result": "sent"}))
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])


@requirement("lease:living")
async def test_a_living_owner_keeps_its_execution_when_the_time_jumps(place: Place) -> None:
    place.store.is_awake = True
    async with place.processes() as (owner, other, running):
        for seconds in (60, -3_600, 86_400):
            place.clock.jump(seconds)
            for engine in (other, owner, other):
                await engine.tick()
        place.mail.may_send.set()
        place.mail.may_return.set()
        done = await owner.wait(running, 60)
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])
    assert "ToolOutcomeUnknown" not in await place.read_kinds(running)


@requirement("lease:living")
async def test_a_living_owner_keeps_its_execution_when_all_processes_slept(place: Place) -> None:
    place.store.is_awake = True
    async with place.processes() as (owner, other, running):
        place.clock.advance(LEASE_S + UNLIMITED_S)
        for engine in (other, owner, other):
            await engine.tick()
        header = await place.back_end.connect().header(running.execution_id)
        assert header is not None and (header.owner, header.fence) == (owner.owner, 1)
        place.mail.may_send.set()
        place.mail.may_return.set()


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
async def test_a_silent_owner_without_an_effect_is_replaced_when_its_lease_ends(
    place: Place, turns_before: int
) -> None:
    begun, never = anyio.Event(), anyio.Event()

    async def hold() -> None:
        begun.set()
        await never.wait()

    held = recording_tool(place.ledger, "mail", effect="read", before=hold)
    free = recording_tool(place.ledger, "mail", effect="read")
    async with (
        engine_on(place.store, Registry([held]), CallerModel()) as owner,
        engine_on(place.back_end.connect(), Registry([free]), CallerModel()) as other,
    ):
        for _ in range(turns_before):
            await other.tick()
            place.clock.advance(TICK_S)
        running, began = await start_mail(owner, "t"), place.clock.steady()
        # What the owner commits renews its lease, so time starts when it has nothing left to commit.
        await begun.wait()
        looking = place.back_end.connect()
        while (header := await looking.header(running.execution_id)) and header.owner == owner.owner:
            place.clock.advance(TICK_S)
            await other.tick()
        assert LEASE_S <= place.clock.steady() - began <= LEASE_S + TICK_S
        done = await other.wait(await other.find(running.execution_id), 60)
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
async def test_a_lease_that_ends_while_a_look_lasts_is_due_at_the_next_turn(place: Place) -> None:
    begun, never = [anyio.Event(), anyio.Event()], anyio.Event()

    async def hold() -> None:
        next(event for event in begun if not event.is_set()).set()
        await never.wait()

    looks, ends_at = 0, place.clock.steady() + LEASE_S

    async def last_long(moment: StoreCall) -> None:
        """The look before the end of the leases lasts until then, once the first of them was watched."""
        nonlocal looks
        left_s = ends_at - place.clock.steady()
        if moment.call == "header" and moment.when == "before" and 0 < left_s <= LOOK_S:
            looks += 1
            if looks == len(begun):
                place.clock.advance(left_s)

    held = recording_tool(place.ledger, "mail", effect="read", before=hold)
    free = recording_tool(place.ledger, "mail", effect="read")
    async with (
        engine_on(place.store, Registry([held]), CallerModel()) as owner,
        engine_on(WatchedStore(place.back_end.connect(), last_long), Registry([free]), CallerModel()) as other,
    ):
        running = [await start_mail(owner, thread_id) for thread_id in ("t", "t2")]
        for event in begun:
            await event.wait()
        while looks < len(begun):
            place.clock.advance(TICK_S)
            await other.tick()
        place.clock.advance(TICK_S)
        await other.tick()
        looking = place.back_end.connect()
        owners = [(header := await looking.header(found.execution_id)) and header.owner for found in running]
        assert owner.owner not in owners
        for found in running:
            await other.wait(await other.find(found.execution_id), 60)
    assert place.ledger.tools_run() == ["mail"] * len(running)


class Turns:
    """Hooks into the store of a process: a command and a turn of its scheduler go for one execution at one moment."""

    def __init__(self, looking: Store, running: ExecutionState, *, sees_owner_commit: bool) -> None:
        """The command's lease is refused; then it reads what the takeover has committed, or commits too late."""
        self._looking, self._running = looking, running
        self._held = ("read", 1) if sees_owner_commit else ("append", 2)
        """The call of the command that waits until the takeover has asked its question."""
        self.is_claimed, self._may_begin, self._has_asked = anyio.Event(), anyio.Event(), anyio.Event()
        self._commands: TaskInfo | None = None
        self._calls: Counter[str] = Counter()

    async def watch(self, moment: StoreCall) -> None:
        if moment.call == "claim" and moment.when == "after" and not self.is_claimed.is_set():
            self.is_claimed.set()
            await self._may_begin.wait()
        if not self.is_claimed.is_set() or moment.call not in ("read", "append"):
            return
        if self._commands is None:
            self._commands = anyio.get_current_task()
        if anyio.get_current_task() != self._commands:
            header = await self._looking.header(self._running.execution_id)
            if header is not None and header.status == "suspended":
                self._has_asked.set()
        elif moment.when == "before":
            self._calls[moment.call] += 1
            if (moment.call, self._calls[moment.call]) == self._held:
                self._may_begin.set()
                await self._has_asked.wait()


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
@pytest.mark.parametrize("sees_owner_commit", [True, False])
async def test_what_is_cancelled_while_it_is_taken_over_ends_without_a_question(
    place: Place, sees_owner_commit: bool
) -> None:
    async with engine_on(place.back_end.connect(), place.mail.tools(), CallerModel()) as owner:
        running = await start_mail(owner, "t")
        await place.mail.is_waiting.wait()
    turns = Turns(place.back_end.connect(), running, sees_owner_commit=sees_owner_commit)
    store = WatchedStore(place.back_end.connect(), turns.watch)
    command = Engine(store, place.mail.tools(), CallerModel(), OperatorPolicy(), adopts=False, grace_s=0.0)
    async with command, anyio.create_task_group() as tasks:
        found = await command.find(running.execution_id)
        place.clock.advance(RENEW_S)
        tasks.start_soon(command.tick)
        await turns.is_claimed.wait()
        done = await command.cancel(found, None)
        assert (await place.stored(running)).status == done.status == "cancelled"
    assert place.ledger.tools_run() == []


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
async def test_what_is_cancelled_while_it_is_taken_over_stops_the_call_that_the_takeover_repeats(place: Place) -> None:
    is_repeated, never = anyio.Event(), anyio.Event()

    async def hold() -> None:
        is_repeated.set()
        await never.wait()

    is_claimed, is_refused = anyio.Event(), anyio.Event()
    appends = 0

    async def meet(moment: StoreCall) -> None:
        """The command is refused when the takeover has claimed, and recorded when that has repeated the call."""
        nonlocal appends
        if moment.call == "claim" and moment.when == "after" and not is_claimed.is_set():
            is_claimed.set()
            await is_refused.wait()
        if is_claimed.is_set() and moment.call == "append" and moment.when == "before":
            appends += 1
            if appends == 2:
                is_refused.set()
                await is_repeated.wait()

    begun = anyio.Event()

    async def begin() -> None:
        begun.set()
        await never.wait()

    first = recording_tool(place.ledger, "mail", effect="read", before=begin)
    async with engine_on(place.back_end.connect(), Registry([first]), CallerModel()) as owner:
        running = await start_mail(owner, "t")
        await begun.wait()
    again = recording_tool(place.ledger, "mail", effect="read", before=hold)
    store = WatchedStore(place.back_end.connect(), meet)
    command = Engine(store, Registry([again]), CallerModel(), OperatorPolicy(), adopts=False, grace_s=0.0)
    async with command, anyio.create_task_group() as tasks:
        found = await command.find(running.execution_id)
        place.clock.advance(RENEW_S)
        tasks.start_soon(command.tick)
        await is_claimed.wait()
        done = await command.wait(await command.cancel(found, None), 600)
        assert (done.status, place.ledger.tools_run()) == ("cancelled", [])


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
async def test_a_command_that_changes_nothing_takes_nothing_from_a_living_owner(place: Place) -> None:
    begun, never = anyio.Event(), anyio.Event()

    async def hold() -> None:
        begun.set()
        await never.wait()

    held = recording_tool(place.ledger, "mail", effect="read", before=hold)
    free = recording_tool(place.ledger, "mail", effect="read")
    async with (
        engine_on(place.store, Registry([held]), CallerModel()) as owner,
        engine_on(place.back_end.connect(), Registry([free]), CallerModel()) as other,
    ):
        running = await start_mail(owner, "t")
        await begun.wait()
        place.clock.advance(LEASE_S + UNLIMITED_S)
        await other.withdraw(await other.find(running.execution_id), "nothing", "there is no such question")
        header = await place.back_end.connect().header(running.execution_id)
        assert header is not None and header.owner == owner.owner
    assert place.ledger.tools_run() == []


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
async def test_what_waits_for_its_silent_owner_hides_no_other_lease_that_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MAX_ROWS", 2)
    begun, never = [anyio.Event() for _ in range(3)], anyio.Event()

    async def hold() -> None:
        next(event for event in begun if not event.is_set()).set()
        await never.wait()

    held = [
        recording_tool(place.ledger, "mail", effect="effect", before=hold),
        recording_tool(place.ledger, "look", effect="read", before=hold),
    ]
    free = [recording_tool(place.ledger, "mail", effect="effect"), recording_tool(place.ledger, "look", effect="read")]
    async with (
        engine_on(place.store, Registry(held), CallerModel()) as owner,
        engine_on(place.back_end.connect(), Registry(free), CallerModel()) as other,
    ):
        kept = [await start_call(owner, thread_id, "mail") for thread_id in ("t", "t2")]
        ended = await start_call(owner, "t3", "look")
        for event in begun:
            await event.wait()
        for _ in range(int((LEASE_S + RENEW_S) / TICK_S)):
            place.clock.advance(TICK_S)
            await other.tick()
        done = await other.wait(await other.find(ended.execution_id), 60)
        assert done.status == "completed"
        assert [(await place.stored(found)).status for found in kept] == ["running", "running"]
    assert place.ledger.tools_run() == ["look"]


@requirement("lease:living")
@pytest.mark.usefixtures("no_own_turns")
async def test_a_full_process_leaves_what_a_silent_one_had_to_one_that_has_room(place: Place) -> None:
    begun, never = [anyio.Event(), anyio.Event()], anyio.Event()

    async def hold() -> None:
        next(event for event in begun if not event.is_set()).set()
        await never.wait()

    held = recording_tool(place.ledger, "mail", effect="read", before=hold)
    free = recording_tool(place.ledger, "mail", effect="read")
    busy = Engine(
        place.back_end.connect(), Registry([held]), CallerModel(), OperatorPolicy(), concurrency=1, grace_s=0.0
    )
    async with (
        busy,
        engine_on(place.store, Registry([held]), CallerModel()) as owner,
        engine_on(place.back_end.connect(), Registry([free]), CallerModel()) as other,
    ):
        await start_mail(busy, "t")
        running = await start_mail(owner, "t2")
        for event in begun:
            await event.wait()
        looking = place.back_end.connect()
        while (header := await looking.header(running.execution_id)) and header.owner == owner.owner:
            place.clock.advance(TICK_S)
            for engine in (busy, other):
                await engine.tick()
        done = await other.wait(await other.find(running.execution_id), 60)
    assert (done.status, place.ledger.tools_run()) == ("completed", ["mail"])


@requirement("lease:living")
async def test_a_busy_process_takes_again_what_it_took_without_noticing(place: Place) -> None:
    store = ForgetfulStore(place.back_end.connect())
    front = Engine(
        place.back_end.connect(), place.mail.tools(), CallerModel(), OperatorPolicy(), adopts=False, follows=False
    )
    async with engine_on(store, place.mail.tools(), CallerModel()) as busy, front:
        await start_mail(busy, "t")
        await place.mail.is_waiting.wait()
        left = await start_mail(front, "t2")
        while store.lost is None:
            with suppress(StoreError):
                await busy.tick()
        for _ in range(int(LEASE_S / RENEW_S) + 2):
            place.clock.advance(RENEW_S)
            await busy.tick()
        after = await store.header(left.execution_id)
        assert after is not None and store.lost.execution_id == left.execution_id
        assert (after.owner, after.fence) == (busy.owner, store.lost.fence + 1)
        place.mail.may_send.set()
        place.mail.may_return.set()


@requirement("lease:effect")
async def test_what_a_person_gave_up_is_told_when_the_call_still_comes_back(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.mail.may_send.set()
    async with place.processes() as (_, other, running):
        while not place.mail.sent:
            await anyio.lowlevel.checkpoint()
        asked = await place.take_over(other, running)
        done = await answer(other, asked, GIVE_UP)
        place.mail.may_return.set()
        while "ended before this was known" not in caplog.text:
            await anyio.lowlevel.checkpoint()
    assert done.status != "completed"
