"""A decision counts once, also when the process dies between the decision and the call that it releases."""

from collections.abc import AsyncIterator

import anyio
import pytest
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.runtime.engine import Engine
from tests.harness.person import DID_NOT_HAPPEN, PERSON, PRINCIPAL, YES
from tests.harness.team import Gate, Team, answer, find_question, start, step
from tests.requirements import requirement

pytestmark = pytest.mark.anyio

CALLER = Authority(assurance="caller", channel="test", principal=PRINCIPAL)
BOOK: JsonValue = {"toolName": "book", "arguments": {"city": "Łódź"}}
STEPS: list[JsonValue] = [
    {**step("ask", "displayConfirmation", arguments={"action": "Book?"}), "confirms": ["act"]},
    {"id": "act", "description": "Book, then write", "requiredTools": ["book", "mail"], "toolCalls": [BOOK]},
]


def live(team: Team, dies: Gate | None = None, *, after: bool = False) -> Engine:
    """Return a process that is cut off at the gate in the next booking, before or after it happened."""
    held = None if dies is None else dies.hold
    book = team.tool("book", risk="dangerous", before=None if after else held, after=held if after else None)
    return team.process(tools=[book, "mail"])


async def decide(
    engine: Engine, execution: ExecutionState, decision: Decision = YES, authority: Authority = PERSON
) -> None:
    await find_question(engine, execution)
    await answer(engine, execution, decision, authority)


@pytest.fixture(autouse=True)
async def patience() -> AsyncIterator[None]:
    with anyio.fail_after(60):
        yield


@requirement("crash:one-word")
@pytest.mark.parametrize("happened", [False, True])
async def test_an_answer_about_a_lost_call_does_not_count_for_the_call_that_it_causes(
    team: Team, happened: bool
) -> None:
    dies = Gate()
    async with live(team, dies) as engine:
        execution = await start(engine, *STEPS)
        await decide(engine, execution)
        await dies.is_reached.wait()
    again = Gate()
    async with live(team, again, after=happened) as engine:
        await engine.tick()
        assert (await find_question(engine, execution)).kind == "reconcile"
        await decide(engine, execution, DID_NOT_HAPPEN)
        await again.is_reached.wait()
    async with live(team) as engine:
        await engine.tick()
        assert (await find_question(engine, execution)).kind == "reconcile"
        assert team.ledger.tools_run() == ["book"] * happened
        truth = team.ledger.reconcile_answer(f"{execution.execution_id}:act:1")
        await decide(engine, execution, Decision(content=truth))
        assert (await find_question(engine, execution)).kind == "step"
    assert team.ledger.tools_run() == ["book"]


@requirement("crash:one-word")
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_confirmation_covers_its_call_once_also_when_that_call_was_lost(team: Team, is_lost: bool) -> None:
    dies = Gate()
    async with live(team, dies if is_lost else None, after=True) as engine:
        execution = await start(engine, *STEPS)
        await decide(engine, execution)
        if is_lost:
            await dies.is_reached.wait()
        else:
            await find_question(engine, execution)
    async with live(team) as engine:
        await engine.tick()
        if is_lost:
            truth = team.ledger.reconcile_answer(f"{execution.execution_id}:act:1")
            await decide(engine, execution, Decision(content=truth))
        mail: JsonValue = {"toolName": "mail", "arguments": {}}
        await decide(engine, execution, Decision(content={"toolCalls": [BOOK, mail]}), CALLER)
        question = await find_question(engine, execution)
        assert (question.kind, question.tool_name, team.ledger.tools_run()) == ("approval", "book", ["book"])
