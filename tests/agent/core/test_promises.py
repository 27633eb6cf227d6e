"""What a plan seems to promise and does not, told as a warning when it is accepted."""

import pytest
from pydantic import JsonValue

from planwarden.agent.core.plan import ToolFacts
from planwarden.agent.core.plan_parser import parse_plan
from tests.requirements import requirement

Json = dict[str, JsonValue]

FACTS = {
    "find_orders": ToolFacts(is_blocking=False, may_ask=False),
    "send_email": ToolFacts(is_blocking=False),
    "find": ToolFacts(is_blocking=False),
    "displayConfirmation": ToolFacts(is_blocking=True),
}


def warn(*steps: Json) -> tuple[str, ...]:
    return parse_plan({"todoList": list(steps)}, author="caller", tools=FACTS)[1]


@requirement("plan:promises")
@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("Send an e-mail to Ann", "speaks of sending, but promises no tool; nothing will be sent"),
        ("Write the reminder and send it", "sending"),
        ("Compare both. Then delete the smaller one", "nothing will be deleted"),
        ("Please pay the invoice", "nothing will be paid"),
        ("Check the total; refund the customer if it is too high", "nothing will be refunded"),
        ("If it is free, book the room", "nothing will be booked"),
        ("transfer 200 EUR to Bob", "nothing will be transferred"),
        ("E-mail the report", "nothing will be e-mailed"),
        ("PUBLISH the page", "nothing will be published"),
        ("Call send_email for each customer", "speaks of send_email, but promises no tool; it will not be called"),
        ("Tell Ann with `send_email`", "speaks of send_email"),
        ("send_email to Ann", "speaks of send_email"),
        ("Summarise what was sent", None),
        ("Decide whether to send a reminder or to pay at once", None),
        ("List the invoices to pay, refund and cancel", None),
        ("Write the text of a mail", None),
        ("Do not send anything; explain why", None),
        ("Never delete or change a record", None),
        ("Draft an e-mail, a post and a book review", None),
        ("Refund amount: compute it", None),
        ("Post-process the list", None),
        ("Say which payments were refunded and sent back", None),
        ("Use the result of find_orders", None),
        ("Find the largest order", None),
        ("Read the book and the mail that was sent, then compare them", None),
        ("Explain how paying works", None),
    ],
)
def test_a_step_that_speaks_of_an_effect_and_has_no_tools_is_warned_about(description: str, said: str | None) -> None:
    warnings = warn({"id": "a", "description": description})
    if said is None:
        assert warnings == ()
    else:
        assert len(warnings) == 1 and warnings[0].startswith("step 'a' speaks of ") and said in warnings[0]


@requirement("plan:promises")
def test_hundreds_of_such_steps_are_a_few_warnings_and_one_that_names_its_tool_is_none() -> None:
    steps: list[Json] = [{"id": f"s{number}", "description": "Send it"} for number in range(40)]
    assert len(warn(*steps)) == 10
    assert warn({"id": "a", "description": "Send it", "requiredTools": ["send_email"]}) == ()


ASK: Json = {
    "id": "ask",
    "description": "Ask Ann",
    "toolCalls": [{"toolName": "displayConfirmation", "arguments": {"action": "?"}}],
    "confirms": ["mail"],
}
FIND: Json = {"id": "find", "description": "Find", "toolCalls": [{"toolName": "find_orders", "arguments": {}}]}
LOOP_ADVICE = "to ask once, leave the confirmation out: the loop asks once, with a row for each call"


def mail(to: JsonValue = "ann@acme.io", **extra: JsonValue) -> Json:
    calls: JsonValue = [{"toolName": "send_email", "arguments": {"to": to}}]
    return {"id": "mail", "description": "Tell her", "toolCalls": calls, **extra}


FROM_FIND: Json = {"$from": "find", "pointer": "/to"}
ITEM: Json = {"$from": "item"}


@requirement("plan:promises")
@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((ASK, mail()), None),
        ((FIND, ASK, mail(FROM_FIND)), None),
        ((FIND, ASK, mail(ITEM, forEach=FROM_FIND)), None),
        ((ASK, mail(ITEM, forEach=["a", "b"])), None),
        ((ASK, FIND, mail(FROM_FIND)), "let step 'ask' come after step 'find', from which its calls take values"),
        (({**ASK, "dependencies": []}, {**FIND, "dependencies": []}, mail(FROM_FIND)), "come after step 'find'"),
        ((ASK, mail({"$from": "ask", "pointer": "/to"})), "give step 'mail' its toolCalls, with arguments that are"),
        ((ASK, FIND, mail(ITEM, forEach=FROM_FIND)), LOOP_ADVICE),
        (
            (
                ASK,
                mail(
                    forEach=["a"],
                    toolCalls=[
                        {"toolName": "find_orders", "arguments": {}},
                        {"toolName": "send_email", "arguments": {"to": {"$from": "item", "call": 0}}},
                    ],
                ),
            ),
            LOOP_ADVICE,
        ),
        ((ASK, {"id": "mail", "description": "x", "requiredTools": ["send_email"]}), "give step 'mail' its toolCalls"),
        ((ASK, mail(requiredTools=["send_email", "find"])), "give step 'mail' its toolCalls"),
        # Nobody is asked about these anyway.
        ((ASK, {"id": "mail", "description": "x", "requiredTools": ["find_orders"]}), None),
        ((ASK, {"id": "mail", "description": "Think about it"}), None),
    ],
)
def test_a_confirmation_of_calls_that_are_not_known_when_it_asks_is_warned_about(
    steps: tuple[Json, ...], said: str | None
) -> None:
    warnings = warn(*steps)
    if said is None:
        assert warnings == ()
    else:
        [warning] = warnings
        assert "each call that needs a person will still be asked about; to ask once, " in warning and said in warning
