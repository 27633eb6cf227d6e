"""When the disk fails under a running execution: callers are told, results are kept, and it goes on afterwards."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import planwarden.agent.runtime.engine
import planwarden.agent.runtime.run
from planwarden.agent.common.errors import StoreError
from planwarden.agent.ports.store import Append
from tests.harness.fault import has_result_of, run_on_mount
from tests.harness.person import PERSON, PRINCIPAL, YES
from tests.harness.team import Gate, Team, answer, find_question, start, step, until
from tests.requirements import requirement
from tests.storage.suite import Scribe, Sqlite
from tests.support.fakes import Crash, CrashingStore, RefusingStore, StoreCall, WatchedStore

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def patience(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Retries follow at once, and what hangs for a minute hangs for ever."""
    monkeypatch.setattr(planwarden.agent.runtime.run, "RETRY_S", 0.001)
    with anyio.fail_after(60):
        yield


MAIL, ASK = step("a", "mail"), step("b", "displayConfirmation", arguments={"action": "?"})


@requirement("crash:disk")
async def test_a_result_that_cannot_be_stored_is_kept_and_stored_when_there_is_space(team: Team) -> None:
    attempts = iter(range(100))
    store = RefusingStore(team.store, lambda append: has_result_of(append, "a:1") and next(attempts) < 5)
    async with team.process(tools=("mail",), on=lambda _: store) as engine:
        done = await engine.wait(await start(engine, MAIL), 60)
    assert (done.status, store.refused, team.ledger.tools_run()) == ("completed", 5, ["mail"])
    assert "ToolOutcomeUnknown" not in await team.kinds(done)


