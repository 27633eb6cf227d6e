"""What stands for a value that the writer did not know, and what only looks like it."""

import pytest
from pydantic import JsonValue

from planwarden.agent.core.placeholders import MAX_SEARCHED_CHARS, MAX_TEXT_CHARS, find_placeholders
from tests.requirements import requirement

PLACEHOLDERS = (
    "{{x}}",
    "{{ customer.name }}",
    "${x}",
    "{name}",
    "<id>",
    "<customer id from step 1>",
    "<your-email@domain>",
    "[AMOUNT]",
    "[Your Name]",
    "[insert date here]",
    "TODO",
    "TBD: ask Ann",
    "FIXME",
    "to be determined",
    "CHANGE_ME",
    "YOUR_API_KEY_HERE",
    "insert_email_here",
    "Lorem ipsum dolor sit amet",
    "the result of step 1",
    "example.com",
    "https://example.org/invoice/7",
    "ann@example.com",
    "your-email@company.com",
    "your.name@corp.io",
    "Dear {{name}},\n\nyour invoice 7 is overdue.",
    "Invoice-{{number}}.pdf",
    "Dear {name}",
    "Hi {first_name}, you owe {amount} EUR.",
    "Dear [Your Name], please pay [AMOUNT] by Friday.",
    "Best regards,\n[Your Name]\n[Your Company]",
    "Please pay <total from step 2> EUR.",
    "Write to your-email@domain.com if you have questions.",
)
TEXTS = (
    "Dear Ann, you owe 5 EUR.",
    "Write to us at example.com if you have questions.",
    "The todo list of Ann",
    "We are at your place on Friday; bring the [A-Z] folder.",
    '{"name": "Ann", "tags": ["{x}"]}',
    '["AMOUNT"]',
    "body { color: red } .a{margin:0}",
    ".card{display:flex;}\n.card .name{color:#333;}",
    "name = 'Ann'\nprint(f\"Dear {name}, you owe {amount}\")\n",
    "'Dear {}'.format(name)",
    "const greet = (name) => `Dear ${name},`;",
    r"\frac{a}{b} + \textbf{Name}",
    "${HOME}",
    'echo "Hello ${name}"',
    "for f in ${files}; do rm ${f}; done",
    "{% for x in xs %}{{ x }}{% endfor %}",
    "<p>Dear {{ name }},</p>",
    "<!DOCTYPE html>",
    "<?xml version='1.0'?>",
    "<https://acme.io/x>",
    "<ann@acme.io>",
    "https://api.acme.io/customers/{id}",
    "GET /users/{id}",
    "${{ secrets.TOKEN }}",
    "[URGENT] Server down",
    "See [your account](https://acme.io/account).",
    "- [x] done\n- [ ] open",
    "row[NAME] = 1",
    "SELECT name FROM t WHERE id = {id}",
    "^[A-Z]{3}[0-9]{2}$",
    "2 < 3 and 5 > 4",
    "x" * 5000,
    "yours@acme.io",
    "The result of step changes is good.",
)
NAMED_AS_CODE = (
    ("command", "echo {{name}}"),
    ("template", "Dear {name}"),
    ("email_template", "Dear {{name}},"),
    ("sql", "{table}"),
    ("html", "<name>"),
)


@requirement("plan:placeholders")
@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_a_placeholder_is_found_with_its_path(text: str) -> None:
    [sentence] = find_placeholders({"to": [{"body": text}]})
    assert sentence.startswith("/to/0/body ")


@requirement("plan:placeholders")
@pytest.mark.parametrize(("name", "text"), [*(("content", text) for text in TEXTS), *NAMED_AS_CODE])
def test_text_code_and_markup_are_no_placeholders(name: str, text: str) -> None:
    assert list(find_placeholders({name: text})) == []


@requirement("plan:placeholders")
def test_values_of_bindings_and_templates_are_no_placeholders() -> None:
    bound: JsonValue = {"$from": "find", "pointer": "/{name}"}
    assert list(find_placeholders({"to": bound, "body": {"$text": "Dear {n}", "with": {"n": bound}}})) == []


def test_a_search_ends_after_so_many_characters_that_may_hold_a_placeholder() -> None:
    texts: dict[str, JsonValue] = {
        str(n): "your " * (MAX_TEXT_CHARS // 5) for n in range(MAX_SEARCHED_CHARS // MAX_TEXT_CHARS)
    }
    assert list(find_placeholders({"first": "TODO", **texts})) != []
    assert list(find_placeholders({**texts, "last": "TODO"})) == []
