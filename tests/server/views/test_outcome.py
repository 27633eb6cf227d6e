"""What became of a decision: the sentence is true, and only success looks like success."""

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.state import ExecutionState
from planwarden.server.views.execution import ask_for_person
from planwarden.server.views.outcome import Outcome, build_outcome
from tests.requirements import requirement
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

pytestmark = pytest.mark.anyio


@planwarden.tool
async def fail(why: str) -> str:
    """Fail."""
    raise RuntimeError(why)


ERASE = tool_step("erase", "erase", {"ids": [1]})
FAIL = tool_step("fail", "fail", {"why": 'planwarden says: "all is well"'})


async def _outcome(*steps: dict[str, JsonValue], answers: tuple[bool, ...]) -> Outcome:
    """The outcome of the first question, after the answers to as many questions."""
    async with warden(Ledger(), tools=[fail]) as made:
        execution = await made.execute_plan(plan(*steps))
        asked = execution.suspensions[0].suspension_id
        for approved in answers:
            execution = await made.resume_execution(
                execution.thread_id,
                execution.suspensions[0].suspension_id,
                planwarden.Decision(approved=approved),
                wait_seconds=60,
            )
        state: ExecutionState = await made.service.engine.find(execution.execution_id)
    found = build_outcome(state, state.suspensions[asked])
    assert found is not None
    return found


@requirement("inbox:outcome")
async def test_a_call_that_ran_and_a_plan_that_ended_well_are_good() -> None:
    found = await _outcome(ERASE, answers=(True,))
    assert (found.verdict, found.text) == ("Approved", "Step 1 of 1 is completed. The plan is completed.")
    assert found.tone == "good"


@requirement("inbox:outcome")
async def test_a_call_that_failed_after_its_approval_is_said_to_have_failed_and_its_error_is_quoted() -> None:
    found = await _outcome(confirm("first"), FAIL, answers=(True, True))
    assert found.text.startswith("Step 1 of 2 is completed. Step 2 of 2 failed: ") and found.tone == "bad"
    assert '\\"all is well\\"' in found.text
    own = await _outcome(FAIL, ERASE, answers=(True,))
    assert own.text.startswith("Step 1 of 2 failed: ") and own.tone == "bad" and own.verdict == "Approved"


@requirement("inbox:outcome")
async def test_a_plan_that_goes_on_to_another_question_is_not_good_yet() -> None:
    found = await _outcome(confirm("first"), ERASE, answers=(True,))
    assert (found.text, found.tone) == ("Step 1 of 2 is completed. The plan waits for another answer.", "busy")


@requirement("inbox:outcome")
async def test_a_rejection_says_what_did_not_run() -> None:
    found = await _outcome(ERASE, answers=(False,))
    assert (found.verdict, found.tone) == ("Rejected", "bad")
    assert found.text == "Step 1 of 1 did not run. The plan ended, because a part of it was rejected."


@planwarden.tool(name="odd")
async def odd(number: int) -> int:
    """Fail for odd numbers."""
    if number % 2:
        raise planwarden.ToolError(f"{number} is odd")
    return number


@requirement("inbox:outcome")
async def test_a_loop_of_which_items_failed_or_were_left_out_is_not_simply_done() -> None:
    loop = tool_step(
        "loop",
        "odd",
        {"number": {"$from": "item"}},
        forEach=[0, 1, 2, 4],
        onItemFailure="continue",
        toolValidationMode="advisory",
    )
    async with warden(Ledger(), tools=[odd]) as made:
        asked = await made.execute_plan(plan(loop))
        suspension_id = asked.suspensions[0].suspension_id
        decision = planwarden.Decision(approved=True, content={"items": [0, 1, 2]})
        done = await made.resume_execution(asked.thread_id, suspension_id, decision, wait_seconds=60)
        state = await made.service.engine.find(done.execution_id)
    found = build_outcome(state, state.suspensions[suspension_id])
    assert found is not None and found.tone == "warn"
    assert found.text.startswith("Step 1 of 1 is completed; of 4 items 1 failed and 1 was left out.")


async def test_nobody_is_asked_for_a_question_that_was_decided_in_the_meantime() -> None:
    async with warden(Ledger()) as made:
        asked = await made.execute_plan(plan(ERASE))
        decision = planwarden.Decision(approved=True)
        done = await made.resume_execution(asked.thread_id, asked.suspensions[0].suspension_id, decision)
    assert ask_for_person(asked, asked.suspensions[0].suspension_id).awaiting == "human"
    assert ask_for_person(done, asked.suspensions[0].suspension_id) == done
