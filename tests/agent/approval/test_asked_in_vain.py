"""What a person would be asked in vain is found before; what looks like a placeholder is said first."""

import pytest
from pydantic import JsonValue

import planwarden
from tests.kit import Authority, Ledger, confirm, decide, plan, requirement, statuses, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
FIND = tool_step("find", "find", {"topic": "t"})
CLAIM = Authority(assurance="claimed", channel="mcp", principal="local")


@planwarden.tool(name="send")
async def send(to: str, text: str = "") -> str:
    """Send a letter."""
    return f"sent to {to}"


def bound(pointer: str, **extra: JsonValue) -> Json:
    return {"$from": "find", "pointer": pointer, **extra}


@requirement("confirm:certain")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (
            tool_step("do", "erase", {"ids": bound("/idz")}),
            "the pointer '/idz' into the result of step 'find' has nothing",
        ),
        (
            tool_step("do", "erase", {"ids": bound("/topic")}),
            "erase of step 'do' cannot run: /ids: \"t\" is not of type",
        ),
        (
            tool_step(
                "do", "erase", {"ids": bound("/topic")}, when={"value": bound("/ids"), "matches": {"minItems": 1}}
            ),
            "erase of step 'do' cannot run",
        ),
        (tool_step("do", "erase", {"ids": bound("/ids")}), None),
        (tool_step("do", "erase", {"ids": bound("/idz", default=[])}), None),
        (
            tool_step(
                "do", "erase", {"ids": bound("/topic")}, when={"value": bound("/ids"), "matches": {"maxItems": 0}}
            ),
            None,
        ),
    ],
)
async def test_a_call_that_cannot_run_is_found_before_a_person_is_asked_to_confirm_it(
    step: Json, why: str | None
) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(FIND, confirm("ask", confirms=["do"]), step))
    assert ledger.lines == []
    if why is None:
        assert [question.step_id for question in asked.suspensions] == ["ask"]
        return
    assert (asked.suspensions, statuses(asked)) == ((), {"find": "completed", "ask": "failed", "do": "skipped"})
    error = asked.steps[1].error
    assert error is not None and why in error.message and "nobody was asked" in error.message


@requirement("confirm:certain")
async def test_a_call_whose_sources_are_not_over_is_left_to_the_run() -> None:
    later = tool_step("later", "find", {"topic": "u"}, dependencies=["ask"])
    step = tool_step("do", "erase", {"ids": {"$from": "later", "pointer": "/topic"}})
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(confirm("ask", confirms=["do"]), later, step))
    assert [question.step_id for question in asked.suspensions] == ["ask"]


@requirement("plan:placeholders")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            plan(tool_step("a", "send", {"to": "ann@example.org", "text": "Dear {{name}}, hello."})),
            ["send, /to is 'ann@example.org', an example address", "send, /text has the placeholder '{{name}}'"],
        ),
        (plan(confirm("a", "Pay [AMOUNT] to Ann")), ["displayConfirmation, /action has the placeholder '[AMOUNT]'"]),
        (
            plan(confirm("a", confirms=["b"]), tool_step("b", "send", {"to": "<email>"})),
            ["send, /to is the placeholder '<email>'"],
        ),
        (
            plan(
                tool_step("a", "send", {"to": {"$from": "item"}}, forEach=["ann@acme.io", "{{email}}"], dependencies=[])
            ),
            ["send, /to is the placeholder '{{email}}'"],
        ),
    ],
)
async def test_a_question_says_first_what_looks_like_a_placeholder(steps: Json, expected: list[str]) -> None:
    async with warden(tools=[send]) as w:
        asked = await w.execute_plan(steps)
    [question] = asked.suspensions
    assert len(asked.warnings) == len(expected)
    for sentence, start in zip(question.found, expected, strict=False):
        assert sentence.startswith(f"A placeholder: {start}")


@requirement("plan:placeholders")
async def test_a_question_forgets_a_placeholder_that_an_edit_replaces() -> None:
    async with warden(tools=[send]) as w:
        asked = await w.execute_plan(plan(tool_step("a", "send", {"to": "<email>", "text": "Dear {{name}},"})))
        [question] = asked.suspensions
        edit = planwarden.Decision(approved=True, modified_args={"to": "ann@acme.io", "text": "Dear Ann,"})
        revised = await decide(w, question, edit, CLAIM, wait_seconds=0)
    assert len(question.found) == 2
    [question] = revised.suspensions
    assert (question.revision, question.found) == (2, ())
