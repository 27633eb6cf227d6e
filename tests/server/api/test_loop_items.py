"""What is told of results: those of a loop's items by pages, and of the others names and kinds within bounds."""

import json

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, ToolError
from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.state import Call, StepState
from planwarden.server.api.result_shapes import MAX_SHAPE_CHARS, describe_shape
from planwarden.server.views.loop_items import list_items
from tests.kit import Ledger, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio


@planwarden.tool(name="double", risk="read", effect="read")
async def double(number: int) -> int:
    """Doubles numbers that 101 does not divide."""
    if number and number % 101 == 0:
        raise ToolError(f"{number} is too round")
    return 2 * number


_FACTS = {"double": ToolFacts(is_blocking=False)}


def _loop(count: int, **extra: JsonValue) -> dict[str, JsonValue]:
    items: list[JsonValue] = [*range(count)]
    more: dict[str, JsonValue] = {"forEach": items, "maxItems": count, "maxConcurrent": 32, **extra}
    return tool_step("double", "double", {"number": {"$from": "item"}}, **more)


@requirement("loops:pages")
async def test_all_results_are_read_page_by_page_also_of_a_loop_that_failed() -> None:
    async with warden(Ledger(), tools=[double]) as w:
        done = await w.execute_plan(plan(_loop(250, onItemFailure="continue")), wait_seconds=60)
        assert done.status == "failed" and done.steps[0].result is None
        found: list[JsonValue] = []
        following: int | None = 0
        while following is not None:
            view = await w.get_execution(done.thread_id, step_id="double", items_from=following, items_limit=70)
            [step] = view.steps
            assert step.items is not None and (step.items.total, step.items.failed) == (250, 2)
            found += [item.result for item in step.item_results]
            following = step.items.next
        assert found == [None if n in (101, 202) else 2 * n for n in range(250)]
        [last] = (await w.get_execution(done.thread_id, step_id="double", items_from=202, items_limit=1)).steps
        [item] = last.item_results
        assert (item.item, item.status) == (202, "failed") and item.error is not None
        assert "too round" in item.error.message


@requirement("loops:pages")
@pytest.mark.parametrize(("size", "pages"), [(10, 100), (400_000, 5_000), (5_000_000, 10_000)])
def test_ten_thousand_items_are_pages_of_bounded_size(size: int, pages: int) -> None:
    step = parse_plan(plan(_loop(10_000)), author="caller", tools=_FACTS, max_steps=10)[0].steps[0]
    value = "x" * size
    calls = tuple(
        Call(
            call_id=f"double:{n + 1}",
            step_id="double",
            tool_name="double",
            proposed={},
            by_model=False,
            status="succeeded",
            value=value,
        )
        for n in range(10_000)
    )
    state = StepState(step=step, status="completed", calls=calls, items=tuple(range(10_000)))
    first, count = 0, 0
    while first < 10_000:
        page = list_items(state, first, 100)
        assert [item.item for item in page] == [*range(first, first + len(page))] and page
        first, count = first + len(page), count + 1
    assert count == pages


@requirement("loops:pages")
async def test_a_cut_result_says_where_it_goes_on() -> None:
    async with warden(Ledger(), tools=[double]) as w:
        done = await w.execute_plan(plan(_loop(101)))
        [step] = done.steps
        assert isinstance(step.result, list) and len(step.result) == 100
        assert step.items is not None and step.items.next == 100
        [rest] = (await w.get_execution(done.thread_id, step_id="double", items_from=100)).steps
        assert [item.result for item in rest.item_results] == [2 * n for n in range(100, 101)]
        assert rest.items is not None and rest.items.next is None and rest.result is None


@requirement("loops:pages")
async def test_items_that_wait_or_have_not_begun_say_so() -> None:
    wipe = tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[1, 2])
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(wipe))
        [step] = (await w.get_execution(asked.thread_id, step_id="wipe")).steps
    assert [(item.item, item.status) for item in step.item_results] == [(0, "pending"), (1, "pending")]


@requirement("loops:pages")
@pytest.mark.parametrize(
    ("step_id", "first", "limit", "why"),
    [
        (None, 0, 100, "needs the stepId"),
        ("nothing", None, 100, "no step 'nothing'; it has 'double', 'end'"),
        ("double", 3, 100, "items 0 to 2, and no 3"),
        ("double", -1, 100, "and no -1"),
        ("double", 0, 0, "between 1 and 1000"),
        ("double", 0, 1_001, "between 1 and 1000"),
        ("end", 1, 100, "has no items"),
    ],
)
async def test_a_page_that_is_not_there_is_refused_with_what_there_is(
    step_id: str | None, first: int | None, limit: int, why: str
) -> None:
    async with warden(Ledger(), tools=[double]) as w:
        done = await w.execute_plan(plan(_loop(3), tool_step("end", "note", {"text": "x"})))
        with pytest.raises(InvalidArguments, match=why):
            await w.get_execution(done.thread_id, step_id=step_id, items_from=first, items_limit=limit)
        view = await w.get_execution(done.thread_id, step_id="end")
    assert [step.id for step in view.steps] == ["end"] and view.steps[0].result == {"written": "x"}


def test_a_shape_has_names_and_kinds_and_no_value() -> None:
    value: JsonValue = {"rows": [{"no": "7", "sum": 1.5, "paid": True}], "note": '{"a": [1]}', "none": None}
    assert describe_shape(value) == {
        "rows": [{"no": "text", "sum": "number", "paid": "true or false"}],
        "note": {'text with JSON, for "parse": "json"': {"a": ["number"]}},
        "none": "null",
    }


def test_a_shape_is_bounded_however_wide_and_deep_the_value_is() -> None:
    value: JsonValue = "x"
    for _ in range(4):
        value = {f"{n}{'k' * 60}": value for n in range(20)}
    assert 2 < len(json.dumps(describe_shape(value))) <= MAX_SHAPE_CHARS