@requirement("crash:disk", "engine:inflight")
async def test_a_result_that_waits_to_be_stored_is_not_taken_for_a_lost_one_by_another_branch(team: Team) -> None:
    may_find = anyio.Event()
    results: list[bool] = []

    def refuses(append: Append) -> bool:
        results.append(has_result_of(append, "b:1"))
        if has_result_of(append, "a:1") and not any(results):
            may_find.set()
            return True
        return has_result_of(append, "a:1") and has_result_of(append, "b:1")

    tools = ["mail", team.tool("find", before=may_find.wait)]
    async with team.process(tools=tools, on=lambda store: RefusingStore(store, refuses)) as engine:
        done = await engine.wait(await start(engine, MAIL, step("b", "find")), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail", "find"])
    assert "ToolOutcomeUnknown" not in await team.kinds(done)


@requirement("engine:inflight")
async def test_a_result_that_arrives_while_the_log_is_read_again_is_not_taken_for_a_lost_one(team: Team) -> None:
    may_mail, has_mailed = anyio.Event(), anyio.Event()

    async def watch(moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("read", "before") and not may_mail.is_set():
            may_mail.set()
            await has_mailed.wait()
            await anyio.lowlevel.checkpoint()

    async def mailed() -> None:
        has_mailed.set()

    tools = [team.tool("mail", before=may_mail.wait, after=mailed)]
    async with (
        team.process(tools=tools, on=lambda store: WatchedStore(store, watch)) as owner,
        team.process(tools=tools) as other,
    ):
        running = await start(owner, MAIL, ASK)
        [asked] = running.open_suspensions
        await other.answer(running, asked.question.suspension_id, YES, PERSON)
        await owner.tick()
        done = await owner.wait(running, 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail"])
    assert "ToolOutcomeUnknown" not in await team.kinds(done)


@requirement("crash:disk")
async def test_an_answer_that_cannot_be_stored_is_refused_and_can_be_given_again(team: Team) -> None:
    is_full = False
    tools = [team.tool("book", risk="dangerous")]
    async with team.process(tools=tools, on=lambda store: RefusingStore(store, lambda append: is_full)) as engine:
        asked = await start(engine, step("a", "book"))
        await find_question(engine, asked)
        is_full = True
        with pytest.raises(StoreError, match="full"):
            await answer(engine, asked)
        assert team.ledger.tools_run() == []
        is_full = False
        done = await engine.wait(await answer(engine, asked), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["book"])


@requirement("crash:disk")
async def test_an_execution_that_was_taken_over_while_the_disk_was_full_goes_on_when_there_is_space(team: Team) -> None:
    scribe = Scribe.on(team.store, "e1", principal=PRINCIPAL)
    await scribe.start()
    assert scribe.lease is not None
    await team.store.release(scribe.lease)
    attempts = iter(range(100))
    store = RefusingStore(team.store, lambda append: next(attempts) < 3)
    async with team.process(tools=("book",), on=lambda _: store) as engine:
        done = await engine.wait(scribe.execution, 60)
    assert (done.status, store.refused, team.ledger.tools_run()) == ("completed", 3, ["book"])


@requirement("crash:disk-told")
@pytest.mark.parametrize(("failing_s", "wait_s"), [(0.0, 60.0), (60.0, 0.01)])
async def test_who_waits_is_told_that_the_disk_is_full_and_the_execution_goes_on_when_there_is_space(
    team: Team, monkeypatch: pytest.MonkeyPatch, failing_s: float, wait_s: float
) -> None:
    monkeypatch.setattr(planwarden.agent.runtime.engine, "FAILING_S", failing_s)
    is_full = True
    store = RefusingStore(team.store, lambda append: is_full and has_result_of(append, "a:1"))
    async with team.process(tools=("mail",), on=lambda _: store) as engine:
        running = await start(engine, MAIL)
        await until(lambda: store.refused > 0)
        with pytest.raises(StoreError, match="the disk is full; everything that was acknowledged is kept") as told:
            await engine.wait(running, wait_s)
        assert (told.value.code, told.value.details["executionId"]) == ("storage_error", running.execution_id)
        assert "ToolCallIntended" in await team.kinds(running)
        is_full = False
        while (done := await engine.find(running.execution_id)).status == "running":
            await engine.wait_for_change(done)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail"])


@requirement("crash:disk")
async def test_many_refused_callers_do_not_make_many_retries(team: Team) -> None:
    may_end, is_full = anyio.Event(), False
    store = RefusingStore(team.store, lambda append: is_full)
    async with team.process(tools=[team.tool("mail", after=may_end.wait)], on=lambda _: store) as engine:
        running = await start(engine, MAIL, ASK)
        is_full = True
        for _ in range(20):
            with pytest.raises(StoreError):
                await answer(engine, running)
        refused = store.refused
        is_full = False
        may_end.set()
        await answer(engine, running)
        done = await engine.wait(running, 60)
    assert (done.status, refused, team.ledger.tools_run()) == ("completed", 20, ["mail"])


async def test_an_engine_that_was_brought_down_waits_for_no_call(team: Team) -> None:
    gate = Gate()
    store = CrashingStore(team.store, at=1_000_000, when="before")
    with pytest.raises(Crash):
        async with team.process(gate, on=lambda _: store, grace_s=3_600.0) as engine:
            await start(engine, step("a", "slow"))
            await gate.is_reached.wait()
            store.is_dead = True
            await anyio.sleep_forever()


@requirement("engine:one-bad-row")
async def test_a_damaged_execution_does_not_keep_the_deadlines_of_others_from_passing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    back_end = Sqlite(tmp_path)
    team, path = Team(back_end, tmp_path), tmp_path / "planwarden.db"
    expires_at = team.clock.now() + 60
    for name in ("damaged", "whole"):
        scribe = Scribe.on(team.store, f"{name} suspended", principal=PRINCIPAL)
        await scribe.suspend(f"question of {name}", expires_at=expires_at + (name == "whole"))
        await Scribe.on(team.store, f"{name} running", owner="gone", principal=PRINCIPAL).start()
    await back_end.opened.pop().close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE events SET body = 'x' WHERE execution IN"
            " (SELECT number FROM executions WHERE execution_id LIKE 'damaged%')"
        )
    team.clock.advance(1_000)
    async with team.process(tools=("book",)) as engine:
        await engine.tick()
        timed_out = await engine.find("whole suspended")
        taken = await engine.find("whole running")
        taken = await engine.wait(taken, 60)
        with pytest.raises(StoreError, match="damaged"):
            await engine.find("damaged suspended")
    await back_end.close()
    assert timed_out.suspensions["question of whole"].status == "timed_out"
    assert taken.status == "completed" and team.ledger.tools_run() == ["book"]
    assert "damaged" in caplog.text


@requirement("crash:disk")
@pytest.mark.slow
async def test_an_execution_survives_a_disk_that_its_own_tool_filled(tmp_path: Path) -> None:
    said = run_on_mount(
        tmp_path, f"mount -t tmpfs -o size=1m tmpfs {tmp_path}", "tests.crash.programs:run_on_a_full_disk"
    )
    assert "the disk is full" in str(said["errors"])
    assert said["status"] == "completed"
    events = said["events"]
    assert isinstance(events, list)
    assert events.count("ToolCallIntended") == events.count("ToolReturned") == 1
    assert "ToolOutcomeUnknown" not in events
