"""Suspension and resume: who is asked, what the answer does, and that it does it once."""

from typing import Any

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import AlreadyDecided, InvalidArguments
from tests import kit
from tests.kit import NO, Ledger, by, calls, confirm, decide, model_step, plan, requirement, statuses, tool_step, warden
from tests.support.loop_time import pass_time


@pytest.mark.parametrize(
    ("on_reject", "c", "e", "status"),
    [
        (None, "skipped", "completed", "rejected"),
        ("skip", "skipped", "completed", "rejected"),
        ("stop", "skipped", "skipped", "rejected"),
        ("continue", "completed", "completed", "completed"),
    ],
)
async def test_on_reject_says_what_goes_on_but_never_what_the_question_covered(
    on_reject: str | None, c: str, e: str, status: str
) -> None:
    ledger = Ledger()
    steps = plan(
        confirm("a", confirms=["b"], **({"onReject": on_reject} if on_reject else {})),
        tool_step("b", "erase", {"ids": [1]}, dependencies=["a"]),
        tool_step("c", "note", {"text": "c"}, dependencies=["a"]),
        confirm("d", "another", dependencies=[]),
        tool_step("e", "note", {"text": "e"}, dependencies=["d"]),
    )
    async with warden(ledger) as w:
        asked = await w.execute_plan(steps)
        first = next(q for q in asked.suspensions if q.step_id == "a")
        done = await decide(w, first, NO)
        for question in done.suspensions:
            done = await decide(w, question)
    assert "erase [1]" not in ledger.lines and done.status == status and "too risky" in str(done)
    assert statuses(done) == {"a": "rejected", "b": "skipped", "c": c, "d": "completed", "e": e}


async def test_after_a_no_that_lets_the_plan_go_on_the_result_counts_as_a_missing_value() -> None:
    ledger = Ledger()
    bound: JsonValue = {"$from": "a", "pointer": "/approved"}
    steps = plan(
        confirm("a", onReject="continue"),
        tool_step("judged", "note", {"text": "judged"}, when={"value": bound, "matches": {}}),
        tool_step("default", "note", {"text": {"$from": "a", "pointer": "/by", "default": "nobody"}}),
    )
    async with warden(ledger) as w:
        done = await decide(w, await w.execute_plan(steps), NO)
    assert done.status == "completed" and ledger.lines == ["note nobody"]
    assert statuses(done) == {"a": "rejected", "judged": "skipped", "default": "completed"}
    assert done.steps[1].skipped_because == "when"


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
        done = await decide(w, question)
    assert done.steps[0].result == {"approved": True} and asked_of == ["Ann"]


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
            await decide(w, question)
        content: JsonValue = {"happened": False}
        edit = planwarden.Decision(content=content, modified_args={"amount": 1})
        with pytest.raises(InvalidArguments, match="the call has begun"):
            await w.resume_execution(asked.thread_id, question.suspension_id, edit)
        done = await w.resume_execution(asked.thread_id, question.suspension_id, planwarden.Decision(content=content))
    assert done.status == "completed" and attempts == [5, 5] and done.steps[0].result == "paid"


async def test_the_same_edit_again_is_the_same_answer_with_and_without_the_defaults() -> None:
    ledger: list[str] = []

    @planwarden.tool()
    async def pay(amount: int, note: str = "n") -> str:
        """Pay."""
        ledger.append(f"{amount} {note}")
        return "paid"

    async with warden(tools=[pay]) as w:
        asked = await w.execute_plan(plan(tool_step("a", "pay", {"amount": 1})))
        [question] = asked.suspensions
        edits: list[dict[str, JsonValue]] = [{"amount": 5}, {"amount": 5}, {"amount": 5, "note": "n"}]
        for arguments in edits:
            edited = await decide(w, question, planwarden.Decision(approved=True, modified_args=arguments))
            assert edited.status == "completed"
        with pytest.raises(AlreadyDecided):
            await decide(w, question, planwarden.Decision(approved=True, modified_args={"amount": 6}))
        same = await w.execute_plan(plan(tool_step("b", "pay", {"amount": 7})))
        [question] = same.suspensions
        for _ in range(2):
            await decide(w, question, planwarden.Decision(approved=True, modified_args={"amount": 7}))
    assert ledger == ["5 n", "7 n"]


async def test_a_model_cannot_edit_what_a_person_was_asked() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(confirm("a", "Look?")))
        edit = planwarden.Decision(approved=True, modified_args={"action": "Delete everything?"})
        with pytest.raises(InvalidArguments, match="the call has begun"):
            await decide(w, asked, edit, by("local", "claimed", "mcp"))
        done = await decide(w, asked)
    assert done.steps[0].actual_tool_calls[0].arguments == {"action": "Look?"}


