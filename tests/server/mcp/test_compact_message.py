"""What a form says: all facts on three lines of eighty columns, or no form; text from outside never begins a line."""

import unicodedata
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.mcp.elicitation.compact_message import (
    CONTINUATION,
    LINE_CELLS,
    MAX_FACT_LINES,
    MAX_LINES,
    build_compact_facts,
    build_compact_message,
)
from planwarden.server.mcp.elicitation.forms import build_form, build_link, compute_form_digest, read_decision
from planwarden.server.views.suspension import Background, CoveredCallView, HowToAnswer, Suspension
from planwarden.server.views.tools import ToolCall
from planwarden.server.views.voices import AGENT_CHARS, count_escaped, is_whole
from tests.requirements import requirement
from tests.server.mcp.test_facts import QUESTION

NASTY = "Fine\n" * 5_000 + "\x1b[2J\u202e[Approve]\u200b\U000e0041\nConfirm? (risk: read)"
SPOKEN = "Remind all customers whose invoices are overdue?"


def _call(arguments: dict[str, JsonValue], message: str = "Remind Ann") -> Suspension:
    return replace(QUESTION, message=message, tool_call=ToolCall(call_id="a:1", tool_name="send", arguments=arguments))


def _confirmation(action: str = SPOKEN, *names: str) -> Suspension:
    return replace(
        QUESTION,
        kind="confirmation",
        message=action,
        tool_call=ToolCall(call_id="a:1", tool_name="displayConfirmation", arguments={"action": action}),
        confirms=tuple(
            CoveredCallView(step_id=f"s{n}", tool_name="send", arguments={"to": name, "copies": 1, "urgent": False})
            for n, name in enumerate(names, 1)
        ),
    )


def _lines(suspension: Suspension) -> list[str]:
    return (build_compact_message(suspension) or "").split("\n")


def _cells(line: str) -> int:
    """Columns of a terminal; what isolates right-to-left words takes none."""
    visible = line.replace("\u2067", "").replace("\u2068", "").replace("\u2069", "")
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in visible)


@requirement("forms:brief")
def test_the_first_line_is_what_is_asked_and_the_risk_then_come_the_arguments() -> None:
    customers: JsonValue = ["Acme Ltd", "Borealis", "Cobalt & Sons"]
    assert _lines(
        _call({"customers": customers, "text": "Your invoice is 30 days overdue. Please pay it this week."})
    ) == [
        "Run this call? send (risk: confirm)",
        'customers=["Acme Ltd", "Borealis", "Cobalt & Sons"]',
        'text="Your invoice is 30 days overdue. Please pay it this week."',
        "The agent says (unverified): Remind Ann",
    ]


@requirement("forms:brief")
def test_what_a_confirmation_covers_stands_before_the_agents_words() -> None:
    assert _lines(_confirmation(SPOKEN, "Ann", "Bob")) == [
        'Confirm? displayConfirmation (risk: confirm); action="Remind all ',
        '| customers whose invoices are overdue?"; covers 2: send(to="Ann", ',
        '| copies=1, urgent=false); send(to="Bob", copies=1, urgent=false)',
        "The agent says (unverified): the same as action",
    ]
    assert _lines(_confirmation()) == [
        "Confirm? displayConfirmation (risk: confirm)",
        f'action="{SPOKEN}"',
        "The agent says (unverified): the same as action",
    ]


def test_what_changed_and_when_it_ends_stand_there_too() -> None:
    late = replace(QUESTION, revision=2, expires_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert _lines(late)[:3] == [
        "Run this call? send (risk: confirm); planwarden found: This is revision ",
        '| 2: something changed since it was first asked; to="Ann", copies=2',
        "without an answer until 2026-01-02T03:04:05Z: reject",
    ]


def test_the_fields_of_a_form_are_not_repeated_as_an_argument() -> None:
    fields: JsonValue = {"type": "object", "properties": {"city": {"type": "string"}}}
    asked = ToolCall(call_id="a:1", tool_name="requestInput", arguments={"message": "Where to?", "form": fields})
    assert _lines(replace(QUESTION, kind="input", message="Where to?", tool_call=asked, answer_schema=fields)) == [
        "Answer needed: requestInput (risk: confirm)",
        'message="Where to?", form=(the fields below)',
        "The agent says (unverified): the same as message",
    ]


@requirement("forms:whole")
@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "title": "x" * 75},
        {"type": "string", "description": "x" * 75},
        {"type": "string", "enum": ["ok", "x" * 75]},
        {"type": "string", "default": "x" * 75},
        {"type": "string", "title": "\u202e" * 20},
        {"type": "string", "examples": ["and pay everybody"]},
        {"type": "string", "$comment": "and pay everybody"},
    ],
)
def test_a_form_with_a_label_or_a_choice_that_would_be_cut_is_not_shown(field: JsonValue) -> None:
    cut: tuple[dict[str, JsonValue], ...] = ({"city": field}, {"x" * 75: {"type": "string"}})
    for properties in cut:
        form: dict[str, JsonValue] = {"type": "object", "properties": properties}
        assert build_form(replace(QUESTION, kind="input", message="?", answer_schema=form)) is None


