"""Loops: the same calls for each item, proven for each, and asked about in one question."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, ToolError
from planwarden.server.views.execution import Execution
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]

ITEM: Json = {"$from": "item"}
HUMAN = Authority(assurance="human", channel="inbox", principal="local")


def loop(step_id: str, tool: str, arguments: Json, items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step(step_id, tool, arguments, forEach=items, **extra)


def picky() -> object:
    @planwarden.tool(name="picky", risk="read", effect="read")
    async def picky(number: int) -> int:
        """Doubles even numbers."""
        if number % 2:
            raise ToolError(f"{number} is odd")
        return 2 * number

    return picky


async def decide(w: planwarden.Warden, execution: Execution, decision: Decision) -> Execution:
    [asked] = execution.suspensions
    return await w.service.answer(
        execution.thread_id, asked.suspension_id, decision, HUMAN, wait_seconds=60, principal="local"
    )


@requirement("loops:each")
async def test_a_loop_calls_its_tools_once_for_each_item_and_returns_the_list_of_their_values() -> None:
    ledger = Ledger()
    steps = plan(
        tool_step("find", "find", {"topic": "t"}),
        loop(
            "write",
            "note",
            {"text": {"$text": "{i}: {id}", "with": {"i": {"$from": "itemIndex"}, "id": ITEM}}},
            {"$from": "find", "pointer": "/ids"},
        ),
        tool_step("last", "note", {"text": {"$from": "write", "pointer": "/2/written"}}),
    )
    async with warden(ledger) as w:
        done = await w.execute_plan(steps)
    assert (done.status, ledger.lines) == ("completed", ["note 0: 1", "note 1: 2", "note 2: 3", "note 2: 3"])
    assert done.steps[1].result == [{"written": "0: 1"}, {"written": "1: 2"}, {"written": "2: 3"}]
    assert done.steps[1].validation_status == "passed"


@requirement("loops:each")
async def test_a_loop_over_nothing_is_completed_and_proves_nothing() -> None:
    async with warden(Ledger()) as w:
        done = await w.execute_plan(plan(loop("a", "note", {"text": "x"}, [])))
    assert (done.status, done.steps[0].validation_status, done.steps[0].result) == ("completed", "skipped", [])


@requirement("loops:each")
async def test_the_view_of_a_long_loop_counts_its_items_and_shows_what_did_not_succeed() -> None:
    steps = plan(loop("a", "picky", {"number": ITEM}, [*[2] * 150, 1], maxItems=200, toolValidationMode="advisory"))
    async with warden(tools=[picky()]) as w:
        done = await w.execute_plan(steps)
    [step] = done.steps
    assert step.items is not None and (step.items.total, step.items.succeeded, step.items.failed) == (151, 150, 1)
    assert len(step.actual_tool_calls) == 50 and step.actual_tool_calls[-1].status == "failed"
    assert step.result == [4] * 100


@requirement("loops:failure")
@pytest.mark.parametrize(
    ("extra", "expected", "ran"),
    [
        ({}, ("failed", "failed", "failed"), [0, None, None, None]),
        ({"onItemFailure": "continue"}, ("failed", "failed", "failed"), [0, None, 4, None]),
        (
            {"onItemFailure": "continue", "toolValidationMode": "advisory"},
            ("completed", "completed", "failed"),
            [0, None, 4, None],
        ),
        (
            {"onItemFailure": "continue", "toolValidationMode": "advisory", "maxConcurrent": 4},
            ("completed", "completed", "failed"),
            [0, None, 4, None],
        ),
    ],
)
async def test_an_item_that_failed_stops_the_others_or_leaves_a_gap(
    extra: Json, expected: tuple[str, str, str], ran: list[JsonValue]
) -> None:
    async with warden(tools=[picky()]) as w:
        done = await w.execute_plan(plan(loop("a", "picky", {"number": ITEM}, [0, 1, 2, 3], **extra)))
        state = await w.service.engine.find(done.execution_id)
    [step] = done.steps
    assert (done.status, step.status, step.validation_status) == expected
    assert state.steps["a"].result == ran
    if step.status == "failed":
        assert step.error is not None and "items failed; item 1: picky failed: 1 is odd" in step.error.message


@requirement("loops:each")
async def test_several_calls_of_an_item_follow_one_another_and_items_run_side_by_side() -> None:
    ledger = Ledger()
    calls: JsonValue = [
        {"toolName": "note", "arguments": {"text": {"$text": "a{n}", "with": {"n": ITEM}}}},
        {"toolName": "note", "arguments": {"text": {"$text": "b{n}", "with": {"n": ITEM}}}},
    ]
    step: Json = {"id": "a", "description": "x", "toolCalls": calls, "forEach": list(range(7)), "maxConcurrent": 3}
    async with warden(ledger) as w:
        done = await w.execute_plan(plan(step))
    assert done.status == "completed" and len(ledger.lines) == 14
    for number in range(7):
        assert ledger.lines.index(f"note a{number}") < ledger.lines.index(f"note b{number}")
    assert done.steps[0].result == [[{"written": f"a{n}"}, {"written": f"b{n}"}] for n in range(7)]


@requirement("loops:batch")
async def test_calls_that_need_a_person_are_asked_about_once_and_approved_row_by_row() -> None:
    ledger = Ledger()
    steps = plan(loop("wipe", "erase", {"ids": [ITEM]}, [7, 8, 9]), tool_step("end", "note", {"text": "end"}))
    async with warden(ledger) as w:
        asked = await w.execute_plan(steps)
        [question] = asked.suspensions
        assert (question.kind, question.tool_call, asked.status) == ("approval", None, "suspended")
        assert [(call.call_id, call.arguments) for call in question.calls] == [
            ("wipe:1", {"ids": [7]}),
            ("wipe:2", {"ids": [8]}),
            ("wipe:3", {"ids": [9]}),
        ]
        assert "one a row" in question.found[0] and ledger.lines == []
        done = await decide(w, asked, Decision(approved=True, content={"items": [0, 2]}))
    assert (done.status, statuses(done)) == ("completed", {"wipe": "completed", "end": "completed"})
    assert ledger.lines == ["erase [7]", "erase [9]", "note end"]
    assert done.steps[0].result == [{"erased": 1}, None, {"erased": 1}]
    shown = [(call.status, call.arguments) for call in done.steps[0].actual_tool_calls]
    assert shown == [("succeeded", {"ids": [7]}), ("rejected", {"ids": [8]}), ("succeeded", {"ids": [9]})]


@requirement("loops:batch")
async def test_a_loop_of_one_call_asks_about_it_without_rows_to_choose() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(loop("wipe", "erase", {"ids": [ITEM]}, [7])))
    [question] = asked.suspensions
    assert (len(question.calls), question.found) == (1, ())


@requirement("loops:batch")
@pytest.mark.parametrize(
    ("decision", "lines", "status"),
    [
        (Decision(approved=True), ["erase [7]", "erase [8]"], "completed"),
        (Decision(approved=False, reason="no"), [], "rejected"),
        (Decision(approved=True, modified_args={"1": {"ids": [80]}}), ["erase [7]", "erase [80]"], "completed"),
    ],
    ids=["all", "none", "edited"],
)
async def test_the_answer_covers_all_rows_none_or_edited_ones(
    decision: Decision, lines: list[str], status: str
) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(loop("wipe", "erase", {"ids": [ITEM]}, [7, 8])))
        done = await decide(w, asked, decision)
    assert (done.status, ledger.lines) == (status, lines)


@requirement("loops:batch")
@pytest.mark.parametrize(
    ("decision", "why"),
    [
        (Decision(approved=True, content={"items": []}), "names no row"),
        (Decision(approved=True, content={"items": [2]}), "from 0 to 1"),
        (Decision(approved=True, content={"items": [0, 0]}), "each row once"),
        (Decision(approved=True, content={"items": [True]}), "each row once"),
        (Decision(approved=True, content={"rows": [0]}), "must name the rows"),
        (Decision(approved=True, content="all"), "must name the rows"),
        (Decision(approved=True, modified_args={"2": {"ids": [1]}}), "by their place"),
        (Decision(approved=True, modified_args={"1": {"ids": "x"}}), "do not fit erase"),
        (Decision(approved=True, modified_args={"1": [1]}), "by their place"),
    ],
)
async def test_an_answer_that_names_no_row_changes_nothing(decision: Decision, why: str) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(loop("wipe", "erase", {"ids": [ITEM]}, [7, 8])))
        with pytest.raises(InvalidArguments, match=why):
            await decide(w, asked, decision)
        again = await w.get_execution(asked.thread_id)
    assert (again.status, ledger.lines) == ("suspended", [])


@requirement("loops:batch")
async def test_a_model_cannot_approve_rows() -> None:
    ledger = Ledger()
    claimed = Authority(assurance="claimed", channel="mcp", principal="local")
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(loop("wipe", "erase", {"ids": [ITEM]}, [7, 8])))
        [question] = asked.suspensions
        proposal = Decision(approved=True, content={"items": [0]})
        answered = await w.service.answer(
            asked.thread_id, question.suspension_id, proposal, claimed, wait_seconds=60, principal="local"
        )
    assert (answered.status, answered.awaiting, ledger.lines) == ("suspended", "human", [])


@requirement("loops:faults")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"forEach": "many"}, "'forEach' must be a list"),
        ({"forEach": {"$from": "nowhere"}}, "unknown step"),
        ({"forEach": {"$from": "a", "path": 1}}, "unknown key"),
        ({"forEach": [1] * 101}, "'forEach' has 101 items, and 'maxItems' is 100"),
        ({"forEach": [1], "maxItems": 10_001}, "maxItems"),
        ({"forEach": [1], "maxItems": 0}, "maxItems"),
        ({"forEach": [1], "maxConcurrent": 33}, "maxConcurrent"),
        ({"forEach": [1], "onItemFailure": "ignore"}, "onItemFailure"),
        ({"forEach": [1], "toolCalls": [], "requiredTools": ["note"]}, "'forEach' needs 'toolCalls'"),
        ({"forEach": [1], "requiredTools": ["note", "find"]}, "must be in its 'toolCalls'"),
        ({"maxItems": 5}, "maxItems without 'forEach'"),
        (
            {
                "forEach": [1],
                "toolCalls": [{"toolName": "displayConfirmation", "arguments": {"message": "?"}}],
                "requiredTools": [],
            },
            "cannot ask once for each item",
        ),
        ({"toolCalls": [{"toolName": "note", "arguments": {"text": ITEM}}]}, "unknown step"),
        ({"id": "item", "forEach": [1]}, "stands for something else"),
    ],
)
async def test_a_loop_that_cannot_work_is_a_fault_of_the_plan(change: Json, why: str) -> None:
    async with warden(Ledger()) as w:
        with pytest.raises(InvalidPlan) as refused:
            await w.execute_plan(plan(tool_step("b", "note", {"text": "x"}) | change))
    assert why in refused.value.message


@requirement("loops:faults")
@pytest.mark.parametrize(
    ("items", "why"),
    [
        ({"$from": "find", "pointer": "/topic"}, "which is no list"),
        ({"$from": "find", "pointer": "/no"}, "has nothing there"),
        ({"$from": "find", "pointer": "/ids"}, "3 items, the step allows 2"),
    ],
)
async def test_items_that_are_no_list_or_too_many_fail_the_step(items: JsonValue, why: str) -> None:
    ledger = Ledger()
    step = loop("a", "note", {"text": "x"}, items, maxItems=2)
    async with warden(ledger) as w:
        done = await w.execute_plan(plan(tool_step("find", "find", {"topic": "t"}), step))
    assert done.status == "failed" and ledger.lines == []
    assert done.steps[1].error is not None and why in done.steps[1].error.message


@requirement("loops:faults")
async def test_an_item_that_the_tool_does_not_take_fails_alone() -> None:
    steps = plan(
        loop("a", "picky", {"number": ITEM}, [2, "x", 4], onItemFailure="continue", toolValidationMode="advisory")
    )
    async with warden(tools=[picky()]) as w:
        done = await w.execute_plan(steps)
    assert done.steps[0].result == [4, None, 8] and done.steps[0].validation_status == "failed"
