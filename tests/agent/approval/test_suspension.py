"""Suspension and resume: who is asked, what the answer does, and that it does it once."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import (
    InvalidArguments,
    ThreadBusy,
)
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.loop_time import pass_time
from tests.support.wardens import Ledger, calls, confirm, model_step, plan, says, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

YES, NO = planwarden.Decision(approved=True), planwarden.Decision(approved=False, reason="too risky")


async def test_a_rejected_step_is_rejected_and_what_depends_on_it_is_skipped() -> None:
    ledger = Ledger()
    steps = plan(
        confirm("a"), tool_step("b", "note", {"text": "b"}), tool_step("c", "note", {"text": "c"}, dependencies=[])
    )
    async with warden(ledger) as w:
        asked = await w.execute_plan(steps)
        done = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, NO)
    assert statuses(done) == {"a": "rejected", "b": "skipped", "c": "completed"}
    assert done.status == "rejected" and ledger.lines == ["note c"]
    assert "too risky" in (done.output or "")


@pytest.mark.parametrize(
    ("on_reject", "expected", "status"),
    [
        ("skip", {"a": "rejected", "b": "skipped", "c": "skipped", "d": "completed"}, "rejected"),
        ("stop", {"a": "rejected", "b": "skipped", "c": "skipped", "d": "skipped"}, "rejected"),
        ("continue", {"a": "rejected", "b": "skipped", "c": "completed", "d": "completed"}, "completed"),
    ],
)
async def test_on_reject_says_what_goes_on_but_never_what_the_question_covered(
    on_reject: str, expected: dict[str, str], status: str
) -> None:
    ledger = Ledger()
    steps = plan(
        confirm("a", confirms=["b"], onReject=on_reject),
        tool_step("b", "erase", {"ids": [1]}, dependencies=["a"]),
        tool_step("c", "note", {"text": "c"}, dependencies=["a"]),
        confirm("d", "another", dependencies=[]),
    )
    async with warden(ledger) as w:
        asked = await w.execute_plan(steps)
        first = next(q for q in asked.suspensions if q.step_id == "a")
        done = await w.resume_execution(asked.thread_id, first.suspension_id, NO)
        for question in done.suspensions:
            done = await w.resume_execution(asked.thread_id, question.suspension_id, YES)
    assert "erase [1]" not in ledger.lines
    assert statuses(done)["b"] == expected["b"] and statuses(done)["c"] == expected["c"] and done.status == status


async def test_a_confirmation_covers_no_call_whose_arguments_were_not_shown() -> None:
    ledger = Ledger()
    script = [calls(("erase", {"ids": [9]}))]
    async with warden(ledger, script=script) as w:
        asked = await w.execute_plan(plan(confirm("a", confirms=["b"]), model_step("b", "erase")))
        again = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, YES)
    assert again.status == "suspended" and again.suspensions[0].kind == "approval" and ledger.lines == []


async def test_a_confirmation_that_showed_one_call_of_a_step_covers_no_other_call_of_it() -> None:
    ledger = Ledger()
    shown: dict[str, JsonValue] = {**tool_step("b", "erase", {"ids": [1]}), "requiredTools": ["erase", "note"]}
    steps = plan(confirm("a", confirms=["b"]), shown)
    script = [calls(("erase", {"ids": [9]}), ("note", {"text": "done"}))]
    async with warden(ledger, script=script) as w:
        asked = await w.execute_plan(steps)
        again = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, YES)
    [question] = again.suspensions
    assert question.tool_call is not None and question.tool_call.arguments == {"ids": [9]}
    assert ledger.lines == ["erase [1]"]


async def test_calls_before_a_question_keep_their_results_and_calls_after_it_wait() -> None:
    ledger = Ledger()
    batch = calls(
        ("note", {"text": "before"}), ("displayConfirmation", {"action": "go on?"}), ("note", {"text": "after"})
    )
    steps = plan(model_step("a", "note", "displayConfirmation"))
    async with warden(ledger, script=[batch]) as w:
        asked = await w.execute_plan(steps)
        assert ledger.lines == ["note before"]
        done = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, YES)
    assert done.status == "completed" and ledger.lines == ["note before", "note after"]
    assert done.usage.model_calls == 1


async def test_two_questions_in_one_batch_are_two_decisions() -> None:
    batch = calls(("displayConfirmation", {"action": "one"}), ("displayConfirmation", {"action": "two"}))
    async with warden(script=[batch]) as w:
        first = await w.execute_plan(plan(model_step("a", "displayConfirmation")))
        second = await w.resume_execution(first.thread_id, first.suspensions[0].suspension_id, YES)
        assert second.status == "suspended" and second.suspensions[0].message == "two"
        done = await w.resume_execution(first.thread_id, second.suspensions[0].suspension_id, YES)
    assert done.status == "completed"


async def test_a_confirmation_repeated_with_the_same_arguments_returns_the_recorded_decision() -> None:
    batch = calls(("displayConfirmation", {"action": "one"}), ("displayConfirmation", {"action": "one"}))
    async with warden(script=[batch]) as w:
        asked = await w.execute_plan(plan(model_step("a", "displayConfirmation")))
        done = await w.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, YES)
    assert done.status == "completed" and len(done.steps[0].actual_tool_calls) == 2


async def test_a_gated_effect_is_asked_for_each_time() -> None:
    ledger = Ledger()
    script = [calls(("erase", {"ids": [1]}), ("erase", {"ids": [1]}))]
    async with warden(ledger, script=script) as w:
        first = await w.execute_plan(plan(model_step("a", "erase")))
        second = await w.resume_execution(first.thread_id, first.suspensions[0].suspension_id, YES)
        assert second.status == "suspended" and ledger.lines == ["erase [1]"]
        assert second.suspensions[0].suspension_id != first.suspensions[0].suspension_id


async def test_branches_that_need_nobody_go_on_and_several_questions_are_open_at_once() -> None:
    ledger = Ledger()
    steps = plan(
        confirm("a", dependencies=[]),
        confirm("b", dependencies=[]),
        tool_step("c", "note", {"text": "c"}, dependencies=[]),
    )
    async with warden(ledger) as w:
        asked = await w.execute_plan(steps)
        assert ledger.lines == ["note c"] and {q.step_id for q in asked.suspensions} == {"a", "b"}
        for question in asked.suspensions:
            asked = await w.resume_execution(asked.thread_id, question.suspension_id, YES)
    assert asked.status == "completed"


async def test_independent_steps_run_at_the_same_time() -> None:
    started = [anyio.Event(), anyio.Event()]

    @planwarden.tool(risk="read", effect="effect")
    async def meet(me: int) -> str:
        """Wait for the other one."""
        started[me].set()
        with anyio.fail_after(60):
            await started[1 - me].wait()
        return "met"

    steps = plan(tool_step("a", "meet", {"me": 0}, dependencies=[]), tool_step("b", "meet", {"me": 1}, dependencies=[]))
    async with warden(tools=[meet]) as w:
        execution = await w.execute_plan(steps)
    assert execution.status == "completed"


async def test_approved_has_to_be_a_boolean() -> None:
    for wrong in ("false", "true", 1, 0):
        with pytest.raises(InvalidArguments):
            planwarden.Decision(approved=wrong)  # type: ignore[arg-type]  # the point of the test is the wrong type


async def test_a_blocking_tool_waits_even_if_its_function_returns() -> None:
    asked_of: list[str] = []

    @planwarden.tool(execution_mode="blocking", risk="confirm")
    async def consult(who: str) -> str:
        """Ask somebody."""
        asked_of.append(who)
        return f"Please ask {who}"

    async with warden(tools=[consult]) as w:
        asked = await w.execute_plan(plan(tool_step("a", "consult", {"who": "Ann"})))
        [question] = asked.suspensions
        assert asked.status == "suspended" and question.message == "Please ask Ann"
        done = await w.resume_execution(asked.thread_id, question.suspension_id, YES)
    assert done.steps[0].result == {"approved": True} and asked_of == ["Ann"]


@requirement("codec:readable")
@pytest.mark.parametrize("wrong", [{"reason": 5}, {"modified_args": [1]}, {"content": float("nan")}])
async def test_an_answer_that_could_not_be_read_back_is_refused_and_the_question_stays_open(wrong: Any) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        place = (asked.thread_id, asked.suspensions[0].suspension_id)
        with pytest.raises(InvalidArguments):
            await w.resume_execution(*place, planwarden.Decision(approved=True, **wrong))
        assert ledger.lines == []
        assert (await w.resume_execution(*place, YES)).status == "completed"
    assert ledger.lines == ["erase [1]"]


async def test_waiting_is_durable_and_ends_by_the_clock() -> None:
    clock = ManualClock()
    async with warden(store=MemoryStore(clock)) as w:
        asked = await w.execute_plan(plan(tool_step("a", "wait", {"seconds": 3600})))
        assert asked.status == "suspended" and asked.suspensions == () and asked.awaiting is None
        clock.advance(3601)
        await w.service.engine.tick()
        done = await w.get_execution(asked.thread_id)
    assert done.status == "completed"


async def test_a_busy_thread_refuses_new_work_and_names_what_is_pending() -> None:
    async with warden() as w:
        asked = await w.execute_plan(plan(confirm("a")))
        with pytest.raises(ThreadBusy) as refused:
            await w.execute_plan(plan(confirm("b")), thread_id=asked.thread_id)
        assert asked.suspensions[0].suspension_id in str(refused.value.details)
        await w.cancel_execution(asked.thread_id, reason="changed my mind")
        again = await w.execute_plan(plan(confirm("b")), thread_id=asked.thread_id)
    assert again.status == "suspended" and again.thread_id == asked.thread_id


async def test_cancelling_stops_a_call_that_is_running() -> None:
    started = anyio.Event()

    @planwarden.tool(risk="read", effect="effect")
    async def hang() -> str:
        """Never ends."""
        started.set()
        await anyio.sleep_forever()
        return "never"

    async with warden(tools=[hang]) as w:
        running = await w.execute_plan(plan(tool_step("a", "hang")), wait_seconds=0)
        await started.wait()
        done = await w.cancel_execution(running.thread_id)
    assert done.status == "cancelled" and done.steps[0].actual_tool_calls[0].status == "outcome_unknown"


async def test_a_timed_out_effect_is_reconciled_by_a_person_and_never_retried_by_itself() -> None:
    attempts: list[int] = []

    @planwarden.tool(risk="read", effect="effect", timeout_s=5.0)
    async def pay(amount: int) -> str:
        """Pay, slowly the first time."""
        attempts.append(amount)
        if len(attempts) == 1:
            pass_time(5.0)
            await anyio.sleep_forever()
        return "paid"

    async with warden(tools=[pay]) as w:
        asked = await w.execute_plan(plan(tool_step("a", "pay", {"amount": 5})))
        [question] = asked.suspensions
        assert question.kind == "reconcile" and attempts == [5]
        with pytest.raises(InvalidArguments):
            await w.resume_execution(asked.thread_id, question.suspension_id, YES)
        content: JsonValue = {"happened": False}
        done = await w.resume_execution(asked.thread_id, question.suspension_id, planwarden.Decision(content=content))
    assert done.status == "completed" and attempts == [5, 5] and done.steps[0].result == "paid"


async def test_a_read_that_times_out_fails_without_a_question() -> None:
    @planwarden.tool(risk="read", effect="read", timeout_s=5.0)
    async def look() -> str:
        """Never ends."""
        pass_time(5.0)
        await anyio.sleep_forever()
        return "never"

    async with warden(tools=[look]) as w:
        done = await w.execute_plan(plan(tool_step("a", "look")))
    assert done.status == "failed" and done.steps[0].error is not None and done.steps[0].error.code == "timeout"


async def test_the_caller_thinks_when_no_model_is_configured() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.run_goal("write a note")
        [planning] = asked.suspensions
        assert (planning.addressee, planning.kind, asked.awaiting) == ("caller", "plan", "caller")
        assert "note(text): Write a line." in (planning.prompt or "") and planning.answer_schema is not None
        asked = await w.submit_answer(asked.thread_id, planning.suspension_id, plan(model_step("a", "note")))
        [stepping] = asked.suspensions
        assert stepping.kind == "step" and [tool.name for tool in stepping.tools] == ["note"]
        asked = await w.submit_answer(asked.thread_id, stepping.suspension_id, {"content": "I wrote it."})
        [enforced] = asked.suspensions
        assert "did not count" in (enforced.prompt or "") and asked.steps[0].retries == 1
        call: JsonValue = {"toolCalls": [{"toolName": "note", "arguments": {"text": "x"}}]}
        asked = await w.submit_answer(asked.thread_id, enforced.suspension_id, call)
        [synthesis] = asked.suspensions
        assert synthesis.kind == "synthesis" and ledger.lines == ["note x"]
        done = await w.submit_answer(asked.thread_id, synthesis.suspension_id, {"content": "Written."})
    assert (done.status, done.output) == ("completed", "Written.")


async def test_the_caller_cannot_answer_a_question_to_a_person() -> None:
    async with warden() as w:
        asked = await w.execute_plan(plan(confirm("a")))
        with pytest.raises(InvalidArguments, match="addressed to a person"):
            await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, {"content": "approved"})


@pytest.mark.parametrize("content", [None, 7, [], {}, {"toolCalls": "all"}, {"toolCalls": [{"name": "x"}]}, {"x": 1}])
async def test_a_malformed_answer_of_the_caller_changes_nothing(content: JsonValue) -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(model_step("a", "note")))
        with pytest.raises(InvalidArguments):
            await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, content)
        assert (await w.get_execution(asked.thread_id)).suspensions == asked.suspensions


async def test_a_bad_plan_of_the_caller_is_asked_for_once_more_with_the_reason() -> None:
    bad: JsonValue = {"todoList": [{"id": "a", "description": "x", "requiredTools": ["teleport"]}]}
    async with warden() as w:
        asked = await w.run_goal("go")
        asked = await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, bad)
        assert "teleport" in (asked.suspensions[0].prompt or "")
        failed = await w.submit_answer(asked.thread_id, asked.suspensions[0].suspension_id, bad)
    assert failed.status == "failed" and failed.error is not None and failed.error.code == "invalid_plan"


async def test_a_created_plan_waits_as_planned_until_it_is_executed() -> None:
    ledger = Ledger()
    steps = plan(tool_step("a", "note", {"text": "x"}))
    script: list[JsonValue] = [{"when": {"purpose": "plan"}, "reply": {"plan": steps}}]
    async with warden(ledger, script=script) as w:
        planned = await w.create_plan("write")
        assert planned.status == "planned" and ledger.lines == [] and statuses(planned) == {"a": "pending"}
        with pytest.raises(ThreadBusy):
            await w.execute_plan(steps, thread_id=planned.thread_id)
        done = await w.execute_plan(thread_id=planned.thread_id)
    assert done.status == "completed" and ledger.lines == ["note x"]


async def test_options_of_a_thread_are_inherited_unless_the_call_says_otherwise() -> None:
    script: list[JsonValue] = [says("no") for _ in range(9)]
    async with warden(Ledger(), script=script) as w:
        first = await w.execute_plan(plan(model_step("a", "note")), options={"taefMaxRetries": 1})
        second = await w.execute_plan(plan(model_step("a", "note")), thread_id=first.thread_id)
        third = await w.execute_plan(
            plan(model_step("a", "note")), thread_id=first.thread_id, options={"taefMaxRetries": 0}
        )
    assert [execution.steps[0].retries for execution in (first, second, third)] == [1, 1, 0]


async def test_a_large_or_unusable_result_is_bounded_or_a_coded_error() -> None:
    @planwarden.tool(risk="read", effect="effect")
    async def flood() -> str:
        """Return far too much."""
        return "x" * 100_000_000

    @planwarden.tool(risk="read", effect="effect")
    async def opaque() -> object:
        """Return something that is not JSON."""
        return object()

    async with warden(tools=[flood, opaque]) as w:
        large = await w.execute_plan(plan(tool_step("a", "flood")))
        strange = await w.execute_plan(plan(tool_step("a", "opaque")))
    result = large.steps[0].result
    assert isinstance(result, dict) and result["truncated"] is True and len(str(result)) < 10_000
    assert strange.status == "failed" and strange.steps[0].error is not None
    assert strange.steps[0].error.code == "tool_error"


async def test_a_tool_that_cancels_itself_fails_its_step() -> None:
    @planwarden.tool(risk="read", effect="effect")
    async def impatient() -> str:
        """Wait for something that was given up."""
        given_up: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        given_up.cancel()
        return await given_up

    async with warden(tools=[impatient]) as w:
        done = await w.execute_plan(plan(tool_step("a", "impatient")))
    assert done.status == "failed" and done.steps[0].error is not None
    assert done.steps[0].error.message.endswith("the tool cancelled itself")


async def test_a_warden_left_by_a_cancelled_task_still_closes_its_store(tmp_path: Path) -> None:
    opened = anyio.Event()

    async def live() -> None:
        async with planwarden.Warden(home=tmp_path) as w:
            await w.execute_plan(plan(confirm("a")))
            opened.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await opened.wait()
        tasks.cancel_scope.cancel()
    assert list((tmp_path / "owners").iterdir()) == []