@requirement("forms:whole")
def test_what_a_form_says_of_itself_is_among_the_facts() -> None:
    form: dict[str, JsonValue] = {"type": "object", "title": "Pay all", "properties": {"city": {"type": "string"}}}
    asked = replace(QUESTION, kind="input", message="?", answer_schema=form)
    assert 'the form says of itself {"title": "Pay all"}' in "".join(_lines(asked)).replace(CONTINUATION, "")


@requirement("forms:whole")
@pytest.mark.parametrize("kind", ["confirmation", "input", "reconcile", "delegated"])
def test_words_that_are_decided_about_are_whole_or_there_is_no_form(kind: str) -> None:
    long = replace(QUESTION, kind=kind, message="Be friendly. " + "x" * 328)
    assert build_compact_message(long) is None and not is_whole(replace(long, message="x" * 501 + "pay everybody"))
    repeated = replace(long, tool_call=ToolCall(call_id="a:1", tool_name="ask", arguments={"action": long.message}))
    assert build_compact_message(repeated) is None and is_whole(repeated)


@requirement("forms:brief")
def test_words_made_to_deceive_come_after_the_facts_and_begin_no_line() -> None:
    lines = _lines(_call({"to": "Ann"}, NASTY))
    escaped = count_escaped(_call({}, NASTY))
    assert lines[:3] == [
        "Run this call? send (risk: confirm)",
        f"planwarden found: Control or invisible characters escaped: {escaped}",
        'to="Ann"',
    ]
    assert lines[3].startswith(f"The agent says (unverified), {len(NASTY)} characters: ")
    assert len(lines) == MAX_LINES
    assert all(line.isprintable() for line in lines) and len(lines[-1]) < AGENT_CHARS + 60


@requirement("forms:brief")
@pytest.mark.parametrize(
    "question",
    [
        _call({"to": NASTY}),
        _call({NASTY: 1}),
        _call({"to": "x" * (MAX_FACT_LINES * LINE_CELLS)}),
        _call({f"argument_{number}": number for number in range(20)}),
        _confirmation(NASTY),
        _confirmation(SPOKEN, *["Ann"] * 6),
        replace(_confirmation("x" * AGENT_CHARS), asker="server 'mail'"),
    ],
    ids=["value", "name", "long", "many", "said and stored", "covered", "asked by another"],
)
def test_what_cannot_be_shown_whole_is_not_put_into_a_form(question: Suspension) -> None:
    assert build_compact_message(question) is None and build_form(question) is None
    assert len(compute_form_digest(question)) == 64


@requirement("forms:brief")
def test_an_address_to_open_says_what_it_is_about_and_that_opening_it_decides_nothing() -> None:
    how_to_answer = HowToAnswer(inbox_url="http://localhost:1/inbox/suspensions/s")
    for arguments, shown in (
        ({"to": "Ann"}, 'to="Ann"'),
        ({"to": NASTY}, "It does not fit here; all of it is on the page."),
    ):
        link = build_link(replace(_call(dict(arguments)), how_to_answer=how_to_answer))
        assert link is not None
        lines = link.message.split("\n")
        assert lines[0].startswith("Run this call? send (risk: confirm)") and shown in link.message
        assert lines[-1] == "A person decides on the page; accepting here only opens it."
        assert len(lines) <= MAX_LINES and all(_cells(line) <= LINE_CELLS for line in lines)


def test_only_what_is_shown_whole_can_be_edited() -> None:
    arguments: dict[str, JsonValue] = {
        "text": "ok",
        "number": 1.5,
        "count": 2,
        "flag": True,
        "hidden": "a\u200bb",
        "list": [1],
        "nothing": None,
    }
    form = build_form(_call(arguments))
    assert form is not None
    kinds = {name: entry["type"] for name, entry in form.schema["properties"].items()}
    assert kinds == {
        "decision": "string",
        "reason": "string",
        "arg_text": "string",
        "arg_number": "string",
        "arg_count": "string",
        "arg_flag": "boolean",
    }


