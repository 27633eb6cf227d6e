"""What a plan is warned about: placeholders for values that nobody knew, and what it seems to promise and does not."""

import time

import pytest
from pydantic import JsonValue

from planwarden.agent.core.binding.placeholders import find_empty_lists, find_placeholders
from planwarden.agent.core.plan.plan import MAX_TEXT_CHARS, ToolFacts
from tests.kit import ITEM, Json, parse_plan, requirement

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
        ("Compare both. Then delete the smaller one", "nothing will be deleted"),
        ("Check the total; refund the customer if it is too high", "nothing will be refunded"),
        ("E-mail the report", "nothing will be e-mailed"),
        ("Call send_email for each customer", "speaks of send_email, but promises no tool; it will not be called"),
        ("Summarise what was sent", None),
        ("Decide whether to send a reminder or to pay at once", None),
        ("Do not send anything; explain why", None),
        ("Draft an e-mail, a post and a book review", None),
        ("Use the result of find_orders", None),
    ],
)
def test_a_step_that_speaks_of_an_effect_and_has_no_tools_is_warned_about(description: str, said: str | None) -> None:
    warnings = warn({"id": "a", "description": description})
    if said is None:
        assert warnings == ()
    else:
        assert len(warnings) == 1 and warnings[0].startswith("step 'a' speaks of ") and said in warnings[0]


@requirement("plan:promises")
@pytest.mark.parametrize("part", ["\n", "\n ", "a.b", " , ", ". "])
def test_the_time_that_a_description_takes_grows_only_with_its_length(part: str) -> None:
    began = time.thread_time()
    warn({"id": "a", "description": f"call {part * (MAX_TEXT_CHARS // 4)}"[:MAX_TEXT_CHARS]})
    assert time.thread_time() - began < 1


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
MAIL: Json = {"toolName": "send_email", "arguments": {"to": "ann@acme.io"}}
LATE_READ: Json = {"toolName": "find_orders", "arguments": {"of": FROM_FIND}}


@requirement("plan:promises")
@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((ASK, mail()), None),
        ((ASK, FIND, mail(FROM_FIND)), "let step 'ask' come after step 'find', from which its calls take values"),
        ((ASK, mail({"$from": "ask", "pointer": "/to"})), "give step 'mail' its toolCalls, with arguments that are"),
        ((ASK, FIND, mail(ITEM, forEach=FROM_FIND)), LOOP_ADVICE),
        ((ASK, {"id": "mail", "description": "x", "requiredTools": ["send_email"]}), "give step 'mail' its toolCalls"),
        # Nobody is asked about these anyway.
        ((ASK, {"id": "mail", "description": "x", "requiredTools": ["find_orders"]}), None),
        ((ASK, mail(requiredTools=["send_email", "find_orders"])), None),
        ((ASK, FIND, mail(toolCalls=[MAIL, LATE_READ])), None),
    ],
)
def test_a_confirmation_of_calls_that_are_unknown_is_warned_about(steps: tuple[Json, ...], said: str | None) -> None:
    warnings = warn(*steps)
    assert len(warnings) == (said is not None)
    for warning in warnings:
        assert "each call that needs a person will still be asked about; to ask once, " in warning
        assert said is not None and said in warning


PLACEHOLDERS = (
    "${x}",
    "{name}",
    "<customer id from step 1>",
    "[AMOUNT]",
    "[insert date here]",
    "TBD: ask Ann",
    "CHANGE_ME",
    "YOUR_API_KEY_HERE",
    "Lorem ipsum dolor sit amet",
    "the result of step 1",
    "ann@example.com",
    "ann@acme.io, ben@example.com; Eve <eve@example.org>",
    '"Ash, Ann" <ann@mail.example.com>',
    "<ann@example.com>",
    "https://example.com.",
    "//example.com/x",
    "ftp://example.com/x y",
    "https://ann:secret@example.com:8080/",
    "<<name>>",
    "Hello [Name],\n\nyour invoice 7 is overdue.",
    "your-email@company.com",
    "Dear {{name}},\n\nyour invoice 7 is overdue.",
    "Please pay <total from step 2> EUR.",
    "Dear {name}, please pay at https://acme.io/i?x=1 by 12/05; write to billing_team@acme.io.",
    'Hello {name}, the "Gold" plan [1] ends soon.',
    "<p>Dear {{name}},</p><p>please pay.</p>",
    "Hello {find.invoices[0].customer}, pay",
    "Dear {{find:/invoices/0}}, pay",
    "Dear {{{name}}}, pay",
    "Pay [TOTAL AMOUNT] or [XX] now",
    "invoice {number} is overdue",
    "\u2026 {x}",
)
TEXTS = (
    "Dear Ann, you owe 5 EUR.",
    "Write to us at example.com if you have questions.",
    '{"name": "Ann", "tags": ["{x}"]}',
    "body { color: red } .a{margin:0}",
    "name = 'Ann'\nprint(f\"Dear {name}, you owe {amount}\")\n",
    r"\frac{a}{b} + \textbf{Name}",
    "${HOME}",
    "<p>Dear {{ name }},</p>",
    "<https://acme.io/x>",
    "https://api.acme.io/customers/{id}",
    "GET https://api.acme.io/customers/{id}/orders/{order}",
    'Set "greeting" to {name} in a/b.toml',
    "Run {cmd}; rm -rf build",
    "if x:\n    say(f'Hi {name}') # see a/b",
    "Use `Dear {name}` as the greeting",
    "See [your account](https://acme.io/account).",
    "SELECT name FROM t WHERE id = {id}",
    "^[A-Z]{3}[0-9]{2}$",
    "x" * 5000,
    "yours@acme.io",
    "https://example.com@acme.io/",
    "Write to ann@example.com, or to Ben.",
    "Dear TODO,",
    "Hello [Ann](https://acme.io/ann)",
    "ann@acme.io, ben@example.com.acme.io",
)
NAMED_AS_CODE = (("template", "Dear {name}"), ("html", "<name>"), ("content", "<p>Dear {{name}}, pay</p>"))
ANOTHER_ADDRESS = "Write to superuser@company.com and ann@example.com"
BOUND: Json = {"$from": "find", "pointer": "/{name}"}
TAKEN: Json = {"$from": "find", "default": "Pay [AMOUNT]"}
TEMPLATES = (
    ("Mail each customer: 'Dear [Name], you owe [AMOUNT].'", "Dear [Name], you owe [AMOUNT]."),
    ("Send 'Dear {{name}}, pay' to all late payers", "Dear {{name}}, pay"),
    ("Pay the invoice to <iban>", "<iban>"),
    ("Clean the TODO list: all", "TODO"),
    ("Note: TODO: mail [NAME] now", "TODO: mail [NAME]"),
    ("Note: TODO: call Annabel", "TODO: call Ann"),
    (ANOTHER_ADDRESS, "user@company.com"),
    (ANOTHER_ADDRESS, "ann@example.com, ben@example.com"),
)


