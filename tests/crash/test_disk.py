"""When the disk fails under a running execution: callers are told, results are kept, and it goes on afterwards."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

import planwarden.agent.runtime.engine
import planwarden.agent.runtime.run
from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Append, Store
from planwarden.agent.runtime.engine import Engine
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL, engine_on
from tests.requirements import requirement
from tests.storage.suite import Scribe
from tests.support.fakes import EffectLedger, RefusingStore, StoreCall, WatchedStore, has_result_of, recording_tool
from tests.support.processes import run_on_mount

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def patience(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Retries follow at once, and whoever hangs for a minute hangs for ever."""
    monkeypatch.setattr(planwarden.agent.runtime.run, "RETRY_S", 0.001)
    with anyio.fail_after(60):
        yield


@pytest.fixture
def ledger(tmp_path: Path) -> EffectLedger:
    return EffectLedger(tmp_path / "effects")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def inner(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


def step(step_id: str, tool: str, arguments: JsonValue = None) -> dict[str, JsonValue]:
    calls: JsonValue = [{"toolName": tool, "arguments": arguments or {}}]
    return {"id": step_id, "description": step_id, "dependencies": [], "toolCalls": calls}


async def start(engine: Engine, *steps: dict[str, JsonValue]) -> ExecutionState:
    plan, _ = parse_plan({"todoList": list(steps)}, author="caller", tools=engine.tool_facts())
    return await engine.create(
        thread_id="t", requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
    )


async def kinds(store: Store, execution: ExecutionState) -> list[str]:
    return [type(entry.event).__name__ for entry in await store.read(execution.execution_id)]


@requirement("crash:disk")
async def test_a_result_that_cannot_be_stored_is_kept_and_stored_when_there_is_space(
    inner: MemoryStore, ledger: EffectLedger
) -> None:
    attempts = iter(range(100))
    store = RefusingStore(inner, lambda append: has_result_of(append, "a:1") and next(attempts) < 5)
    async with engine_on(store, Registry([recording_tool(ledger, "mail")]), CallerModel()) as engine:
        done = await engine.wait(await start(engine, step("a", "mail")), 60)
    assert (done.status, store.refused, ledger.tools_run()) == ("completed", 5, ["mail"])
    assert "ToolOutcomeUnknown" not in await kinds(store, done)


@requirement("crash:disk", "engine:inflight")
async def test_a_result_that_waits_to_be_stored_is_not_taken_for_a_lost_one_by_another_branch(
    inner: MemoryStore, ledger: EffectLedger
) -> None:
    may_find = anyio.Event()
    found: list[bool] = []

    def refuses(append: Append) -> bool:
        found.append(has_result_of(append, "b:1"))
        if has_result_of(append, "a:1") and not any(found):
            may_find.set()
            return True
        return has_result_of(append, "a:1") and has_result_of(append, "b:1")

    tools = Registry([recording_tool(ledger, "mail"), recording_tool(ledger, "find", before=may_find.wait)])
    store = RefusingStore(inner, refuses)
    async with engine_on(store, tools, CallerModel()) as engine:
        done = await engine.wait(await start(engine, step("a", "mail"), step("b", "find")), 60)
    assert (done.status, ledger.tools_run()) == ("completed", ["mail", "find"])
    assert "ToolOutcomeUnknown" not in await kinds(store, done)


@requirement("engine:inflight")
async def test_a_result_that_arrives_while_the_log_is_read_again_is_not_taken_for_a_lost_one(
    inner: MemoryStore, ledger: EffectLedger, clock: ManualClock
) -> None:
    may_mail, has_mailed = anyio.Event(), anyio.Event()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("read", "before") and not may_mail.is_set():
            may_mail.set()
            await has_mailed.wait()
            await anyio.lowlevel.checkpoint()

    async def mailed() -> None:
        has_mailed.set()

    tools = [recording_tool(ledger, "mail", before=may_mail.wait, after=mailed), DISPLAY_CONFIRMATION]
    watched = WatchedStore(inner, watch)
    async with (
        engine_on(watched, Registry(tools), CallerModel()) as owner,
        engine_on(inner, Registry(tools), CallerModel()) as other,
    ):
        running = await start(owner, step("a", "mail"), step("b", "displayConfirmation", {"action": "?"}))
        [asked] = running.open_suspensions
        await other.answer(running, asked.question.suspension_id, Decision(approved=True), PERSON)
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, ledger.tools_run()) == ("completed", ["mail"])
    assert "ToolOutcomeUnknown" not in await kinds(inner, done)


@requirement("crash:disk")
async def test_an_answer_that_cannot_be_stored_is_refused_and_can_be_given_again(
    inner: MemoryStore, ledger: EffectLedger
) -> None:
    is_full = False
    store = RefusingStore(inner, lambda append: is_full)
    tools = Registry([recording_tool(ledger, "book", risk="dangerous")])
    async with engine_on(store, tools, CallerModel()) as engine:
        asked = await engine.wait(await start(engine, step("a", "book")), 60)
        [question] = asked.open_suspensions
        is_full = True
        with pytest.raises(StoreError, match="full"):
            await engine.answer(asked, question.question.suspension_id, Decision(approved=True), PERSON)
        assert ledger.tools_run() == []
        is_full = False
        answered, _ = await engine.answer(asked, question.question.suspension_id, Decision(approved=True), PERSON)
        done = await engine.wait(answered, 60)
    assert (done.status, ledger.tools_run()) == ("completed", ["book"])


