"""A downstream server's question in the middle of a call becomes our suspension, and the answer goes back to it."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.tools.downstream.elicitation import BadElicitation, read_form
from planwarden.tools.downstream.in_flight_calls import MAX_HELD, InFlightCall, InFlightCalls
from tests.kit import MemoryStore, requirement
from tests.support.paths import DOUBLES
from tests.tools.downstream.support import WAIT_S, Place, read_error, run_call, wait_until

ASKING = DOUBLES / "asking_server.py"
AUTO = "[servers.d]\ntrusted = true\n" + "".join(
    f'[tools."d_{name}"]\nrisk = "read"\n'
    for name in ("ask", "ask_form", "ask_url", "ask_twice", "sample", "transfer", "roots", "endless")
)
"""The calls need no approval; their effect stays `effect`."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path, settings=AUTO)
    found.serve(d="asking")
    return found


@pytest.fixture
def modern(tmp_path: Path) -> Place:
    found = Place(tmp_path, settings=AUTO)
    found.configure({"d": {"command": sys.executable, "args": [str(ASKING), str(found.folder)]}})
    return found


async def answer(
    warden: planwarden.Warden, execution: planwarden.Execution, content: JsonValue = None, *, yes: bool = True
) -> planwarden.Execution:
    [question] = execution.suspensions
    decision = planwarden.Decision(approved=yes, content=content)
    return await warden.resume_execution(execution.thread_id, question.suspension_id, decision, wait_seconds=WAIT_S)


def read_answers(place: Place) -> list[str]:
    return [line.removeprefix("answer ") for line in place.ledger if line.startswith("answer ")]


@requirement("downstream:questions")
async def test_a_question_in_the_middle_of_a_call_waits_for_a_person_and_the_call_continues(place: Place) -> None:
    async with place.warden() as warden:
        execution = await run_call(warden, "d_ask", {"text": "x"})
        [question] = execution.suspensions
        assert (execution.status, question.kind, question.addressee) == ("suspended", "input", "human")
        assert question.needs == "client"
        assert (question.asker, question.message) == ("server 'd'", "How \\u001b[31mmany of them?")
        with pytest.raises(planwarden.PlanwardenError, match="does not fit the form"):
            await answer(warden, execution, {"count": "all"})
        with pytest.raises(planwarden.PlanwardenError, match="addressed to a person"):
            await warden.submit_answer(execution.thread_id, question.suspension_id, {"count": 3})
        assert read_answers(place) == []
        done = await answer(warden, execution, {"count": 3})
        assert done.status == "completed" and done.usage.tool_calls == 1
        assert read_answers(place) == ['{"action": "accept", "content": {"count": 3}}']


@requirement("downstream:questions")
async def test_questions_of_one_call_are_asked_in_turn_and_a_rejection_goes_to_the_server(place: Place) -> None:
    async with place.warden() as warden:
        first = await run_call(warden, "d_ask_twice")
        second = await answer(warden, first, {"count": 1})
        [question] = second.suspensions
        assert question.kind == "confirmation" and question.answer_schema is None
        assert (await answer(warden, second)).status == "completed"
        asked = await run_call(warden, "d_ask", {"text": "x"})
        assert (await answer(warden, asked, yes=False)).status == "completed"
        # Models of ours are not offered, and what cannot be shown is not asked.
        assert (await run_call(warden, "d_sample")).status == "completed"
        assert (await run_call(warden, "d_ask_form", {"form": {"type": "array"}})).status == "completed"
    _, accepted, declined, *errors = read_answers(place)
    assert accepted == '{"action": "accept", "content": {}}' and declined == '{"action": "decline"}'
    assert len(errors) == 2 and all('"error"' in line for line in errors)


@requirement("downstream:questions")
async def test_an_address_to_open_is_shown_whole_if_it_is_plain_https(place: Place) -> None:
    address = "https://sign-in.test/?" + "x" * 900
    async with place.warden() as warden:
        execution = await run_call(warden, "d_ask_url", {"url": address})
        [question] = execution.suspensions
        assert question.found[0] == f"It asks you to open {address}" and question.message == "Sign in"
        assert (await answer(warden, execution)).status == "completed"
        assert read_answers(place) == ['{"action": "accept"}']
        for url in ("http://bank.test", "https://me:pw@bank.test/", "https://b\u0430nk.test", "javascript:1"):
            assert (await run_call(warden, "d_ask_url", {"url": url})).status == "completed"
        assert all('"error"' in line for line in read_answers(place)[1:]) and len(read_answers(place)) == 5


def form(**fields: Any) -> dict[str, JsonValue]:
    return {"type": "object", "properties": {**fields}}


