"""Revising a plan while it runs: pending steps may change; steps that have begun or ask a person may not."""

import pytest
from pydantic import JsonValue

from tests.support.wardens import Ledger, confirm, model_step, plan, run, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

THINK: dict[str, JsonValue] = {"id": "think", "description": "think about it", "stepType": "reasoning"}


def revising(*operations: JsonValue, content: str | None = "I thought about it.") -> JsonValue:
    """A scripted reply that carries a patch."""
    return {"when": {"purpose": "step"}, "reply": {"content": content, "revise": list(operations)}}


async def test_pending_steps_are_added_changed_removed_and_moved_and_the_difference_is_shown() -> None:
    added: JsonValue = tool_step("new", "note", {"text": "new"}, dependencies=["think"])
    changed: JsonValue = {"toolCalls": [{"toolName": "note", "arguments": {"text": "changed"}}]}
    patch = revising(
        {"op": "add", "step": added, "after": "think"},
        {"op": "change", "id": "a", "set": changed},
        {"op": "remove", "id": "b"},
        {"op": "move", "id": "a"},
    )
    steps = (
        THINK,
        tool_step("a", "note", {"text": "a"}),
        tool_step("b", "note", {"text": "b"}, dependencies=["think"]),
    )
    execution, lines = await run(*steps, script=[patch])
    assert execution.status == "completed" and set(lines) == {"note new", "note changed"}
    assert [step.id for step in execution.steps] == ["think", "new", "a"]
    [revised] = [o for o in execution.observations or () if o.type == "PLAN_REVISED"]
    assert revised.data == {"added": ["new"], "changed": ["a"], "removed": ["b"], "moved": ["a"]}


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ({"op": "remove", "id": "think"}, "has begun"),
        ({"op": "change", "id": "gate", "set": {"description": "x"}}, "asks a person"),
        ({"op": "remove", "id": "gate"}, "asks a person"),
        ({"op": "move", "id": "gate"}, "asks a person"),
        ({"op": "change", "id": "c", "set": {"dependencies": []}}, "must still wait"),
        ({"op": "change", "id": "a", "set": {"id": "z"}}, "other than its id"),
        ({"op": "remove", "id": "nope"}, "unknown step"),
        ({"op": "add", "step": {"id": "a", "description": "twice"}}, "duplicate"),
        ({"op": "add", "step": model_step("n", "teleport")}, "unknown tools"),
        ({"op": "add", "step": {"id": "n", "description": "x", "dependencies": ["n"]}}, "circle"),
        ({"op": "add", "step": "do it"}, "no object"),
        ({"op": "complete", "id": "a"}, "add, change, remove or move"),
        ({"op": "remove", "id": "a", "status": "completed"}, "unknown key"),
        ("all of it", "add, change, remove or move"),
    ],
)
async def test_a_patch_that_is_not_allowed_changes_nothing_and_says_why(operation: JsonValue, why: str) -> None:
    execution, lines = await run(
        THINK,
        confirm("gate", confirms=["a"]),
        tool_step("a", "erase", {"ids": [1]}),
        tool_step("c", "note", {"text": "c"}, dependencies=["gate"]),
        script=[revising(operation)],
    )
    assert list(statuses(execution).values()) == ["completed", "suspended", "pending", "pending"] and lines == []
    refused = [o for o in execution.observations or () if o.type == "VALIDATION_FAILED"]
    assert len(refused) == 1 and why in str(refused[0].data["message"])


async def test_the_model_that_wrote_a_refused_patch_learns_why() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(model_step("a", "find", "note")))
        patch: JsonValue = {
            "toolCalls": [{"toolName": "find", "arguments": {"topic": "t"}}],
            "revise": [{"op": "remove", "id": "a"}],
        }
        again = await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, patch)
    assert "'a' has begun" in (again.suspensions[0].prompt or "")


async def test_a_patch_cannot_add_a_dangerous_step_without_approval_and_one_in_a_tool_step_is_checked_too() -> None:
    script = revising({"op": "add", "step": tool_step("n", "erase", {"ids": [1]})})
    execution, lines = await run(THINK, script=[script])
    assert execution.status == "suspended" and execution.suspensions[0].kind == "approval" and lines == []
    call: JsonValue = {"toolName": "find", "arguments": {"topic": "t"}}
    reply: JsonValue = {"reply": {"toolCalls": [call], "revise": [{"op": "remove", "id": "b"}]}}
    execution, lines = await run(model_step("a", "find"), tool_step("b", "note", {"text": "b"}), script=[reply])
    assert execution.status == "completed" and [step.id for step in execution.steps] == ["a"] and lines == []