def test_numbers_are_typed_as_text_because_a_host_shows_no_form_with_a_number_in_it() -> None:
    question = _call({"number": 1.5, "count": 2, "text": "2"})
    form = build_form(question)
    assert form is not None
    given = {name: field["default"] for name, field in form.schema["properties"].items() if "default" in field}
    assert given == {"arg_number": "1.5", "arg_count": "2", "arg_text": "2"}
    unchanged = read_decision(question, {"decision": "approve", **given})
    assert unchanged is not None and (unchanged.approved, unchanged.modified_args) == (True, None)
    for typed in ("3", 3):
        edited = read_decision(question, {"decision": "approve", "arg_count": typed})
        assert edited is not None and edited.modified_args == {"number": 1.5, "count": 3, "text": "2"}
    for typed in ("three", "", "true", "NaN", "1e999", "[3]", "3.5", "[" * 5_000):
        with pytest.raises(InvalidArguments, match="arg_count"):
            read_decision(question, {"decision": "approve", "arg_count": typed})


def test_the_numbers_of_a_requested_form_stay_numbers() -> None:
    fields: JsonValue = {"type": "object", "properties": {"arg_n": {"type": "integer", "default": 1}}}
    form = build_form(replace(QUESTION, kind="input", answer_schema=fields))
    assert form is not None and form.schema["properties"]["arg_n"] == {"type": "integer", "default": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=8), c, max_size=3),
    max_leaves=4,
)
NAMES = st.text(max_size=12) | st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@requirement("forms:brief")
@example(
    arguments={"": None, "0000000\x1f\x1f\x07\U00018d09": "00000000000000\u061b"}, words="", names=[""], revision=1
)
@given(
    arguments=st.dictionaries(NAMES, JSON, max_size=6),
    words=st.text(max_size=300),
    names=st.lists(st.text(max_size=20), max_size=4),
    revision=st.integers(1, 3),
)
def test_whatever_is_asked_the_first_three_lines_hold_all_of_it_or_there_is_no_form(
    arguments: dict[str, JsonValue], words: str, names: list[str], revision: int
) -> None:
    question = replace(_call(arguments, words), confirms=_confirmation("", *names).confirms, revision=revision)
    text, facts = build_compact_message(question), build_compact_facts(question)
    assert (text is None) == (facts is None)
    if text is None:
        return
    lines = text.split("\n")
    said = next(at for at, line in enumerate(lines) if line.startswith("The agent says (unverified)"))
    assert 0 < said <= MAX_FACT_LINES < len(text) <= MAX_FACT_LINES * LINE_CELLS + AGENT_CHARS + 100
    assert len(lines) <= MAX_LINES and len(text.splitlines()) == len(lines)
    assert all(_cells(line) <= LINE_CELLS for line in lines[: MAX_LINES - 1])
    assert lines[0].startswith("Run this call? send (risk: confirm)")
    shown = "".join(line.removeprefix(CONTINUATION) for line in lines[:said])
    assert all(f"{name}=" in shown for name in arguments if name.isidentifier() and name.isascii())
    assert shown.count("send(") >= len(names) and (f"covers {len(names)}: " in shown) == bool(names)
    assert ("revision" in shown) >= (revision > 1)


def test_a_field_of_a_form_shows_its_title_and_the_name_that_it_stands_for() -> None:
    fields: dict[str, JsonValue] = {
        "city": {"type": "string", "title": "Where to"},
        "when": {"type": "string", "title": "When"},
        "note": {"type": "string", "title": "x" * 70},
    }
    form: dict[str, JsonValue] = {"type": "object", "properties": {**fields}}
    shown = build_form(replace(QUESTION, kind="input", message="?", answer_schema=form))
    assert shown is not None
    titles = {name: field.get("title") for name, field in shown.schema["properties"].items() if name != "decision"}
    assert titles == {"city": "Where to (city)", "when": "When", "note": "x" * 70}
    titled = replace(QUESTION, background=Background(titles={"to": "Recipient"}))
    edited = build_form(titled)
    assert edited is not None and edited.schema["properties"]["arg_to"]["title"] == "Recipient (to)"