def fill(text: str) -> Json:
    return {"to": TAKEN, "body": {"$text": text, "with": {"n": BOUND}}}


@requirement("plan:placeholders")
@pytest.mark.parametrize(
    ("arguments", "goal", "paths"),
    [
        *(({"to": [{"body": text}]}, None, ["/to/0/body"]) for text in PLACEHOLDERS),
        *(({"content": text}, None, []) for text in TEXTS),
        *(({name: text}, None, []) for name, text in NAMED_AS_CODE),
        # A template of the goal, or another address than that of the goal.
        *(({"body": value}, goal, ["/body"]) for goal, value in TEMPLATES),
        ({"to": BOUND, "body": {"$text": "Dear {n}", "with": {"n": BOUND}}}, None, []),
        (fill("Dear {n}, pay [AMOUNT]"), None, ["/to", "/body"]),
        (fill("Dear {{name}}, {n} waits"), None, ["/to", "/body"]),
    ],
)
def test_placeholders_are_found_with_their_paths_and_text_code_markup_and_bindings_are_none(
    arguments: Json, goal: str | None, paths: list[str]
) -> None:
    assert [sentence.split(" ")[0] for sentence in find_placeholders(arguments, [goal, {}])] == paths


@requirement("plan:placeholders")
def test_every_placeholder_of_a_text_is_named() -> None:
    body = "Dear {name}, pay [AMOUNT] to {{bank}}, {{bank}}, by {date}, {a}, {b}, {c}"
    [sentence] = find_placeholders({"body": body})
    assert "the placeholders '{{bank}}', '[AMOUNT]', '{name}', '{date}', '{a}' and 2 more in it" in sentence


GOALS = (
    ("Read https://example.com/ and tell its title", "https://example.com/"),
    ("Note: TODO: call Ann, then close it", "TODO: call Ann"),
    ("Write to ann@example.com and ben@example.com", "ann@example.com, ben@example.com"),
    ("Write to your-team@acme.io", "Ask your-team@acme.io, please"),
)


@requirement("plan:placeholders")
@pytest.mark.parametrize(("goal", "value"), GOALS)
def test_an_address_or_a_note_of_the_goal_or_the_inputs_is_no_placeholder(goal: str, value: str) -> None:
    assert list(find_placeholders({"body": value})) != []
    assert list(find_placeholders({"body": value}, [goal, {}])) == []
    assert list(find_placeholders({"body": value}, [None, {"task": {"text": goal}}])) == []


@requirement("plan:placeholders")
def test_the_search_takes_no_longer_for_a_goal_full_of_the_same_words() -> None:
    for words in ("{{a}} ", "TODO: a ", "a@example.com "):
        texts = list[JsonValue]([words * (9_900 // len(words))] * 6 + [words] * 5_000)
        begin = time.thread_time()
        list(find_placeholders({"body": texts}, ["x" + words.strip() * 10_000, {}]))
        assert time.thread_time() - begin < 2


EMPTY_LISTS: list[tuple[JsonValue, list[JsonValue], list[str]]] = [
    ({"ids": [], "cc": []}, [{"data": {"rows": [{"id": 1}]}}], ["/ids", "/cc"]),
    ({"filter": [{"ids": []}]}, [[1]], ["/filter/0/ids"]),
    ({"ids": []}, [1, "text", {"ids": [], "rows": {}}, []], []),
    ({"ids": {"$from": "find", "default": []}, "points": [[], [1]]}, [[1]], []),
]


@requirement("plan:placeholders")
@pytest.mark.parametrize(("arguments", "results", "paths"), EMPTY_LISTS)
def test_empty_lists_are_faults_where_a_result_has_a_list_with_entries(
    arguments: JsonValue, results: list[JsonValue], paths: list[str]
) -> None:
    assert [fault.split(" is empty")[0] for fault in find_empty_lists(arguments, results)] == paths