async def test_an_edit_is_refused_if_no_call_may_have_so_large_arguments() -> None:
    texts: list[str] = []
    async with warden(tools=[kit.acting("post", texts)]) as w:
        asked = await w.execute_plan(plan(tool_step("a", "post", {"text": "short"})))
        with pytest.raises(InvalidArguments, match="larger than 262144 bytes"):
            await decide(w, asked, planwarden.Decision(approved=True, modified_args={"text": "x" * 262_144}))
        await decide(w, asked)
    assert texts == ["post short"]


@requirement("codec:readable")
@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": 5},
        {"modified_args": [1]},
        *({"content": value} for value in (float("nan"), b"no", {1, 2}, {"a": 1, 2: "b"})),
        {"modified_args": {"ids": object()}},
        *({"approved": no} for no in ("false", "true", 1, 0)),
    ],
)
async def test_an_answer_of_another_type_is_refused_and_the_question_stays_open(wrong: dict[str, Any]) -> None:
    ledger, given = Ledger(), dict[str, Any](approved=True) | wrong
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(tool_step("a", "erase", {"ids": [1]})))
        with pytest.raises(InvalidArguments):
            await decide(w, asked, planwarden.Decision(**given))
        assert ledger.lines == []
        assert (await decide(w, asked)).status == "completed"
    assert ledger.lines == ["erase [1]"]


Calls = list[tuple[str, dict[str, JsonValue]]]
ONE: Calls = [("displayConfirmation", {"action": "one"})]
TWO: Calls = [("displayConfirmation", {"action": "two"})]
ERASE: Calls = [("erase", {"ids": [1]})]
BATCHES: dict[str, tuple[Calls, list[JsonValue], list[list[str]]]] = {
    "two questions": (ONE + TWO, ["one", "two"], [[], []]),
    # The same arguments get the decision that is recorded.
    "one question twice": (ONE + ONE, ["one"], [[]]),
    "one effect twice": (ERASE + ERASE, [{"ids": [1]}] * 2, [[], ["erase [1]"]]),
    "calls around a question": ([("note", {"text": "1"}), *ONE, ("note", {"text": "2"})], ["one"], [["note 1"]]),
}
"""The calls, what is asked about in turn, and what has happened by then."""


@pytest.mark.parametrize(("batch", "asked_for", "effects"), BATCHES.values(), ids=BATCHES)
async def test_each_call_of_a_batch_is_asked_about_when_those_before_it_have_results(
    batch: Calls, asked_for: list[JsonValue], effects: list[list[str]]
) -> None:
    ledger, ids = Ledger(), set[str]()
    async with warden(ledger, script=[calls(*batch)]) as w:
        view = await w.execute_plan(plan(model_step("a", *{name for name, _ in batch})))
        for about, lines in zip(asked_for, effects, strict=True):
            [question] = view.suspensions
            ids.add(question.suspension_id)
            shown = question.tool_call.arguments if isinstance(about, dict) and question.tool_call else question.message
            assert shown == about and ledger.lines == lines
            view = await decide(w, view)
    assert view.status == "completed" and len(ids) == len(asked_for) and view.usage.model_calls == 1
    assert len(view.steps[0].actual_tool_calls) == len(batch)
    assert len(ledger.lines) == len([name for name, _ in batch if name != "displayConfirmation"])


@pytest.mark.parametrize(
    ("step", "reply", "effects"),
    [
        (model_step("b", "erase"), [("erase", {"ids": [9]})], []),
        (
            {**tool_step("b", "erase", {"ids": [1]}), "requiredTools": ["erase", "note"]},
            [("erase", {"ids": [9]}), ("note", {"text": "done"})],
            ["erase [1]"],
        ),
    ],
    ids=["none was shown", "another one was shown"],
)
async def test_a_confirmation_covers_no_call_whose_arguments_were_not_shown(
    step: dict[str, JsonValue], reply: Calls, effects: list[str]
) -> None:
    ledger = Ledger()
    async with warden(ledger, script=[calls(*reply)]) as w:
        again = await decide(w, await w.execute_plan(plan(confirm("a", confirms=["b"]), step)))
    [question] = again.suspensions
    assert question.kind == "approval" and question.tool_call is not None
    assert question.tool_call.arguments == {"ids": [9]} and ledger.lines == effects
