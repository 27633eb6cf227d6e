"""References that name a large value many times: refused at the call, before anything is copied."""

import json
import tracemalloc
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.core.references import MAX_ARGUMENT_BYTES, MAX_REFERENCES, PartAddress
from planwarden.agent.runtime.artifact_reader import MAX_PARSED_BYTES, read_wanted
from planwarden.storage.memory.store import MemoryStore
from tests.harness.ledger import Ledger
from tests.requirements import requirement
from tests.support.fakes import recording_tool
from tests.support.turns import MAX_TURN_S, measure_longest_turn
from tests.support.wardens import plan, tool_step, warden

pytestmark = pytest.mark.anyio

SIZE = 200_000


@requirement("references:bounded")
@pytest.mark.parametrize(
    ("times", "pointer", "why"),
    [
        (2_500, "/filler", f"more than {MAX_REFERENCES} '$from' references"),
        (MAX_REFERENCES, "/filler", f"would be larger than {MAX_ARGUMENT_BYTES} bytes"),
        (2, "/filler", "at least 200002 bytes, 2 times through '$from'; point to the parts that are needed"),
        (2, "", "would be larger than"),
    ],
)
async def test_a_plan_that_names_a_large_result_many_times_is_refused_before_anything_is_copied(
    times: int, pointer: str, why: str, tmp_path: Path
) -> None:
    named: list[JsonValue] = [{"$from": "a", "pointer": pointer} for _ in range(times)]
    steps = plan(tool_step("a", "big"), tool_step("b", "take", {"values": named}))
    seen = Ledger(tmp_path / "ledger")
    big = recording_tool(seen, "big", filler_bytes=SIZE)
    take = recording_tool(seen, "take", properties={"values": {"type": "array"}})
    async with warden(tools=[big, take]) as w:
        tracemalloc.start()
        try:
            done = await w.execute_plan(steps)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert done.status == "failed" and seen.tools_run() == ["big"]
    assert done.steps[1].error is not None and why in done.steps[1].error.message
    # What is said of 2,500 references takes some memory; what they name would take 500 MB.
    assert peak < 40 * SIZE


@requirement("references:bounded")
async def test_values_that_fit_are_taken_as_often_as_they_are_named(tmp_path: Path) -> None:
    seen = Ledger(tmp_path / "ledger")
    named: list[JsonValue] = [{"$from": "a", "pointer": "/done"} for _ in range(500)]
    steps = plan(tool_step("a", "big"), tool_step("b", "take", {"values": [*named, {"$from": "a", "pointer": ""}]}))
    big = recording_tool(seen, "big", filler_bytes=SIZE)
    take = recording_tool(seen, "take", properties={"values": {"type": "array"}})
    async with warden(tools=[big, take]) as w:
        done = await w.execute_plan(steps)
    assert done.status == "completed" and seen.tools_run() == ["big", "take"]


LARGE = MAX_PARSED_BYTES // 10


def build_large_value() -> dict[str, object]:
    """More than is parsed in this process."""
    rows = [{"id": number, "name": f"name {number}"} for number in range(LARGE)]
    return {"first": "x\u00e9", "rows": rows, "text": "y" * 400_000}


@requirement("references:process")
async def test_references_into_a_very_large_result_are_read_without_the_loop_standing_still(tmp_path: Path) -> None:
    seen = Ledger(tmp_path / "ledger")
    pointers = ("/first", f"/rows/{LARGE - 1}/name", "/rows/0")
    named: list[JsonValue] = [{"$from": "a", "pointer": pointer} for pointer in pointers]
    steps = plan(tool_step("a", "crawl_all"), tool_step("b", "take", {"values": named}))
    take = recording_tool(seen, "take", properties={"values": {"type": "array"}})
    # Building it takes as long as half of the longest turn that is allowed, and is no work of planwarden.
    value = build_large_value()

    @planwarden.tool(risk="read", effect="read")
    async def crawl_all() -> dict[str, object]:
        """Returns everything."""
        return value

    async with warden(tools=[crawl_all, take]) as w:
        longest_s, _ = await measure_longest_turn(lambda: w.execute_plan(steps))
    assert seen.lines("done")[0].facts["arguments"] == {"values": ["x\u00e9", f"name {LARGE - 1}", {"id": 0, "name": "name 0"}]}
    assert longest_s < MAX_TURN_S


@requirement("references:process")
@pytest.mark.parametrize(
    ("pointer", "why"),
    [("/none", "has nothing there"), ("/rows", "leads to more than"), ("/text", "leads to more than")],
)
async def test_a_reference_into_a_very_large_result_that_leads_nowhere_usable_is_refused(
    pointer: str, why: str
) -> None:
    large = make_artifact(json.dumps(build_large_value()).encode())
    address = PartAddress(large.artifact_id, pointer)
    found = await read_wanted(MemoryStore(), "t", frozenset({address}), {large.artifact_id: large})
    assert why in str(found[address].fault)


@requirement("references:process")
async def test_a_process_that_fails_on_an_artifact_is_a_fault_of_the_reference() -> None:
    broken = make_artifact(b'{"a": ' + b" " * MAX_PARSED_BYTES)
    address = PartAddress(broken.artifact_id, "/a")
    found = await read_wanted(MemoryStore(), "t", frozenset({address}), {broken.artifact_id: broken})
    assert "it ended with code 1" in str(found[address].fault)
