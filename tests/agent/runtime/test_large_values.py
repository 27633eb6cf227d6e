"""References into results that are large, or taken many times: bounded, and read without a copy of what is not needed.

A loop goes through a list that is too large for arguments, each item as small as any.
"""

import json
import tracemalloc
from pathlib import Path

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
from planwarden.agent.core.references import MAX_REFERENCES
from planwarden.agent.runtime.artifact_reader import MAX_PARSED_BYTES, read_wanted
from tests.harness.ledger import Ledger as EffectLedger
from tests.kit import MemoryStore, requirement
from tests.support.fakes import recording_tool
from tests.support.turns import MAX_TURN_S, measure_longest_turn
from tests.support.wardens import Ledger, plan, run, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
SIZE = 200_000


def take_many(named: list[JsonValue], ledger: Path) -> tuple[EffectLedger, list[object], Json]:
    """A plan that puts references to a large result into one call, its tools, and their ledger."""
    seen = EffectLedger(ledger)
    tools: list[object] = [
        recording_tool(seen, "big", filler_bytes=SIZE),
        recording_tool(seen, "take", properties={"values": {"type": "array"}}),
    ]
    return seen, tools, plan(tool_step("a", "big"), tool_step("b", "take", {"values": named}))


@requirement("references:bounded")
@pytest.mark.parametrize(
    ("times", "pointer", "why"),
    [
        (2_500, "/filler", f"more than {MAX_REFERENCES} '$from' references"),
        (MAX_REFERENCES, "/filler", f"would be larger than {MAX_ARGUMENT_BYTES} bytes"),
        (2, "/filler", "at least 200002 bytes, 2 times through '$from'; point to the parts that are needed"),
        (2, "", "would be larger than"),
        (500, "/done", None),
    ],
)
async def test_a_plan_that_names_a_large_result_many_times_is_refused_before_anything_is_copied(
    times: int, pointer: str, why: str | None, tmp_path: Path
) -> None:
    named: list[JsonValue] = [{"$from": "a", "pointer": pointer} for _ in range(times)]
    seen, tools, steps = take_many(named, tmp_path / "ledger")
    async with warden(tools=tools) as w:
        tracemalloc.start()
        try:
            done = await w.execute_plan(steps)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # What is said of 2,500 references takes some memory; what they name would take 500 MB.
    assert peak < 40 * SIZE
    assert seen.tools_run() == (["big", "take"] if why is None else ["big"])
    error = done.steps[1].error
    assert error is None if why is None else error is not None and why in error.message


@requirement("references:process")
async def test_references_into_a_very_large_result_are_read_without_the_loop_standing_still(tmp_path: Path) -> None:
    count = MAX_PARSED_BYTES // 10
    pointers = ("/first", f"/rows/{count - 1}/name", "/rows/0")
    seen, tools, steps = take_many([{"$from": "a", "pointer": pointer} for pointer in pointers], tmp_path / "ledger")
    # Building it takes as long as half of the longest turn that is allowed, and is no work of planwarden.
    rows = [{"id": number, "name": f"name {number}"} for number in range(count)]
    value: dict[str, object] = {"first": "x\u00e9", "rows": rows, "text": "y" * 400_000}

    @planwarden.tool(name="big", risk="read", effect="read")
    async def big() -> dict[str, object]:
        """Returns everything."""
        return value

    async with warden(tools=[big, tools[1]]) as w:
        longest_s, _ = await measure_longest_turn(lambda: w.execute_plan(steps))
    [took] = seen.lines("done")
    assert took.facts["arguments"] == {"values": ["x\u00e9", f"name {count - 1}", {"id": 0, "name": "name 0"}]}
    assert longest_s < MAX_TURN_S


def build_rows(count: int, note_chars: int = 150) -> list[JsonValue]:
    return [{"id": number, "to": f"c{number}@example.org", "note": "é" * note_chars} for number in range(count)]


@requirement("loop:large", "references:process")
async def test_the_other_process_reads_what_this_one_would_and_says_what_is_absent() -> None:
    document: Json = {"rows": build_rows(4_000, 200), "few": [1], "none": [], "text": json.dumps([1, 2])}
    artifact = make_artifact(json.dumps(document).encode())
    assert len(artifact.data) > MAX_PARSED_BYTES
    wanted = frozenset(
        PartAddress(artifact.artifact_id, pointer, "", may_be_list)
        for pointer in ("/rows", "/few", "/none", "/gone", "/rows/7", "")
        for may_be_list in (False, True)
    )
    found = await read_wanted(MemoryStore(), "t", wanted, {artifact.artifact_id: artifact})
    assert found == read_parts(artifact, wanted)
    rows = found[PartAddress(artifact.artifact_id, "/rows", "", True)]
    assert rows.value == document["rows"]
    assert "leads to more than" in str(found[PartAddress(artifact.artifact_id, "/rows")].fault)
    gone = found[PartAddress(artifact.artifact_id, "/gone")]
    assert gone.is_absent and "has nothing there" in str(gone.fault)


