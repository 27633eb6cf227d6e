"""What a confirmation covers: exactly the calls that it showed, also of loops, whatever a model revises."""

import pytest
from pydantic import JsonValue

from planwarden.server.api.replay import replay_logs
from tests.kit import Decision, Ledger, MemoryStore, confirm, decide, model_step, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
ITEM: Json = {"$from": "item"}
FIND = tool_step("find", "find", {"topic": "t"})
IDS: Json = {"$from": "find", "pointer": "/ids"}


def wipe(items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step("wipe", "erase", {"ids": [ITEM]}, forEach=items, **extra)


@requirement("confirms:loop")
@pytest.mark.parametrize("items", [[1, 2, 2], IDS], ids=["listed", "found before"])
@pytest.mark.parametrize("concurrent", [1, 3])
async def test_one_answer_covers_every_call_of_the_loop_once_also_in_another_process(
    items: JsonValue, concurrent: int
) -> None:
    ledger, store = Ledger(), MemoryStore()
    steps = plan(FIND, confirm("ask", confirms=["wipe"]), wipe(items, maxConcurrent=concurrent))
    async with warden(ledger, store=store) as w:
        asked = await w.execute_plan(steps)
        [question] = asked.suspensions
        wanted = [{"ids": [item]} for item in (items if isinstance(items, list) else [1, 2, 3])]
        assert [call.arguments for call in question.confirms] == wanted and asked.warnings == ()
    async with warden(ledger, store=store) as w:
        done = await decide(w, asked)
        assert (await replay_logs(store, has_finished=True)).faults == []
    assert (done.status, sorted(ledger.lines)) == ("completed", sorted(f"erase {found['ids']}" for found in wanted))


@requirement("confirms:loop")
async def test_a_loop_whose_items_come_later_asks_once_for_all_rows_and_the_plan_is_accepted_with_a_warning() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(confirm("ask", confirms=["wipe"]), FIND, wipe(IDS)))
        [warning] = asked.warnings
        assert "leave the confirmation out: the loop asks once" in warning and asked.suspensions[0].confirms == ()
        asked = await decide(w, asked)
        [question] = asked.suspensions
        assert len(question.calls) == 3 and ledger.lines == []
        done = await decide(w, asked)
    assert (done.status, len(ledger.lines)) == ("completed", 3)


@requirement("confirms:loop")
async def test_an_answer_covers_no_call_of_the_loop_that_it_did_not_show() -> None:
    ledger = Ledger()
    many: list[JsonValue] = [*range(1_002)]
    async with warden(ledger) as w:
        steps = plan(confirm("ask", confirms=["wipe"]), wipe(many, maxItems=2_000, maxConcurrent=32))
        asked = await w.execute_plan(steps)
        assert len(asked.suspensions[0].confirms) == 1_000
        asked = await decide(w, asked)
        [question] = asked.suspensions
        assert [call.arguments for call in question.calls] == [{"ids": [1_000]}, {"ids": [1_001]}]
        assert len(ledger.lines) == 1_000


NEVER: JsonValue = {"value": {"$from": "check", "pointer": "/topic"}, "matches": {"const": "never"}}


def _reply(*patch: Json) -> Json:
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
async def test_a_model_cannot_change_what_a_person_was_asked_about(patch: Json) -> None:
    ledger = Ledger()
    steps = plan(
        confirm("ask", confirms=["wipe"]),
        model_step("think", "note", dependencies=["ask"]),
        tool_step("check", "find", {"topic": "t"}, dependencies=["think"]),
        tool_step("wipe", "erase", {"ids": [7]}, dependencies=["check"], when=NEVER),
    )
    async with warden(ledger, script=[_reply(patch)]) as opened:
        asked = await opened.execute_plan(steps, wait_seconds=30)
        await decide(opened, asked)
        assert not [line for line in ledger.lines if line.startswith("erase")]


@requirement("confirm:exact")
async def test_a_covered_call_that_a_review_turned_into_a_loop_is_asked_about_again() -> None:
    ledger = Ledger()
    patch: Json = {"op": "change", "id": "wipe", "set": {"forEach": [*range(5)]}}
    steps = plan(model_step("think", "note"), tool_step("wipe", "erase", {"ids": [7]}))
    async with warden(ledger, script=[_reply(patch)]) as opened:
        asked = await opened.execute_plan(steps, options={"review": "person"}, wait_seconds=30)
        contents: list[JsonValue] = [{"cover": True}, None]
        for content in contents:
            asked = await decide(opened, asked, Decision(approved=True, content=content))
        assert asked.status == "suspended" and not [line for line in ledger.lines if line.startswith("erase")]
