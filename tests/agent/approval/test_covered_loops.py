"""A confirmation that names a loop: it covers the calls of all items, as far as they are known when it asks."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.api.replay import replay_logs
from planwarden.server.views.execution import Execution
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
ITEM: Json = {"$from": "item"}
HUMAN = Authority(assurance="human", channel="inbox", principal="local")
FIND = tool_step("find", "find", {"topic": "t"})
IDS: Json = {"$from": "find", "pointer": "/ids"}


def wipe(items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step("wipe", "erase", {"ids": [ITEM]}, forEach=items, **extra)


async def decide(w: planwarden.Warden, execution: Execution, decision: Decision) -> Execution:
    [asked] = execution.suspensions
    return await w.service.answer(
        execution.thread_id, asked.suspension_id, decision, HUMAN, wait_seconds=60, principal="local"
    )


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
        done = await decide(w, asked, Decision(approved=True))
        assert (await replay_logs(store, has_finished=True)).faults == []
    assert (done.status, sorted(ledger.lines)) == ("completed", sorted(f"erase {found['ids']}" for found in wanted))


@requirement("confirms:loop")
async def test_a_rejected_confirmation_lets_no_call_of_the_loop_run() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(confirm("ask", confirms=["wipe"]), wipe([1, 2])))
        done = await decide(w, asked, Decision(approved=False))
    assert (done.status, ledger.lines) == ("rejected", [])


@requirement("confirms:loop")
async def test_a_loop_whose_items_come_later_asks_once_for_all_rows_and_the_plan_is_accepted_with_a_warning() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(confirm("ask", confirms=["wipe"]), FIND, wipe(IDS)))
        [warning] = asked.warnings
        assert "leave the confirmation out: the loop asks once" in warning and asked.suspensions[0].confirms == ()
        asked = await decide(w, asked, Decision(approved=True))
        [question] = asked.suspensions
        assert len(question.calls) == 3 and ledger.lines == []
        done = await decide(w, asked, Decision(approved=True))
    assert (done.status, len(ledger.lines)) == ("completed", 3)


@requirement("confirms:loop")
async def test_an_answer_covers_no_call_of_the_loop_that_it_did_not_show() -> None:
    ledger = Ledger()
    many: list[JsonValue] = [*range(1_002)]
    async with warden(ledger) as w:
        steps = plan(confirm("ask", confirms=["wipe"]), wipe(many, maxItems=2_000, maxConcurrent=32))
        asked = await w.execute_plan(steps)
        assert len(asked.suspensions[0].confirms) == 1_000
        asked = await decide(w, asked, Decision(approved=True))
        [question] = asked.suspensions
        assert [call.arguments for call in question.calls] == [{"ids": [1_000]}, {"ids": [1_001]}]
        assert len(ledger.lines) == 1_000


@requirement("confirm:exact")
async def test_a_question_tells_the_conditions_under_which_a_covered_call_runs() -> None:
    ledger = Ledger()
    condition: JsonValue = {"value": {"$from": "look", "pointer": "/ids"}, "matches": {"minItems": 2}}
    async with warden(ledger) as w:
        steps = [
            confirm("ask", confirms=["wipe", "other"]),
            tool_step("look", "find", {"topic": "x", "limit": 1}, dependencies=["ask"]),
            tool_step("wipe", "erase", {"ids": [1]}, dependencies=["look"], when=[condition]),
            tool_step("other", "erase", {"ids": [2]}, dependencies=["look"]),
        ]
        asked = await w.execute_plan(plan(*steps))
        [question] = asked.suspensions
        told = [sentence for sentence in question.found if "runs only if" in sentence]
        bound = '{"$from":"look","pointer":"/ids"}'
        assert told == [f"Step 'wipe' runs only if {bound} fits {{\"minItems\":2}}; else its calls are not made."]
        done = await decide(w, asked, Decision(approved=True))
    assert done.status == "completed" and ledger.lines == ["erase [2]"]