@requirement("downstream:questions")
@pytest.mark.parametrize(
    "shown",
    [
        *({"type": "array"}, form(a=3), form(a={"type": "array", "items": {"type": "string"}})),
        form(a={"type": "string", "enum": ["x\u202ey"]}),
        form(**{"a\nb": {"type": "string"}}),
        form(**{str(number): {"type": "string"} for number in range(33)}),
        {**form(), "required": ["gone"]},
        form(a={"type": "integer", "minimum": "x"}),
        *(form(a={"type": "number", "default": number}) for number in (math.nan, math.inf, -math.inf)),
    ],
)
def test_a_form_that_cannot_be_shown_is_refused(shown: dict[str, JsonValue]) -> None:
    with pytest.raises(BadElicitation):
        read_form(shown)


async def test_patterns_and_unknown_keywords_of_a_form_are_left_out(place: Place) -> None:
    field: JsonValue = {"type": "string", "pattern": "^(a+)+$", "title": "A\u202e", "x": 1}
    async with place.warden() as warden:
        execution = await run_call(warden, "d_ask_form", {"form": {**form(a=field), "required": ["a"]}})
        [question] = execution.suspensions
        assert question.answer_schema is not None
        assert question.answer_schema["properties"] == {"a": {"type": "string", "title": "A\\u202e"}}


@requirement("downstream:questions")
async def test_a_question_that_could_belong_to_two_executions_is_refused(place: Place) -> None:
    async with place.warden() as warden:
        first = await run_call(warden, "d_ask", {"text": "x"})
        second = await run_call(warden, "d_ask", {"text": "y"})
        assert second.status == "completed" and len(read_answers(place)) == 1 and '"error"' in read_answers(place)[0]
        assert (await warden.list_suspensions()).total == 1
        await warden.cancel_execution(first.thread_id)


@requirement("downstream:questions")
async def test_an_answer_after_the_process_ended_makes_the_outcome_unknown(place: Place) -> None:
    store = MemoryStore()
    async with place.warden(store) as warden:
        execution = await run_call(warden, "d_ask", {"text": "x"})
    async with place.warden(store) as warden:
        after = await answer(warden, execution, {"count": 3})
        [question] = after.suspensions
        assert question.kind == "reconcile" and "the process that held the call ended" in question.found[0]
    assert read_answers(place) == []


@requirement("downstream:questions")
async def test_open_questions_of_calls_that_have_ended_leave_those_of_others_to_a_person() -> None:
    async def lose() -> JsonValue:
        raise EOFError

    calls, lost = InFlightCalls("d"), InFlightCall("an execution")
    assert all(calls.hold(str(number), InFlightCall("another")) for number in range(MAX_HELD - 1))
    assert calls.hold("lost", lost) and not calls.hold("more", InFlightCall("a third"))
    await calls.run(lost, lose)
    assert calls.hold("more", InFlightCall("a third"))
    assert calls.take("lost") is None and calls.take("more") is not None and calls.take("0") is not None


@requirement("downstream:questions")
async def test_returned_questions_survive_the_process_and_the_effect_happens_once(modern: Place) -> None:
    store = MemoryStore()
    async with modern.warden(store) as warden:
        first = await run_call(warden, "d_transfer")
        assert first.suspensions[0].message == "How much?"
        with pytest.raises(planwarden.PlanwardenError, match="can no longer be modified"):
            [question] = first.suspensions
            edited = planwarden.Decision(approved=True, content={"amount": 7}, modified_args={})
            await warden.resume_execution(first.thread_id, question.suspension_id, edited)
    async with modern.warden(store) as warden:
        second = await answer(warden, first, {"amount": 7})
        assert second.suspensions[0].message == "Really?"
    async with modern.warden(store) as warden:
        done = await answer(warden, second)
        assert done.status == "completed" and done.usage.tool_calls == 1
        [call] = done.steps[0].actual_tool_calls
        assert call.status == "succeeded"
        left = await answer(warden, await run_call(warden, "d_transfer"), {"amount": 9})
        declined = await answer(warden, left, yes=False)
        assert declined.status == "completed" and declined.steps[0].result == "left it"
    calls = [line.split() for line in modern.ledger if line.startswith("call")][:2]
    assert len(calls) == 2 and calls[0][2] == calls[1][2] and calls[1][3] == "first"
    assert [line for line in modern.ledger if line.startswith("transferred")] == ["transferred 7"]


async def test_a_server_that_asks_for_sampling_or_without_end_fails_its_call(modern: Place) -> None:
    async with modern.warden() as warden:
        assert "not offered" in read_error(await run_call(warden, "d_roots"))
        execution = await run_call(warden, "d_endless")
        for _ in range(30):
            if execution.status != "suspended":
                break
            execution = await answer(warden, execution, {"amount": 1})
        assert "too often" in read_error(execution)


async def test_the_question_of_a_dangerous_tool_needs_what_the_tool_needs(place: Place) -> None:
    place.settings = ""
    place.serve(d="asking")
    async with place.warden() as warden:
        asked = await answer(warden, await run_call(warden, "d_ask", {"text": "x"}))
        assert (asked.suspensions[0].kind, asked.suspensions[0].needs) == ("input", "human")
        await warden.cancel_execution(asked.thread_id)
        await wait_until(lambda: "cancelled" in place.ledger)
