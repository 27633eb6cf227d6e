"""When the disk fails under a running execution, callers are told, results are kept, and it goes on afterwards.

And a decision counts once, also when the process dies between the decision and the call that it releases.
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden.agent.runtime.engine
import planwarden.agent.runtime.run
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import Append
from planwarden.agent.runtime.engine import Engine
from tests.harness import team as harness
from tests.requirements import requirement
from tests.storage.suite import Memory, Scribe, Sqlite
from tests.support.fakes import RefusingStore


@pytest.fixture
def team(tmp_path: Path) -> harness.Team:
    return harness.Team(Memory(tmp_path), tmp_path)


@pytest.fixture(autouse=True)
async def patience(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Retries follow at once, and what hangs for a minute hangs for ever."""
    monkeypatch.setattr(planwarden.agent.runtime.run, "RETRY_S", 0.001)
    with anyio.fail_after(60):
        yield


def has_result_of(append: Append, call_id: str) -> bool:
    events = (entry.event for entry in append.recorded)
    return any(isinstance(event, ev.ToolReturned) and event.call_id == call_id for event in events)


MAIL = harness.step("a", "mail")


@requirement("crash:disk", "engine:inflight")
async def test_a_result_that_waits_to_be_stored_is_not_lost_for_another_branch(team: harness.Team) -> None:
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
        done = await engine.wait(await harness.start(engine, MAIL, harness.step("b", "find")), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail", "find"])
    assert "ToolOutcomeUnknown" not in await team.kinds(done)


@requirement("crash:disk")
async def test_an_answer_that_cannot_be_stored_is_refused_and_can_be_given_again(team: harness.Team) -> None:
    is_full = False
    tools = [team.tool("book", risk="dangerous")]
    async with team.process(tools=tools, on=lambda store: RefusingStore(store, lambda append: is_full)) as engine:
        asked = await harness.start(engine, harness.step("a", "book"))
        await harness.find_question(engine, asked)
        is_full = True
        for _ in range(3):
            with pytest.raises(StoreError, match="full"):
                await harness.answer(engine, asked)
        assert team.ledger.tools_run() == []
        is_full = False
        done = await engine.wait(await harness.answer(engine, asked), 60)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["book"])


@requirement("crash:disk-told", "crash:disk")
@pytest.mark.parametrize(("failing_s", "wait_s"), [(0.0, 60.0), (60.0, 0.01)])
async def test_who_waits_is_told_that_the_disk_is_full_and_the_execution_goes_on_when_there_is_space(
    team: harness.Team, monkeypatch: pytest.MonkeyPatch, failing_s: float, wait_s: float
) -> None:
    monkeypatch.setattr(planwarden.agent.runtime.engine, "FAILING_S", failing_s)
    is_full = True
    store = RefusingStore(team.store, lambda append: is_full and has_result_of(append, "a:1"))
    async with team.process(tools=("mail",), on=lambda _: store) as engine:
        running = await harness.start(engine, MAIL)
        await harness.until(lambda: store.refused > 0)
        with pytest.raises(StoreError, match="the disk is full; everything that was acknowledged is kept") as told:
            await engine.wait(running, wait_s)
        assert (told.value.code, told.value.details["executionId"]) == ("storage_error", running.execution_id)
        assert "ToolCallIntended" in await team.kinds(running)
        is_full = False
        while (done := await engine.find(running.execution_id)).status == "running":
            await engine.wait_for_change(done)
    assert (done.status, team.ledger.tools_run()) == ("completed", ["mail"])
    assert "ToolOutcomeUnknown" not in await team.kinds(done)


@requirement("engine:one-bad-row")
async def test_a_damaged_execution_does_not_keep_the_deadlines_of_others_from_passing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    back_end = Sqlite(tmp_path)
    team, path = harness.Team(back_end, tmp_path), tmp_path / "planwarden.db"
    expires_at = team.clock.now() + 60
    for name in ("damaged", "whole"):
        scribe = Scribe.on(team.store, f"{name} suspended", principal=harness.PRINCIPAL)
        await scribe.suspend(f"question of {name}", expires_at=expires_at + (name == "whole"))
        await Scribe.on(team.store, f"{name} running", owner="gone", principal=harness.PRINCIPAL).start()
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


CALLER = Authority(assurance="caller", channel="test", principal=harness.PRINCIPAL)
BOOK: JsonValue = {"toolName": "book", "arguments": {"city": "Łódź"}}
STEPS: list[JsonValue] = [
    {**harness.step("ask", "displayConfirmation", arguments={"action": "Book?"}), "confirms": ["act"]},
    {"id": "act", "description": "Book, then write", "requiredTools": ["book", "mail"], "toolCalls": [BOOK]},
]


def live(team: harness.Team, dies: harness.Gate | None = None, *, after: bool = False) -> Engine:
    """Return a process that is cut off at the gate in the next booking, before or after it happened."""
    held = None if dies is None else dies.hold
    book = team.tool("book", risk="dangerous", before=None if after else held, after=held if after else None)
    return team.process(tools=[book, "mail"])


async def decide(
    engine: Engine, execution: ExecutionState, decision: Decision = harness.YES, authority: Authority = harness.PERSON
) -> None:
    await harness.find_question(engine, execution)
    await harness.answer(engine, execution, decision, authority)


@requirement("crash:one-word")
@pytest.mark.parametrize("happened", [False, True])
async def test_an_answer_about_a_lost_call_does_not_count_for_the_next_one(team: harness.Team, happened: bool) -> None:
    dies = harness.Gate()
    async with live(team, dies) as engine:
        execution = await harness.start(engine, *STEPS)
        await decide(engine, execution)
        await dies.is_reached.wait()
    again = harness.Gate()
    async with live(team, again, after=happened) as engine:
        await engine.tick()
        assert (await harness.find_question(engine, execution)).kind == "reconcile"
        await decide(engine, execution, harness.DID_NOT_HAPPEN)
        await again.is_reached.wait()
    async with live(team) as engine:
        await engine.tick()
        assert (await harness.find_question(engine, execution)).kind == "reconcile"
        assert team.ledger.tools_run() == ["book"] * happened
        truth = team.ledger.reconcile_answer(f"{execution.execution_id}:act:1")
        await decide(engine, execution, Decision(content=truth))
        assert (await harness.find_question(engine, execution)).kind == "step"
    assert team.ledger.tools_run() == ["book"]


@requirement("crash:one-word")
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_confirmation_covers_its_call_once_even_if_it_was_lost(team: harness.Team, is_lost: bool) -> None:
    dies = harness.Gate()
    async with live(team, dies if is_lost else None, after=True) as engine:
        execution = await harness.start(engine, *STEPS)
        await decide(engine, execution)
        if is_lost:
            await dies.is_reached.wait()
        else:
            await harness.find_question(engine, execution)
    async with live(team) as engine:
        await engine.tick()
        if is_lost:
            truth = team.ledger.reconcile_answer(f"{execution.execution_id}:act:1")
            await decide(engine, execution, Decision(content=truth))
        mail: JsonValue = {"toolName": "mail", "arguments": {}}
        await decide(engine, execution, Decision(content={"toolCalls": [BOOK, mail]}), CALLER)
        question = await harness.find_question(engine, execution)
        assert (question.kind, question.tool_name, team.ledger.tools_run()) == ("approval", "book", ["book"])
