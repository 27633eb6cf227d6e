"""What a person said yes to is what runs: no revision of a model changes a step that a confirmation covers."""

import pytest
from pydantic import JsonValue

from planwarden.agent.approval.answers import Authority, Decision
from tests.requirements import requirement
from tests.support.wardens import Ledger, confirm, model_step, plan, tool_step, warden

pytestmark = pytest.mark.anyio

HUMAN = Authority(assurance="human", channel="inbox", principal="local")
NEVER: JsonValue = {"value": {"$from": "check", "pointer": "/topic"}, "matches": {"const": "never"}}


def _reply(*patch: dict[str, JsonValue]) -> dict[str, JsonValue]:
    call: JsonValue = {"toolName": "note", "arguments": {"text": "a"}}
    return {"when": {"purpose": "step"}, "reply": {"toolCalls": [call], "revise": [*patch]}}


@requirement("confirm:exact")
@pytest.mark.parametrize(
    "patch",
    [
        {"op": "change", "id": "wipe", "set": {"forEach": [*range(20)]}},
        {"op": "change", "id": "wipe", "set": {"when": []}},
        {"op": "change", "id": "wipe", "set": {"dependencies": ["ask"]}},
        {"op": "change", "id": "check", "set": {"toolCalls": [{"toolName": "find", "arguments": {"topic": "never"}}]}},
        {"op": "remove", "id": "check"},
    ],
    ids=["into a loop", "without its condition", "before its condition", "with another value", "without what it needs"],
)
async def test_a_model_cannot_change_what_a_person_was_asked_about(patch: dict[str, JsonValue]) -> None:
    ledger = Ledger()
    steps = plan(
        confirm("ask", confirms=["wipe"]),
        model_step("think", "note", dependencies=["ask"]),
        tool_step("check", "find", {"topic": "t"}, dependencies=["think"]),
        tool_step("wipe", "erase", {"ids": [7]}, dependencies=["check"], when=NEVER),
    )
    async with warden(ledger, script=[_reply(patch)]) as opened:
        asked = await opened.execute_plan(steps, wait_seconds=30)
        [question] = asked.suspensions
        yes = Decision(approved=True)
        await opened.service.answer(
            asked.thread_id, question.suspension_id, yes, HUMAN, wait_seconds=60, principal="local"
        )
        assert not [line for line in ledger.lines if line.startswith("erase")]


@requirement("confirm:exact")
async def test_a_covered_call_that_a_review_turned_into_a_loop_is_asked_about_again() -> None:
    ledger = Ledger()
    patch: dict[str, JsonValue] = {"op": "change", "id": "wipe", "set": {"forEach": [*range(5)]}}
    steps = plan(model_step("think", "note"), tool_step("wipe", "erase", {"ids": [7]}))
    async with warden(ledger, script=[_reply(patch)]) as opened:
        asked = await opened.execute_plan(steps, options={"review": "person"}, wait_seconds=30)
        contents: list[JsonValue] = [{"cover": True}, None]
        for content in contents:
            [question] = asked.suspensions
            answer = Decision(approved=True, content=content)
            asked = await opened.service.answer(
                asked.thread_id, question.suspension_id, answer, HUMAN, wait_seconds=60, principal="local"
            )
        assert asked.status == "suspended" and not [line for line in ledger.lines if line.startswith("erase")]
