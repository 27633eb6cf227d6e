"""While a large plan is parsed, whoever wrote it, other requests are answered."""

from collections.abc import Awaitable, Callable

import pytest
from pydantic import JsonValue

import planwarden
from tests.requirements import requirement
from tests.support.turns import MAX_TURN_S, measure_longest_turn
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

STEPS = [
    tool_step(f"s{number}", "find", {"topic": "x", "limit": [{"a": value} for value in range(500)]})
    for number in range(45)
]
"""With 45,000 values, so that a parser needs longer than the loop may be kept; their faults let nothing of it run."""


async def submit_plan(w: planwarden.Warden) -> None:
    """Hand the plan in as the calling model."""
    asked = await w.run_goal("find it")
    [question] = asked.suspensions
    answered = await w.submit_answer(asked.thread_id, question.suspension_id, plan(*STEPS))
    assert answered.suspensions[0].kind == "plan"


async def submit_revision(w: planwarden.Warden) -> None:
    """Add the steps to a plan that runs, as the calling model."""
    asked = await w.execute_plan(plan({"id": "think", "description": "think", "stepType": "reasoning"}))
    [question] = asked.suspensions
    patch: list[JsonValue] = [{"op": "add", "step": step} for step in STEPS]
    await w.submit_answer(asked.thread_id, question.suspension_id, {"content": "thought", "revise": patch})


@requirement("mcp:bounded-answers")
@pytest.mark.parametrize("hand_in", [submit_plan, submit_revision])
async def test_a_large_plan_of_a_model_keeps_no_other_request_waiting(
    hand_in: Callable[[planwarden.Warden], Awaitable[None]],
) -> None:
    async with warden(Ledger()) as w:
        longest, _ = await measure_longest_turn(lambda: hand_in(w))
    assert longest < MAX_TURN_S


@requirement("mcp:bounded-answers")
async def test_a_large_plan_of_a_provider_keeps_no_other_request_waiting() -> None:
    reply: JsonValue = {"reply": {"plan": plan(*STEPS)}}
    async with warden(Ledger(), script=[reply] * 12) as w:
        longest, _ = await measure_longest_turn(lambda: w.run_goal("find it"))
    assert longest < MAX_TURN_S