@requirement("references:process")
async def test_a_process_that_fails_on_an_artifact_is_a_fault_of_the_reference() -> None:
    broken = make_artifact(b'{"a": ' + b" " * MAX_PARSED_BYTES)
    address = PartAddress(broken.artifact_id, "/a")
    found = await read_wanted(MemoryStore(), "t", frozenset({address}), {broken.artifact_id: broken})
    assert "it ended with code 1" in str(found[address].fault)


@planwarden.tool(risk="read", effect="read")
async def collect(count: int = 6_000, chars: int = 150, as_text: bool = False) -> JsonValue:
    """Finds more customers than fit into arguments."""
    rows = build_rows(count, chars)
    return {"text": json.dumps(rows)} if as_text else {"rows": rows}


@planwarden.tool(risk="read", effect="read")
async def listed() -> list[JsonValue]:
    """Finds customers, and returns nothing but them."""
    return build_rows(200, 1_000)


def each(items: JsonValue, tool: str = "note", name: str = "text", **extra: JsonValue) -> Json:
    """Calls a tool with the address of each customer."""
    step = tool_step("each", tool, {name: {"$from": "item", "pointer": "/to"}})
    return {**step, "forEach": items, "maxItems": 10_000, "maxConcurrent": 32, **extra}


@requirement("loop:large")
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_loop_goes_through_a_large_list_out_of_an_artifact_and_a_condition_can_look_at_it(
    as_text: bool,
) -> None:
    rows: JsonValue = {"$from": "a", "pointer": "/rows"}
    if as_text:
        rows = {"$from": "a", "pointer": "/text", "parse": "json"}
    first = tool_step("a", "collect", {"count": 300, "chars": 2_000, "as_text": as_text})
    loop = each(rows, when={"value": rows, "matches": {"minItems": 1}})
    done, lines = await run(first, loop, tools=[collect])
    assert done.status == "completed", done.steps[1].error
    assert done.steps[1].items is not None and done.steps[1].items.succeeded == 300
    assert sorted(lines) == sorted(f"note c{number}@example.org" for number in range(300))


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

    loop = each({"$from": "a"}, "send", "to", onItemFailure="continue")
    async with warden(tools=[listed, send]) as w:
        failed = await w.execute_plan(plan(tool_step("a", "listed"), loop), wait_seconds=120)
        assert failed.status == "failed" and len(ledger.lines) == 199
        broken.clear()
        done = await w.retry(failed.thread_id, wait_seconds=120)
    assert done.status == "completed" and len(ledger.lines) == len(set(ledger.lines)) == 200


@requirement("loop:large")
@pytest.mark.parametrize(
    ("pointer", "why"),
    [
        ("/rows", "'forEach' has 6000 items, the step allows 5000"),
        ("", "leads to more than"),
        ("/rows/0/to", "no list"),
    ],
)
async def test_what_is_not_a_usable_list_fails_the_step_before_its_first_call(pointer: str, why: str) -> None:
    loop = each({"$from": "a", "pointer": pointer}, maxItems=5_000)
    done, lines = await run(tool_step("a", "collect"), loop, tools=[collect])
    error = done.steps[1].error
    assert done.status == "failed" and error is not None and why in error.message and lines == []


@requirement("loop:large")
def test_each_item_and_the_whole_list_are_bounded() -> None:
    large: JsonValue = "x" * (MAX_ARGUMENT_BYTES + 1)
    lists: list[tuple[list[JsonValue], str]] = [
        (build_rows(10_000, 40), "None"),
        ([], "None"),
        (["\ud800"], "None"),
        (list[JsonValue](range(MAX_LISTED + 1)), f"{MAX_LISTED + 1} items"),
        ([1, large], "item 1, which has more than"),
        (["x" * 200_000 for _ in range(MAX_LIST_BYTES // 200_000 + 1)], f"more than {MAX_LIST_BYTES} bytes"),
        ([list[JsonValue]([0] * 100) for _ in range(MAX_LIST_VALUES // 100 + 1)], f"{MAX_LIST_VALUES} values"),
    ]
    for items, why in lists:
        assert why in str(find_list_fault(items))
