"""The end of every question is a span in the execution's trace, whoever records it; what is open is counted."""

from pathlib import Path

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.server.telemetry.open_questions import OTHER, OpenQuestions
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.memory import MemoryStore
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.server.telemetry.support import Watching, attributes, parent_of, trace_of
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio

YES = planwarden.Decision(approved=True)


def _waits(watching: Watching) -> list[tuple[object, object, float]]:
    """Outcome, revision and seconds of each span of a question, in the order in which they ended."""
    return [
        (
            attributes(span)["planwarden.suspension.outcome"],
            attributes(span)["planwarden.suspension.revision"],
            _seconds(span),
        )
        for span in watching.spans
        if span.name.startswith("planwarden.suspension ")
    ]


def _seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return round((span.end_time - span.start_time) / 1e9, 3)


@requirement("telemetry:questions")
async def test_a_question_that_ends_with_its_execution_counts_as_withdrawn() -> None:
    watching, clock = Watching(), ManualClock()
    async with watching.warden(tools=Ledger().tools(), store=MemoryStore(clock)) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]}), confirm("b")))
        assert asked.status == "suspended" and _waits(watching) == []
        clock.advance(40)
        assert (await w.cancel_execution(asked.thread_id)).status == "cancelled"
    assert _waits(watching) == [("withdrawn", 1, 40.0)]
    assert {trace_of(span) for span in watching.spans} == {trace_of(watching.spans[0])}
    [(about, waited_s)] = watching.points("planwarden.question.wait")
    assert about["planwarden.suspension.outcome"] == "withdrawn" and waited_s == 40


@requirement("telemetry:questions")
async def test_a_question_that_times_out_in_another_process_is_counted_there(tmp_path: Path) -> None:
    clock, first, second = ManualClock(), Watching(), Watching()
    store = await anyio.to_thread.run_sync(lambda: SqliteStore.open(tmp_path / "x.db", clock=clock))
    step = confirm("b")
    step["toolCalls"] = [{"toolName": "displayConfirmation", "arguments": {"action": "go on?", "timeoutSeconds": 60}}]
    async with first.warden(store=store) as w:
        asked = await w.execute_plan(plan(step))
        assert asked.suspensions[0].expires_at is not None
    await store.close()
    clock.advance(61)
    store = await anyio.to_thread.run_sync(lambda: SqliteStore.open(tmp_path / "x.db", clock=clock))
    with anyio.fail_after(60):
        async with second.warden(store=store) as w:
            await w.service.engine.tick()
            assert (await w.get_execution(asked.thread_id)).status != "suspended"
    await store.close()
    assert _waits(first) == [] and _waits(second) == [("timed_out", 1, 61.0)]
    assert {trace_of(span) for span in (*first.spans, *second.spans)} == {trace_of(first.spans[0])}
    [span] = [found for found in second.spans if found.name == "planwarden.suspension confirmation"]
    assert parent_of(span) == parent_of(second.one("invoke_workflow planwarden"))


@requirement("telemetry:questions")
async def test_each_revision_of_a_question_has_a_span_of_its_own() -> None:
    watching, clock = Watching(), ManualClock()
    async with watching.warden(tools=Ledger().tools(), store=MemoryStore(clock)) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        [question] = asked.suspensions
        clock.advance(10)
        engine = w.service.engine
        execution = await engine.find(asked.execution_id)
        edited = planwarden.Decision(approved=True, modified_args={"ids": [2]})
        authority = Authority(assurance="client", channel="test", principal="local")
        execution, accepted = await engine.answer(execution, question.suspension_id, edited, authority)
        assert not accepted and execution.suspensions[question.suspension_id].question.revision == 2
        clock.advance(5)
        done = await w.resume_execution(asked.thread_id, question.suspension_id, YES, wait_seconds=60)
        assert done.status == "completed"
    assert _waits(watching) == [("revised", 1, 10.0), ("approved", 2, 5.0)]
    [(_, waited_s)] = watching.points("planwarden.question.wait")
    assert waited_s == 15


@requirement("telemetry:questions")
async def test_open_questions_are_counted_by_kind_and_need_with_the_age_of_the_oldest() -> None:
    watching, clock = Watching(), ManualClock()
    store = MemoryStore(clock)
    counting = OpenQuestions(watching.meters.get_meter("test"), store)
    async with Watching().warden(tools=Ledger().tools(), store=store) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        clock.advance(100)
        await w.execute_plan(plan(confirm("b")))
        await w.execute_plan(plan({"id": "c", "description": "think"}))
        await counting.refresh()
        open_now = {tuple(about.values()): value for about, value in watching.points("planwarden.questions.open")}
        kinds = {(kind, addressee): value for (kind, addressee, _), value in open_now.items()}
        assert kinds == {("approval", "human"): 1, ("confirmation", "human"): 1, ("step", "caller"): 1}
        assert all(value for _, _, value in open_now)
        assert watching.points("planwarden.questions.oldest") == [({}, 100)]
        await w.cancel_execution(asked.thread_id)
        await counting.refresh()
        assert [value for _, value in watching.points("planwarden.questions.oldest")] == [0]
        counts = [value for _, value in watching.points("planwarden.questions.open")]
        assert sorted(counts) == [0, 1, 1]


@requirement("telemetry:questions")
async def test_questions_beyond_the_limit_are_counted_without_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planwarden.server.telemetry.open_questions.PAGE", 2)
    monkeypatch.setattr("planwarden.server.telemetry.open_questions.MAX_GROUPED", 2)
    watching, store = Watching(), MemoryStore()
    counting = OpenQuestions(watching.meters.get_meter("test"), store)
    async with Watching().warden(store=store) as w:
        for _ in range(5):
            await w.execute_plan(plan(confirm("b")))
        await counting.refresh()
    points = watching.points("planwarden.questions.open")
    counts = {about["planwarden.suspension.kind"]: value for about, value in points}
    assert counts == {"confirmation": 2, OTHER[0]: 3}


async def test_an_exception_of_the_program_passes_the_counting_of_questions_unchanged() -> None:
    with pytest.raises(KeyError):
        async with Watching().warden():
            raise KeyError("mine")
