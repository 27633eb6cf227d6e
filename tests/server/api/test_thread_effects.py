"""Effects are remembered for a thread: a person who is asked about the same call again is told first."""

import pytest
from pydantic import JsonValue

from planwarden.agent.core.thread_effects import MAX_EFFECTS
from planwarden.server.views.execution import Execution
from tests.kit import NO, Decision, Ledger, MemoryStore, by, confirm, decide, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
ITEM: JsonValue = {"$from": "item"}


def erase(*ids: int, step_id: str = "wipe", **extra: JsonValue) -> Json:
    return tool_step(step_id, "erase", {"ids": list(ids)}, **extra)


def repeats(execution: Execution) -> list[str]:
    [question] = execution.suspensions
    told = [sentence for sentence in question.found if sentence.startswith("The same call")]
    assert list(question.found[: len(told)]) == told
    return told


@requirement("thread:effects")
async def test_the_same_call_is_told_first_however_many_plans_cancels_and_processes_lie_between() -> None:
    ledger, store = Ledger(), MemoryStore()
    async with warden(ledger, store=store) as w:
        done = await decide(w, await w.execute_plan(plan(erase(7))))
        thread = done.thread_id
        for step in (erase(8), tool_step("look", "find", {"topic": "t"}), confirm("ask")):
            asked = await w.execute_plan(plan(step), thread_id=thread)
            if asked.status != "completed":
                assert repeats(asked) == []
                await w.cancel_execution(thread)
    async with warden(ledger, store=store) as w:
        asked = await w.execute_plan(plan(erase(7, step_id="again")), thread_id=thread)
        [told] = repeats(asked)
        other = await w.execute_plan(plan(erase(7)))
    assert "The same call ran in this thread on " in told and "UTC, in step 'wipe' of an earlier plan" in told
    # Another thread knows nothing of it.
    assert repeats(other) == [] and ledger.lines == ["erase [7]"]


@requirement("thread:effects")
async def test_rows_and_covered_calls_that_ran_before_are_named_and_the_calls_of_a_failed_plan_count() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        steps = plan(erase(1), tool_step("bad", "broken"))
        failed = await decide(w, await w.execute_plan(steps))
        assert failed.status == "failed"
        asked = await w.execute_plan(
            plan(tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=[3, 1])), thread_id=failed.thread_id
        )
        assert [sentence.split(" ran ")[0] for sentence in repeats(asked)] == ["The same call as row 2"]
        rejected = await decide(w, asked, NO)
        assert "Completed by earlier plans of this thread, do not repeat: see doneBefore." in rejected.next_action
        [before] = rejected.done_before
        assert (before.tool_name, before.arguments, before.step_id) == ("erase", '{"ids":[1]}', "wipe")
        asked = await w.execute_plan(plan(confirm("ask", confirms=["wipe"]), erase(1)), thread_id=failed.thread_id)
        [told] = repeats(asked)
    assert told.startswith("The same call as that of erase in step 'wipe' ran in this thread")


@requirement("thread:effects")
async def test_edited_arguments_are_judged_as_they_are_now() -> None:
    async with warden(Ledger()) as w:
        done = await decide(w, await w.execute_plan(plan(erase(7))))
        asked = await w.execute_plan(plan(erase(8)), thread_id=done.thread_id)
        assert repeats(asked) == []
        for ids, count in ((7, 1), (9, 0)):
            edit = Decision(approved=True, modified_args={"ids": [ids]})
            asked = await decide(w, asked, edit, by("local", "claimed", "mcp"), wait_seconds=0)
            assert len(repeats(asked)) == count


@requirement("thread:effects")
async def test_a_planning_prompt_lists_what_must_not_be_repeated() -> None:
    async with warden(Ledger()) as w:
        done = await decide(w, await w.execute_plan(plan(erase(7))))
        for _ in range(4):
            await w.execute_plan(plan(tool_step("look", "find", {"topic": "t"})), thread_id=done.thread_id)
        asked = await w.run_goal("wipe the rest", thread_id=done.thread_id)
    [question] = asked.suspensions
    assert question.prompt is not None and 'completed, do not repeat:\nerase {"ids":[7]} ran in this' in question.prompt


@requirement("thread:effects")
async def test_effects_that_nobody_was_asked_about_push_no_approved_one_out() -> None:
    ledger = Ledger()
    many: list[JsonValue] = [f"line {number}" for number in range(MAX_EFFECTS)]
    loop = tool_step("all", "note", {"text": ITEM}, forEach=many, maxItems=1_000, maxConcurrent=32)
    async with warden(ledger) as w:
        steps = plan(erase(7), confirm("ask", confirms=["late"]), erase(8, step_id="late"))
        done = await decide(w, await decide(w, await w.execute_plan(steps)))
        # Once in the execution that made the approved ones, and twice after it.
        for steps in ([loop], [loop, erase(9)], [loop]):
            done = await w.execute_plan(plan(*steps), thread_id=done.thread_id)
            if done.suspensions:
                done = await decide(w, done)
        asked = await w.execute_plan(
            plan(tool_step("all", "erase", {"ids": [ITEM]}, forEach=[7, 8, 9])), thread_id=done.thread_id
        )
        state = await w.service.engine.find(asked.execution_id)
    assert [sentence.split(" ran ")[0] for sentence in repeats(asked)] == [
        f"The same call as row {n}" for n in (1, 2, 3)
    ]
    assert len(state.thread_effects) == MAX_EFFECTS
    assert [effect.at for effect in state.thread_effects] == sorted(effect.at for effect in state.thread_effects)


@requirement("thread:effects")
async def test_a_thread_remembers_its_newest_effects_and_no_more() -> None:
    ledger = Ledger()
    many: list[JsonValue] = [*range(MAX_EFFECTS + 5)]
    async with warden(ledger) as w:
        loop = tool_step("all", "erase", {"ids": [{"$from": "item"}]}, forEach=many, maxItems=1_000, maxConcurrent=32)
        done = await decide(w, await w.execute_plan(plan(loop)))
        again = await w.execute_plan(plan(tool_step("look", "find", {"topic": "t"})), thread_id=done.thread_id)
        state = await w.service.engine.find(again.execution_id)
        asked = await w.execute_plan(plan(loop), thread_id=done.thread_id)
    assert len(state.thread_effects) == MAX_EFFECTS
    told = repeats(asked)
    assert len(told) == 6 and told[-1] == "The same calls as 95 more of them ran in this thread before."