@requirement("crash:disk")
async def test_an_execution_that_was_taken_over_while_the_disk_was_full_goes_on_when_there_is_space(
    inner: MemoryStore, ledger: EffectLedger
) -> None:
    scribe = Scribe.on(inner, "e1", principal=PRINCIPAL)
    await scribe.start()
    assert scribe.lease is not None
    await inner.release(scribe.lease)
    attempts = iter(range(100))
    store = RefusingStore(inner, lambda append: next(attempts) < 3)
    async with engine_on(store, Registry([recording_tool(ledger, "book")]), CallerModel()) as engine:
        done = await engine.wait(scribe.execution, 60)
    assert (done.status, store.refused, ledger.tools_run()) == ("completed", 3, ["book"])


@requirement("crash:disk-told")
@pytest.mark.parametrize(("failing_s", "wait_s"), [(0.0, 60.0), (60.0, 0.01)])
async def test_who_waits_is_told_that_the_disk_is_full_and_the_execution_goes_on_when_there_is_space(
    inner: MemoryStore, ledger: EffectLedger, monkeypatch: pytest.MonkeyPatch, failing_s: float, wait_s: float
) -> None:
    monkeypatch.setattr(planwarden.agent.runtime.engine, "FAILING_S", failing_s)
    is_full = True
    store = RefusingStore(inner, lambda append: is_full and has_result_of(append, "a:1"))
    async with engine_on(store, Registry([recording_tool(ledger, "mail")]), CallerModel()) as engine:
        running = await start(engine, step("a", "mail"))
        while not store.refused:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(StoreError, match="the disk is full; everything that was acknowledged is kept") as told:
            await engine.wait(running, wait_s)
        assert (told.value.code, told.value.details["executionId"]) == ("storage_error", running.execution_id)
        assert "ToolCallIntended" in await kinds(inner, running)
        is_full = False
        while (done := await engine.find(running.execution_id)).status == "running":
            await engine.wait_for_change(done)
    assert (done.status, ledger.tools_run()) == ("completed", ["mail"])


@requirement("crash:disk")
async def test_many_refused_callers_do_not_make_many_retries(inner: MemoryStore, ledger: EffectLedger) -> None:
    may_end, is_full = anyio.Event(), False
    store = RefusingStore(inner, lambda append: is_full)
    tools = Registry([recording_tool(ledger, "mail", after=may_end.wait), DISPLAY_CONFIRMATION])
    async with engine_on(store, tools, CallerModel()) as engine:
        running = await start(engine, step("a", "mail"), step("b", "displayConfirmation", {"action": "?"}))
        [asked] = running.open_suspensions
        is_full = True
        for _ in range(20):
            with pytest.raises(StoreError):
                await engine.answer(running, asked.question.suspension_id, Decision(approved=True), PERSON)
        refused = store.refused
        is_full = False
        may_end.set()
        await engine.answer(running, asked.question.suspension_id, Decision(approved=True), PERSON)
        done = await engine.wait(running, 60)
    assert (done.status, refused, ledger.tools_run()) == ("completed", 20, ["mail"])


@requirement("engine:one-bad-row")
async def test_a_damaged_execution_does_not_keep_the_deadlines_of_others_from_passing(
    tmp_path: Path, clock: ManualClock, ledger: EffectLedger, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore.open(tmp_path / "planwarden.db", clock=clock)
    expires_at = clock.now() + 60
    for name in ("damaged", "whole"):
        scribe = Scribe.on(store, f"{name} suspended", principal=PRINCIPAL)
        await scribe.suspend(f"question of {name}", expires_at=expires_at + (name == "whole"))
        await Scribe.on(store, f"{name} running", owner="gone", principal=PRINCIPAL).start()
    await store.close()
    store = SqliteStore.open(tmp_path / "planwarden.db", clock=clock)
    with closing(sqlite3.connect(tmp_path / "planwarden.db", isolation_level=None)) as connection:
        connection.execute(
            "UPDATE events SET body = 'x' WHERE execution IN"
            " (SELECT number FROM executions WHERE execution_id LIKE 'damaged%')"
        )
    clock.advance(1_000)
    async with engine_on(store, Registry([recording_tool(ledger, "book")]), CallerModel()) as engine:
        await engine.tick()
        timed_out = await engine.find("whole suspended")
        taken = await engine.find("whole running")
        taken = await engine.wait(taken, 60)
        with pytest.raises(StoreError, match="damaged"):
            await engine.find("damaged suspended")
    await store.close()
    assert timed_out.suspensions["question of whole"].status == "timed_out"
    assert taken.status == "completed" and ledger.tools_run() == ["book"]
    assert "damaged" in caplog.text


@requirement("crash:disk")
@pytest.mark.slow
async def test_an_execution_survives_a_disk_that_its_own_tool_filled(tmp_path: Path) -> None:
    said = run_on_mount(tmp_path, f"mount -t tmpfs -o size=1m tmpfs {tmp_path}", "run_on_a_full_disk")
    assert "the disk is full" in str(said["errors"])
    assert said["status"] == "completed"
    events = said["events"]
    assert isinstance(events, list)
    assert events.count("ToolCallIntended") == events.count("ToolReturned") == 1
    assert "ToolOutcomeUnknown" not in events
