"""Loops: the same calls for each item, proven for each, and asked about in one question."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments, ToolError
from tests.requirements import requirement
from tests.support.wardens import Ledger, decide, plan, run, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]

ITEM: Json = {"$from": "item"}


def loop(step_id: str, tool: str, arguments: Json, items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step(step_id, tool, arguments, forEach=items, **extra)


def wipe(*items: JsonValue) -> Json:
    return loop("wipe", "erase", {"ids": [ITEM]}, list(items))


@planwarden.tool(name="picky", risk="read", effect="read")
async def picky(number: int) -> int:
    """Doubles even numbers."""
    if number % 2:
        raise ToolError(f"{number} is odd")
    return 2 * number


@requirement("loops:each")
async def test_a_loop_calls_its_tools_once_for_each_item_and_returns_the_list_of_their_values() -> None:
    text: JsonValue = {"$text": "{i}: {id}", "with": {"i": {"$from": "itemIndex"}, "id": ITEM}}
    done, lines = await run(
        tool_step("find", "find", {"topic": "t"}),
        loop("write", "note", {"text": text}, {"$from": "find", "pointer": "/ids"}),
        tool_step("last", "note", {"text": {"$from": "write", "pointer": "/2/written"}}),
        loop("none", "note", {"text": "x"}, []),
    )
    assert (done.status, lines) == ("completed", ["note 0: 1", "note 1: 2", "note 2: 3", "note 2: 3"])
    assert done.steps[1].result == [{"written": "0: 1"}, {"written": "1: 2"}, {"written": "2: 3"}]
    assert done.steps[1].validation_status == "passed"
    # Nothing is proven by no call.
    assert (done.steps[3].validation_status, done.steps[3].result) == ("skipped", [])


@requirement("loops:each")
async def test_the_view_of_a_long_loop_counts_its_items_and_shows_what_did_not_succeed() -> None:
    long = loop("a", "picky", {"number": ITEM}, [*[2] * 150, 1], maxItems=200, toolValidationMode="advisory")
    done, _ = await run(long, tools=[picky])
    [step] = done.steps
    assert step.items is not None and (step.items.total, step.items.succeeded, step.items.failed) == (151, 150, 1)
    assert len(step.actual_tool_calls) == 50 and step.actual_tool_calls[-1].status == "failed"
    assert step.result == [4] * 100


GOES_ON: Json = {"onItemFailure": "continue", "toolValidationMode": "advisory"}


@requirement("loops:failure", "loops:faults")
@pytest.mark.parametrize(
    ("items", "extra", "status", "results"),
    [
        ([0, 1, 2, 3], {}, "failed", [0, None, None, None]),
        ([0, 1, 2, 3], {"onItemFailure": "continue"}, "failed", [0, None, 4, None]),
        ([0, 1, 2, 3], GOES_ON, "completed", [0, None, 4, None]),
        ([0, 1, 2, 3], {**GOES_ON, "maxConcurrent": 4}, "completed", [0, None, 4, None]),
        ([2, "what no call takes", 4], GOES_ON, "completed", [4, None, 8]),
    ],
)
async def test_an_item_that_failed_stops_the_others_or_leaves_a_gap(
    items: JsonValue, extra: Json, status: str, results: list[JsonValue]
) -> None:
    async with warden(tools=[picky]) as w:
        done = await w.execute_plan(plan(loop("a", "picky", {"number": ITEM}, items, **extra)))
        state = await w.service.engine.find(done.execution_id)
    [step] = done.steps
    assert (done.status, step.status, step.validation_status) == (status, status, "failed")
    assert state.steps["a"].result == results
    if step.status == "failed":
        assert step.error is not None and "items failed; item 1: picky failed: 1 is odd" in step.error.message


@requirement("loops:each")
async def test_several_calls_of_an_item_follow_one_another_and_items_run_side_by_side() -> None:
    def write(letter: str) -> JsonValue:
        return {"toolName": "note", "arguments": {"text": {"$text": letter + "{n}", "with": {"n": ITEM}}}}

    each: Json = {"toolCalls": [write("a"), write("b")], "forEach": list(range(7)), "maxConcurrent": 3}
    done, lines = await run({"id": "a", "description": "x", **each})
    assert done.status == "completed" and len(lines) == 14
    for number in range(7):
        assert lines.index(f"note a{number}") < lines.index(f"note b{number}")
    assert done.steps[0].result == [[{"written": f"a{n}"}, {"written": f"b{n}"}] for n in range(7)]


@requirement("loops:batch")
async def test_calls_that_need_a_person_are_asked_about_once_and_approved_row_by_row() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(wipe(7, 8, 9), tool_step("end", "note", {"text": "end"})))
        [question] = asked.suspensions
        assert (question.kind, question.tool_call, asked.status) == ("approval", None, "suspended")
        rows = [(call.call_id, call.arguments) for call in question.calls]
        assert rows == [(f"wipe:{n}", {"ids": [n + 6]}) for n in (1, 2, 3)]
        assert "one a row" in question.found[0] and ledger.lines == []
        done = await decide(w, asked, Decision(approved=True, content={"items": [0, 2]}))
        [alone] = (await w.execute_plan(plan(wipe(7)))).suspensions
    assert (done.status, statuses(done)) == ("completed", {"wipe": "completed", "end": "completed"})
    assert ledger.lines == ["erase [7]", "erase [9]", "note end"]
    assert done.steps[0].result == [{"erased": 1}, None, {"erased": 1}]
    shown = [(call.status, call.arguments) for call in done.steps[0].actual_tool_calls]
    assert shown == [("succeeded", {"ids": [7]}), ("rejected", {"ids": [8]}), ("succeeded", {"ids": [9]})]
    # Of one call there is nothing to choose.
    assert (len(alone.calls), alone.found) == (1, ())


@requirement("loops:batch")
@pytest.mark.parametrize(
    ("decision", "why", "lines"),
    [
        (Decision(approved=True), "completed", ["erase [7]", "erase [8]"]),
        (Decision(approved=False, reason="no"), "rejected", []),
        (Decision(approved=True, modified_args={"1": {"ids": [80]}}), "completed", ["erase [7]", "erase [80]"]),
        (Decision(approved=True, content={"items": []}), "names no row", None),
        (Decision(approved=True, content={"items": [2]}), "from 0 to 1", None),
        (Decision(approved=True, content={"items": [0, 0]}), "each row once", None),
        (Decision(approved=True, content={"items": [True]}), "each row once", None),
        (Decision(approved=True, content={"rows": [0]}), "must name the rows", None),
        (Decision(approved=True, content="all"), "must name the rows", None),
        (Decision(approved=True, modified_args={"2": {"ids": [1]}}), "by their place", None),
        (Decision(approved=True, modified_args={"1": {"ids": "x"}}), "do not fit erase", None),
        (Decision(approved=True, modified_args={"1": [1]}), "by their place", None),
    ],
)
async def test_an_answer_covers_all_rows_none_or_edited_ones_and_one_that_names_no_row_changes_nothing(
    decision: Decision, why: str, lines: list[str] | None
) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(wipe(7, 8)))
        if lines is None:
            with pytest.raises(InvalidArguments, match=why):
                await decide(w, asked, decision)
            assert (await w.get_execution(asked.thread_id)).status == "suspended"
        else:
            assert (await decide(w, asked, decision)).status == why
    assert ledger.lines == (lines or [])


@requirement("loops:batch")
async def test_a_model_cannot_approve_rows() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(wipe(7, 8)))
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        still = await decide(w, asked, Decision(approved=True, content={"items": [0]}), claimed)
    assert (still.status, still.awaiting, ledger.lines) == ("suspended", "human", [])


@requirement("loops:faults")
@pytest.mark.parametrize(
    ("pointer", "why"),
    [("/topic", "which is no list"), ("/no", "has nothing there"), ("/ids", "3 items, the step allows 2")],
)
async def test_items_that_are_no_list_or_too_many_fail_the_step(pointer: str, why: str) -> None:
    step = loop("a", "note", {"text": "x"}, {"$from": "find", "pointer": pointer}, maxItems=2)
    done, lines = await run(tool_step("find", "find", {"topic": "t"}), step)
    assert done.status == "failed" and lines == []
    assert done.steps[1].error is not None and why in done.steps[1].error.message
