"""References that name a large value many times: refused at the call, before anything is copied."""

import tracemalloc
from pathlib import Path

import pytest
from pydantic import JsonValue

from planwarden.agent.core.references import MAX_ARGUMENT_BYTES, MAX_REFERENCES
from tests.requirements import requirement
from tests.support.fakes import EffectLedger, recording_tool
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
    """spec: issue, references multiply"""
    named: list[JsonValue] = [{"$from": "a", "pointer": pointer} for _ in range(times)]
    steps = plan(tool_step("a", "big"), tool_step("b", "take", {"values": named}))
    seen = EffectLedger(tmp_path / "ledger")
    big = recording_tool(seen, "big", filler_bytes=SIZE)
    take = recording_tool(seen, "take", properties={"values": {"type": "array"}})
    async with warden(tools=[big, take]) as w:
        tracemalloc.start()
        try:
            done = await w.execute_plan(steps)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert done.status == "failed" and [entry.tool_name for entry in seen.entries()] == ["big"]
    assert done.steps[1].error is not None and why in done.steps[1].error.message
    # What is said of 2,500 references takes some memory; what they name would take 500 MB.
    assert peak < 40 * SIZE


@requirement("references:bounded")
async def test_values_that_fit_are_taken_as_often_as_they_are_named(tmp_path: Path) -> None:
    """ours: the limit is on what the call would get"""
    seen = EffectLedger(tmp_path / "ledger")
    named: list[JsonValue] = [{"$from": "a", "pointer": "/done"} for _ in range(500)]
    steps = plan(tool_step("a", "big"), tool_step("b", "take", {"values": [*named, {"$from": "a", "pointer": ""}]}))
    big = recording_tool(seen, "big", filler_bytes=SIZE)
    take = recording_tool(seen, "take", properties={"values": {"type": "array"}})
    async with warden(tools=[big, take]) as w:
        done = await w.execute_plan(steps)
    assert done.status == "completed" and [entry.tool_name for entry in seen.entries()] == ["big", "take"]
