"""A decision counts once, also when the process dies between the decision and the call that it releases."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.engine import Engine
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL, engine_on
from tests.requirements import requirement
from tests.support.fakes import EffectLedger, recording_tool

pytestmark = pytest.mark.anyio

CALLER = Authority(assurance="caller", channel="test", principal=PRINCIPAL)
BOOK: JsonValue = {"toolName": "book", "arguments": {"city": "Łódź"}}
PLAN: JsonValue = {
    "todoList": [
        {
            "id": "ask",
            "description": "Ask",
            "toolCalls": [{"toolName": "displayConfirmation", "arguments": {"action": "Book?"}}],
            "confirms": ["act"],
        },
        {"id": "act", "description": "Book, then write", "requiredTools": ["book", "mail"], "toolCalls": [BOOK]},
    ]
}


class World:
    """Lives of a process on one store; `dies` cuts off the next booking before or after it happened."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = MemoryStore(ManualClock())
        self.ledger = EffectLedger(folder / "effects")

    def live(self, dies: anyio.Event | None = None, *, after: bool = False) -> Engine:
        async def die() -> None:
            assert dies is not None
            dies.set()
            await anyio.sleep_forever()

        held = die if dies is not None else None
        book = recording_tool(
            self.ledger, "book", risk="dangerous", before=None if after else held, after=held if after else None
        )
        return engine_on(
            self.store, Registry([book, recording_tool(self.ledger, "mail"), DISPLAY_CONFIRMATION]), CallerModel()
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with anyio.fail_after(60):
        yield World(tmp_path)


async def start(engine: Engine) -> ExecutionState:
    plan, _ = parse_plan(PLAN, author="caller", tools=engine.tool_facts())
    return await engine.create(
        thread_id="t", requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
    )


async def asked(engine: Engine, execution: ExecutionState) -> ev.Question:
    """The one open question, once nothing else can be done."""
    execution = await engine.wait(await engine.find(execution.execution_id), 60)
    [found] = execution.open_suspensions
    return found.question


async def answer(engine: Engine, execution: ExecutionState, decision: Decision, authority: Authority = PERSON) -> None:
    question = await asked(engine, execution)
    execution = await engine.find(execution.execution_id)
    await engine.answer(execution, question.suspension_id, decision, authority)


@requirement("crash:one-word")
@pytest.mark.parametrize("happened", [False, True])
async def test_an_answer_about_a_lost_call_does_not_count_for_the_call_that_it_causes(
    world: World, happened: bool
) -> None:
    dies = anyio.Event()
    async with world.live(dies) as engine:
        execution = await start(engine)
        await answer(engine, execution, Decision(approved=True))
        await dies.wait()
    again = anyio.Event()
    async with world.live(again, after=happened) as engine:
        await engine.tick()
        assert (await asked(engine, execution)).kind == "reconcile"
        await answer(engine, execution, Decision(content={"happened": False}))
        await again.wait()
    async with world.live() as engine:
        await engine.tick()
        assert (await asked(engine, execution)).kind == "reconcile"
        assert world.ledger.tools_run() == ["book"] * happened
        truth = world.ledger.reconcile_answer(f"{execution.execution_id}:act:1")
        await answer(engine, execution, Decision(content=truth))
        assert (await asked(engine, execution)).kind == "step"
    assert world.ledger.tools_run() == ["book"]


@requirement("crash:one-word")
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_confirmation_covers_its_call_once_also_when_that_call_was_lost(world: World, is_lost: bool) -> None:
    dies = anyio.Event()
    async with world.live(dies if is_lost else None, after=True) as engine:
        execution = await start(engine)
        await answer(engine, execution, Decision(approved=True))
        if is_lost:
            await dies.wait()
        else:
            await asked(engine, execution)
    async with world.live() as engine:
        await engine.tick()
        if is_lost:
            truth = world.ledger.reconcile_answer(f"{execution.execution_id}:act:1")
            await answer(engine, execution, Decision(content=truth))
        mail: JsonValue = {"toolName": "mail", "arguments": {}}
        await answer(engine, execution, Decision(content={"toolCalls": [BOOK, mail]}), CALLER)
        question = await asked(engine, execution)
        assert (question.kind, question.tool_name, world.ledger.tools_run()) == ("approval", "book", ["book"])
