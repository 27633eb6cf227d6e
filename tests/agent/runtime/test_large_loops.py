"""Loops through lists that are too large for arguments: they come whole out of artifacts, each item as small as any."""

import json

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.core.pointers import (
    MAX_ARGUMENT_BYTES,
    MAX_LIST_BYTES,
    MAX_LIST_VALUES,
    MAX_LISTED,
    PartAddress,
    find_list_fault,
    read_parts,
)
from planwarden.agent.runtime.artifact_reader import MAX_PARSED_BYTES, read_wanted
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
ROWS = 6_000


def build_rows(count: int, note_chars: int = 150) -> list[JsonValue]:
    return [{"id": number, "to": f"c{number}@example.org", "note": "é" * note_chars} for number in range(count)]


@planwarden.tool(risk="read", effect="read")
async def collect(count: int = ROWS, chars: int = 150, as_text: bool = False) -> JsonValue:
    """Finds more customers than fit into arguments."""
    rows = build_rows(count, chars)
    return {"text": json.dumps(rows)} if as_text else {"rows": rows, "none": []}


@planwarden.tool(risk="read", effect="read")
async def listed() -> list[JsonValue]:
    """Finds customers, and returns nothing but them."""
    return build_rows(200, 1_000)


def each(items: JsonValue, **extra: JsonValue) -> Json:
    """Notes the last customers by a loop through all."""
    item: JsonValue = {"$from": "item", "pointer": "/to"}
    return {
        **tool_step("each", "note", {"text": item}),
        "forEach": items,
        "maxItems": 10_000,
        "maxConcurrent": 32,
        **extra,
    }


@requirement("loop:large")
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_loop_goes_through_a_large_list_out_of_an_artifact_and_a_condition_can_look_at_it(
    as_text: bool,
) -> None:
    ledger, count = Ledger(), 300
    rows: JsonValue = {"$from": "a", "pointer": "/rows"}
    if as_text:
        rows = {"$from": "a", "pointer": "/text", "parse": "json"}
    when: JsonValue = {"value": rows, "matches": {"minItems": 1}}
    steps = plan(tool_step("a", "collect", {"count": count, "chars": 2_000, "as_text": as_text}), each(rows, when=when))
    async with warden(ledger, tools=[collect]) as w:
        done = await w.execute_plan(steps, wait_seconds=120)
    assert done.status == "completed", done.steps[1].error
    assert done.steps[1].items is not None and done.steps[1].items.succeeded == count
    assert sorted(ledger.lines) == sorted(f"note c{number}@example.org" for number in range(count))


@requirement("loop:large")
async def test_a_whole_result_can_be_the_list_and_a_retry_goes_on_within_it() -> None:
    ledger, broken = Ledger(), {"c199@example.org"}

    @planwarden.tool(risk="read", effect="effect")
    async def send(to: str) -> str:
        """Sends."""
        if to in broken:
            raise planwarden.ToolError("no such address")
        ledger.lines.append(to)
        return to

    loop: Json = {**each({"$from": "a"}, onItemFailure="continue")}
    loop |= tool_step("each", "send", {"to": {"$from": "item", "pointer": "/to"}})
    async with warden(ledger, tools=[listed, send]) as w:
        failed = await w.execute_plan(plan(tool_step("a", "listed"), loop), wait_seconds=120)
        assert failed.status == "failed" and len(ledger.lines) == 199
        broken.clear()
        done = await w.retry(failed.thread_id, wait_seconds=120)
    assert done.status == "completed" and len(ledger.lines) == len(set(ledger.lines)) == 200


@requirement("loop:large")
@pytest.mark.parametrize(
    ("items", "why"),
    [
        ({"$from": "a", "pointer": "/rows"}, "'forEach' has 6000 items, the step allows 5000"),
        ({"$from": "a"}, "leads to more than"),
        ({"$from": "a", "pointer": "/rows/0/note"}, "is no list"),
        ({"$from": "a", "pointer": "/none/0"}, "has nothing there"),
    ],
)
async def test_what_is_no_usable_list_fails_the_step_before_its_first_call(items: JsonValue, why: str) -> None:
    ledger = Ledger()
    async with warden(ledger, tools=[collect]) as w:
        done = await w.execute_plan(plan(tool_step("a", "collect"), each(items, maxItems=5_000)), wait_seconds=60)
    error = done.steps[1].error
    assert done.status == "failed" and error is not None and ledger.lines == []
    assert why.replace("is no list", "no list") in error.message and error.code in (
        "invalid_arguments",
        "limit_exceeded",
    )


@requirement("loop:large")
def test_each_item_and_the_whole_list_are_bounded() -> None:
    assert find_list_fault(build_rows(10_000, 40)) is None
    assert find_list_fault([]) is None
    large: JsonValue = "x" * (MAX_ARGUMENT_BYTES + 1)
    wrong: list[tuple[list[JsonValue], str]] = [
        (list[JsonValue](range(MAX_LISTED + 1)), f"{MAX_LISTED + 1} items"),
        ([1, large], "item 1, which has more than"),
        (["x" * 200_000 for _ in range(MAX_LIST_BYTES // 200_000 + 1)], f"more than {MAX_LIST_BYTES} bytes"),
        ([list[JsonValue]([0] * 100) for _ in range(MAX_LIST_VALUES // 100 + 1)], f"{MAX_LIST_VALUES} values"),
    ]
    for items, why in wrong:
        assert why in str(find_list_fault(items))
    assert find_list_fault(["\ud800"]) is None


@requirement("loop:large", "references:process")
async def test_the_other_process_reads_what_this_one_would_and_says_what_is_absent() -> None:
    document: Json = {"rows": build_rows(4_000, 200), "few": [1], "none": [], "text": json.dumps([1, 2])}
    artifact = make_artifact(json.dumps(document).encode())
    assert len(artifact.data) > MAX_PARSED_BYTES
    wanted = frozenset(
        PartAddress(artifact.artifact_id, pointer, parse, may_be_list)
        for pointer, parse in (("/rows", ""), ("/few", ""), ("/none", ""), ("/gone", ""), ("/rows/7", ""), ("", ""))
        for may_be_list in (False, True)
    )
    found = await read_wanted(MemoryStore(), "t", wanted, {artifact.artifact_id: artifact})
    assert found == read_parts(artifact, wanted)
    rows = found[PartAddress(artifact.artifact_id, "/rows", "", True)]
    assert rows.value == document["rows"] and found[PartAddress(artifact.artifact_id, "/rows")].fault is not None
    assert found[PartAddress(artifact.artifact_id, "/gone")].is_absent
