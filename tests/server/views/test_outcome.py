"""What became of a decision and of an execution: no more than the log proves, and only success looks like success."""

from typing import get_args

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.edits import MAX_EDITS
from planwarden.agent.core.state import CallStatus, ExecutionState, ExecutionStatus, StepStatus
from planwarden.server.cli.checks.report import CheckStatus
from planwarden.server.views.execution import Execution, ask_for_person
from planwarden.server.views.outcome import Outcome, build_outcome
from planwarden.server.views.status_words import SIGNS, STATUSES, WORDS, Mark
from planwarden.storage.ports.schedules import TickOutcome
from tests.kit import Ledger, confirm, model_step, plan, requirement, says, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]


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
@pytest.mark.parametrize(
    ("steps", "answers", "verdict", "tone", "text"),
    [
        ((ERASE,), (True,), "Approved", "good", "Step 1 of 1 is completed. The plan is completed."),
        ((confirm("a"), FAIL), (True, True), "Approved", "bad", "Step 1 of 2 is completed. Step 2 of 2 failed: "),
        ((FAIL, ERASE), (True,), "Approved", "bad", "Step 1 of 2 failed: "),
        ((confirm("a"), ERASE), (True,), "Approved", "busy", "Step 1 of 2 is completed. The plan waits for an answer"),
        ((ERASE,), (False,), "Rejected", "bad", "Step 1 of 1 did not run. The plan ended, because a part of it was"),
    ],
)
async def test_only_success_looks_like_success_and_the_error_of_a_failure_is_quoted(
    steps: tuple[Json, ...], answers: tuple[bool, ...], verdict: str, tone: str, text: str
) -> None:
    outcome = await _outcome(*steps, answers=answers)
    assert (outcome.verdict, outcome.tone) == (verdict, tone) and outcome.text.startswith(text)
    assert ('\\"all is well\\"' in outcome.text) == (" failed: " in text)


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


HUMAN = Authority(assurance="human", channel="inbox", principal="ann")
CLAIMED = Authority(assurance="claimed", channel="mcp", principal="local")
PROVEN = "Done; every required tool call is proven by the log."
OTHERS = "The log proves every required tool call of the others."
FIND = tool_step("find", "find", {"topic": "t"})
ITEM: Json = {"$from": "item"}


def think(step_id: str) -> Json:
    return {"id": step_id, "description": "Think"}


async def decide(
    w: planwarden.Warden, execution: Execution, decision: Decision, authority: Authority = HUMAN
) -> Execution:
    [asked] = execution.suspensions
    return await w.service.answer(
        execution.thread_id, asked.suspension_id, decision, authority, wait_seconds=60, principal=None
    )


@requirement("done:honest")
@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((FIND,), PROVEN),
        ((FIND, think("a")), f"{PROVEN} 1 step promised no tool."),
        ((think("a"), think("b")), "Done. 2 steps promised no tool."),
        (
            (FIND, tool_step("b", "broken", toolValidationMode="advisory")),
            f"Done. Step 'b' is advisory and ended without all of its required calls. {OTHERS}",
        ),
        (
            (model_step("b", "find", toolValidationMode="advisory"),),
            "Done. Step 'b' is advisory and ended without all of its required calls.",
        ),
        ((tool_step("b", "note", {"text": "x"}, forEach=[]),), "Done. Step 'b' had no items, so it called nothing."),
        (
            (
                FIND,
                tool_step("b", "find", {"topic": "x"}, when={"value": {"$from": "find"}, "matches": {"type": "null"}}),
            ),
            f"Done. Step 'b' was skipped. {OTHERS}",
        ),
    ],
)
async def test_a_completed_execution_is_called_proven_only_where_its_steps_promised_calls(
    steps: tuple[Json, ...], said: str
) -> None:
    script: list[JsonValue] = [says("I have done it")] * 8
    async with warden(Ledger(), script=script) as w:
        done = await w.execute_plan(plan(*steps), wait_seconds=60)
    assert (done.status, done.next_action) == ("completed", said)


@requirement("done:honest")
async def test_rows_that_a_person_left_out_are_not_called_done() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(tool_step("wipe", "erase", {"ids": [ITEM]}, forEach=[1, 2])))
        done = await decide(w, asked, Decision(approved=True, content={"items": [1]}))
    assert done.next_action.startswith("Done. Step 'wipe' left out items that were rejected.")


@requirement("done:honest")
@pytest.mark.parametrize(
    ("authority", "said"),
    [(HUMAN, "A person rejected part of it"), (CLAIMED, "You rejected part of it; no person did.")],
)
async def test_a_rejection_is_a_persons_only_if_a_person_rejected(authority: Authority, said: str) -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(tool_step("wipe", "erase", {"ids": [1]})))
        done = await decide(w, asked, Decision(approved=False), authority)
    assert done.status == "rejected" and done.next_action.startswith(said)


@requirement("edits:told")
async def test_what_a_person_changed_is_in_every_answer_after_the_decision() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(tool_step("wipe", "erase", {"ids": [1]}), confirm("more")))
        again = await decide(w, asked, Decision(approved=True, modified_args={"ids": [2, 3]}))
        assert again.status == "suspended"
        done = await decide(w, again, Decision(approved=True))
    told = "Changed before it was approved: erase of step 'wipe': 'ids' from [1] to [2,3], by 'ann'."
    assert again.next_action.endswith(told) and done.next_action.endswith(told)


@requirement("edits:told")
async def test_an_edit_of_the_model_is_not_told_as_a_persons() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(tool_step("wipe", "erase", {"ids": [1]})))
        asked = await decide(w, asked, Decision(approved=True, modified_args={"ids": [2]}), CLAIMED)
        done = await decide(w, asked, Decision(approved=True))
    assert done.next_action == PROVEN


@requirement("edits:told")
async def test_edits_of_many_rows_are_told_up_to_a_limit() -> None:
    many: list[JsonValue] = [*range(MAX_EDITS + 3)]
    edits: Json = {str(place): {"ids": [place + 100]} for place in range(MAX_EDITS + 3)}
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(tool_step("wipe", "erase", {"ids": [ITEM]}, forEach=many)))
        done = await decide(w, asked, Decision(approved=True, modified_args=edits))
    assert "erase of step 'wipe' (row 13): 'ids' from [12] to [112], by 'ann'" in done.next_action
    assert done.next_action.endswith("; and 3 more before these.")


def test_every_status_has_a_word_and_a_sign_and_only_what_is_done_looks_good() -> None:
    calls = dict.fromkeys(("call", "row", "item"), CallStatus)
    kinds = {"execution": ExecutionStatus, "step": StepStatus, "tick": TickOutcome, "check": CheckStatus, **calls}
    assert all(set(get_args(kinds[kind])) <= set(words) for kind, words in WORDS.items() if kind in kinds)
    assert set(SIGNS) == set(get_args(Mark)) and set(STATUSES.values()) == set(get_args(ExecutionStatus)) - {"new"}
    assert [*WORDS["step"]] == list({SIGNS[words.mark].text: name for name, words in WORDS["step"].items()}.values())
    assert {name for name, words in {**WORDS["execution"], **WORDS["step"]}.items() if words.tone == "good"} == {
        "completed"
    }
