"""The event loop: a large plan does not hold it up, and a watch notices, reports and keeps what does."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.api.stalls import FILE, MAX_FILE_BYTES, REPORT_S, Stalls, StallWatch, describe, read_stalls
from planwarden.server.cli.checks.doctor import run_checks
from tests.kit import Ledger, plan, requirement, tool_step, warden
from tests.support.turns import MAX_TURN_S, measure_longest_turn


@requirement("server:stalls")
def test_a_stall_is_logged_and_kept_for_doctor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = StallWatch(tmp_path / FILE)
    watch.note(0.05, 0.05, now=1.0, at=100.0)
    assert read_stalls(tmp_path) is None
    watch.note(2.5, 2.4, now=2.0, at=101.0)
    assert "the event loop stood still 1 time(s), at most 2.50 s" in caplog.text
    assert "something computed without a pause" in caplog.text
    assert read_stalls(tmp_path) == Stalls(1, 2.5, 2.4, 101.0)
    [check] = [found for found in run_checks(tmp_path, None).checks if found.name == "stalls"]
    assert check.status == "warning" and "at most 2.50 s" in check.message and check.facts["count"] == 1


def test_many_stalls_are_few_lines_that_count_them_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = StallWatch(tmp_path / FILE)
    for number in range(100):
        watch.note(0.2 + number / 1_000, 0.2, now=number * REPORT_S / 50, at=float(number))
    watch.note(0.0, 0.0, now=1_000.0, at=1_000.0)
    assert len(caplog.records) == 3 and len((tmp_path / FILE).read_text().splitlines()) == 3
    found = read_stalls(tmp_path)
    assert found is not None and found.count == 100 and found.longest_s == pytest.approx(0.299)


def test_the_file_is_bounded_and_damage_in_it_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"not JSON\n[1]\n" + b"x" * MAX_FILE_BYTES)
    watch = StallWatch(path)
    watch.note(0.3, 0.1, now=1.0, at=5.0)
    assert path.stat().st_size < 200
    assert read_stalls(tmp_path) == Stalls(1, 0.3, 0.1, 5.0)


def test_a_process_that_was_stopped_is_told_from_one_that_computed() -> None:
    assert "was stopped, or the machine" in describe(Stalls(1, 60.0, 0.01, 0.0))


def test_a_home_that_cannot_be_written_to_does_not_end_the_watch(tmp_path: Path) -> None:
    watch = StallWatch(tmp_path / "gone" / FILE)
    watch.note(5.0, 5.0, now=1.0, at=5.0)
    assert read_stalls(tmp_path / "gone") is None


STEPS = [
    tool_step(f"s{number}", "find", {"topic": "x", "limit": [{"a": value} for value in range(500)]})
    for number in range(45)
]
"""With 45,000 values, so that a parser needs longer than the loop may be kept; their faults let nothing of it run."""


async def submit_plan(w: planwarden.Warden) -> None:
    """Hand the plan in as the calling model."""
    asked = await w.run_goal("find it")
    [question] = asked.suspensions
    answered = await w.submit_answer(asked.thread_id, question.suspension_id, plan(*STEPS))
    assert answered.suspensions[0].kind == "plan"


async def submit_revision(w: planwarden.Warden) -> None:
    """Add the steps to a plan that runs, as the calling model."""
    asked = await w.execute_plan(plan({"id": "think", "description": "think", "stepType": "reasoning"}))
    [question] = asked.suspensions
    patch: list[JsonValue] = [{"op": "add", "step": step} for step in STEPS]
    await w.submit_answer(asked.thread_id, question.suspension_id, {"content": "thought", "revise": patch})


@requirement("mcp:bounded-answers")
@pytest.mark.anyio
@pytest.mark.parametrize("hand_in", [submit_plan, submit_revision])
async def test_a_large_plan_of_a_model_keeps_no_other_request_waiting(
    hand_in: Callable[[planwarden.Warden], Awaitable[None]],
) -> None:
    async with warden(Ledger()) as w:
        longest, _ = await measure_longest_turn(lambda: hand_in(w))
    assert longest < MAX_TURN_S


@pytest.mark.anyio
@requirement("mcp:bounded-answers")
async def test_a_large_plan_of_a_provider_keeps_no_other_request_waiting() -> None:
    reply: JsonValue = {"reply": {"plan": plan(*STEPS)}}
    async with warden(Ledger(), script=[reply] * 12) as w:
        longest, _ = await measure_longest_turn(lambda: w.run_goal("find it"))
    assert longest < MAX_TURN_S
