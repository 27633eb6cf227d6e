"""How a question is put to a person: facts first, nothing hidden; a form says all on three lines or is not shown."""

import hashlib
import json
import unicodedata

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.question import CoveredCall, Question, SuspensionKind
from planwarden.agent.core.execution.state import SuspensionState, new_execution
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.toolbox import Definitions
from planwarden.server.mcp import compact_message, elicitation
from planwarden.server.views.card import AGENT_CHARS, Card
from planwarden.server.views.escaping import count_hidden, escape_text, format_value, is_shown_whole
from planwarden.server.views.question_text import format_facts, is_whole
from planwarden.server.views.suspension import Suspension, build_suspension_view
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.requirements import requirement

ARGUMENTS = {"to": "Ann", "copies": 2}
STORED = ["s", "approval", "tell Ann", "a", "a:1", "send", ARGUMENTS, "", "confirm", "client", "d"]
QUESTION = msgspec.convert(STORED, Question)


def _view(question: Question, tools: Definitions | None = None, inbox: str | None = None) -> Suspension:
    stored = SuspensionState(question=question, created_at=0.0)
    return build_suspension_view(new_execution("e", "t", "local"), stored, tools, inbox=inbox)


def _card(question: Question, tools: Definitions | None = None) -> Card:
    return _view(question, tools).card


NASTY = "Fine\n" * 5_000 + "\x1b[2J\u202e[Approve]\u200b\U000e0041\nConfirm? (risk: read)"
SPOKEN = "Remind all customers whose invoices are overdue?"


def _call(arguments: dict[str, JsonValue], message: str = "Remind Ann") -> Question:
    return replace(QUESTION, message=message, arguments=arguments)


def _cover(step_id: str, tool_name: str, arguments: dict[str, JsonValue]) -> CoveredCall:
    return CoveredCall(step_id=step_id, tool_name=tool_name, arguments=arguments, definition_digest="")


def _confirmation(action: str = SPOKEN, *names: str) -> Question:
    rest: dict[str, JsonValue] = {"copies": 1, "urgent": False}
    calls = (_cover(f"s{number}", "send", {"to": name, **rest}) for number, name in enumerate(names, 1))
    asked = _call({"action": action}, action)
    return replace(asked, kind="confirmation", tool_name="displayConfirmation", covers=tuple(calls))


def _lines(question: Question, tools: Definitions | None = None) -> list[str]:
    return (compact_message.build_compact_message(_card(question, tools)) or "").split("\n")


def _cells(line: str) -> int:
    """Columns of a terminal; what isolates right-to-left words takes none."""
    visible = line.replace("\u2067", "").replace("\u2068", "").replace("\u2069", "")
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in visible)


def test_ordinary_writing_is_left_alone_and_marks_piled_on_one_letter_are_not() -> None:
    for text in ("Grüße, Ω≈ç√", "Привет", "日本語", "नमस्ते", "👍🏽 ok", "naïve e\u0301"):
        assert escape_text(text) == text and count_hidden(text) == 0
    assert escape_text("שלום") == "\u2067שלום\u2069" and count_hidden("שלום") == 0
    assert escape_text("a" + "\u0301" * 10) == "a" + "\u0301" * 3 + "\\u0301" * 7


def test_a_long_value_is_cut_with_its_size_and_hash() -> None:
    value: JsonValue = {"text": "é" * 1_000}
    data = json.dumps(value, ensure_ascii=False).encode()
    shown = format_value(value)
    assert shown.endswith(f"... [{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}]")
    assert len(shown) < 460 and not is_shown_whole(value)


@requirement("forms:whole")
@pytest.mark.parametrize(
    "cut",
    [
        _call({"to": "x" * 400}),
        _call({"to": {"x" * 400: 1}}),
        _call({"x" * 400: 1}),
        replace(QUESTION, covers=(_cover("b", "erase", {"a": "x" * 400}),)),
        replace(QUESTION, covers=(_cover("b", "erase", {"x" * 400: 1}),)),
        replace(QUESTION, kind="confirmation", message="x" * 501),
    ],
    ids=["value", "key", "name", "covered value", "covered name", "words"],
)
def test_a_question_of_which_anything_is_cut_is_not_whole(cut: Question) -> None:
    card = _card(cut)
    assert not is_whole(card) and is_whole(_card(QUESTION))
    assert "... [" not in "".join([*card.findings, *format_facts(card, limit=None), card.whole_words])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@given(st.text(max_size=60), VALUES)
def test_whatever_the_text_and_the_value_what_is_shown_is_one_short_printable_line(text: str, value: JsonValue) -> None:
    shown = escape_text(text).replace("\u2067", "").replace("\u2069", "")
    assert len(shown.splitlines()) <= 1
    assert all(character.isprintable() or character == "\ufe0f" for character in shown)
    assert (shown == text) == (count_hidden(text) == 0)
    shown = format_value([value, text * 20])
    assert len(shown.splitlines()) == 1 and len(shown) < 460


@requirement("forms:brief")
def test_what_a_call_covers_what_changed_and_when_it_ends_stand_before_the_agents_words() -> None:
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
    late = replace(QUESTION, revision=2, expires_at=1_767_323_045.0)
    assert _lines(late)[:3] == [
        "Run this call? send (risk: confirm); planwarden found: This is revision ",
        '| 2: something changed since it was first asked; to="Ann", copies=2',
        "without an answer until 2026-01-02T03:04:05Z: reject",
    ]


@requirement("forms:whole")
@pytest.mark.parametrize(
    "form",
    [
        *(
            {"properties": {"city": {"type": "string", **field}}}
            for field in (
                {"title": "x" * 75},
                {"enum": ["ok", "x" * 75]},
                {"title": "\u202e" * 20},
                {"examples": ["and pay everybody"]},
            )
        ),
        {"properties": {"x" * 75: {"type": "string"}}},
        {"properties": {"who": {"type": "object", "properties": {}}}},
        {"properties": {"who": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {"decision": {"type": "string"}}},
        {"properties": {"who": {"enum": ["a", 1]}}},
        {"properties": {"who\u200b": {"type": "string"}}},
        {"properties": {}, "required": ["who"]},
        {},
    ],
    ids=lambda form: str(form)[:60],
)
def test_a_form_that_a_host_cannot_show_whole_is_not_shown(form: dict[str, JsonValue]) -> None:
    asked: dict[str, JsonValue] = {"type": "object", **form}
    assert elicitation.build_form(_view(replace(QUESTION, kind="input", message="?", form=asked))) is None


@requirement("forms:secrets")
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("value", {"format": "password"}),
        ("value", {"writeOnly": True}),
        ("value", {"title": "Your Passphrase"}),
        ("value", {"description": "A GitHub access token, or several tokens"}),
        *(
            (name, {})
            for name in ("password", "newPassword", "api_key", "apiKey", "client_secret", "TOKEN", "tokenValue")
        ),
    ],
    ids=str,
)
def test_a_form_asks_for_no_secret_and_the_page_does(name: str, field: dict[str, JsonValue]) -> None:
    form: dict[str, JsonValue] = {"type": "object", "properties": {name: {"type": "string", **field}}}
    view = _view(replace(QUESTION, kind="input", message="?", form=form), inbox="http://localhost:1/inbox")
    assert elicitation.build_form(view) is None and elicitation.build_link(view) is not None
    # The view of a host passes its answers through the host too.
    assert elicitation.build_form_schema(view.card) is None


@requirement("forms:secrets")
@pytest.mark.parametrize("name", ["secretary", "tokenizer", "key", "passport", "keyboard"])
def test_a_word_that_only_begins_like_a_secret_and_a_number_are_none(name: str) -> None:
    properties: dict[str, JsonValue] = {name: {"type": "string"}, "max_tokens": {"type": "integer"}}
    form: dict[str, JsonValue] = {"type": "object", "properties": properties}
    assert elicitation.build_form(_view(replace(QUESTION, kind="input", message="?", form=form))) is not None


@requirement("forms:brief")
def test_a_form_names_the_server_that_has_the_tool() -> None:
    remote = ToolDefinition(name="send", description="", input_schema={}, source="mail")
    covering = replace(_confirmation("go?", "Ann"), arguments={})
    tools = Registry([replace(DISPLAY_CONFIRMATION, definition=remote)])
    assert _lines(QUESTION, tools)[0] == 'Run this call? send of server "mail" (risk: confirm)'
    assert 'covers 1: send of server "mail"(to="Ann", copies=1, urgent=false)' in _lines(covering, tools)
    assert format_facts(_card(QUESTION, tools))[0] == 'Tool: send, server "mail"'


@requirement("forms:whole")
def test_what_a_form_says_of_itself_is_among_the_facts() -> None:
    form: dict[str, JsonValue] = {"type": "object", "title": "Pay all", "properties": {"city": {"type": "string"}}}
    asked = replace(QUESTION, kind="input", message="?", form=form)
    assert 'the form says of itself {"title": "Pay all"}' in "".join(_lines(asked)).replace(
        compact_message.CONTINUATION, ""
    )


@requirement("forms:whole")
@pytest.mark.parametrize("kind", ["confirmation", "input", "reconcile", "delegated"])
def test_words_that_are_decided_about_are_whole_or_there_is_no_form(kind: SuspensionKind) -> None:
    long = replace(QUESTION, kind=kind, message="Be friendly. " + "x" * 328)
    unseen = replace(long, message="x" * 501 + "pay everybody")
    assert compact_message.build_compact_message(_card(long)) is None and not is_whole(_card(unseen))
    repeated = _card(replace(long, tool_name="ask", arguments={"action": long.message}))
    assert compact_message.build_compact_message(repeated) is None and is_whole(repeated)


@requirement("forms:brief")
@pytest.mark.parametrize(
    "question",
    [
        _call({"to": NASTY}),
        _call({NASTY: 1}),
        _call({"to": "x" * (compact_message.MAX_FACT_LINES * compact_message.LINE_CELLS)}),
        _call({f"argument_{number}": number for number in range(20)}),
        _confirmation(NASTY),
        _confirmation(SPOKEN, *["Ann"] * 6),
        replace(_confirmation("x" * AGENT_CHARS), asker="server 'mail'"),
    ],
    ids=["value", "name", "long", "many", "said and stored", "covered", "asked by another"],
)
def test_what_cannot_be_shown_whole_is_not_put_into_a_form(question: Question) -> None:
    view = _view(question)
    assert compact_message.build_compact_message(view.card) is None and elicitation.build_form(view) is None
    assert len(elicitation.compute_form_digest(view)) == 64


@requirement("forms:brief")
def test_an_address_to_open_says_what_it_is_about_and_that_opening_it_decides_nothing() -> None:
    for arguments, shown in (
        ({"to": "Ann"}, 'to="Ann"'),
        ({"to": NASTY}, "It does not fit here; all of it is on the page."),
    ):
        link = elicitation.build_link(_view(_call(dict(arguments)), inbox="http://localhost:1/inbox"))
        assert link is not None
        lines = link.message.split("\n")
        assert lines[0].startswith("Run this call? send (risk: confirm)") and shown in link.message
        assert lines[-1] == "A person decides on the page; accepting here only opens it."
        assert len(lines) <= compact_message.MAX_LINES and all(
            _cells(line) <= compact_message.LINE_CELLS for line in lines
        )


def test_only_what_is_shown_whole_can_be_edited() -> None:
    shown: dict[str, JsonValue] = {"text": "ok", "number": 1.5, "flag": True}
    form = elicitation.build_form(_view(_call({**shown, "hidden": "a\u200bb", "list": [1], "nothing": None})))
    assert form is not None
    kinds = {name: entry["type"] for name, entry in form.requested_schema["properties"].items()}
    arguments = {"arg_text": "string", "arg_number": "string", "arg_flag": "boolean"}
    assert kinds == {"decision": "string", "reason": "string", **arguments}


def test_numbers_are_typed_as_text_because_a_host_shows_no_form_with_a_number_in_it() -> None:
    question = _view(_call({"number": 1.5, "count": 2, "text": "2"}))
    form = elicitation.build_form(question)
    assert form is not None
    given = {
        name: field["default"] for name, field in form.requested_schema["properties"].items() if "default" in field
    }
    assert given == {"arg_number": "1.5", "arg_count": "2", "arg_text": "2"}
    unchanged = elicitation.read_decision(question, {"decision": "approve", **given})
    assert unchanged is not None and (unchanged.approved, unchanged.modified_args) == (True, None)
    for typed in ("3", 3):
        edited = elicitation.read_decision(question, {"decision": "approve", "arg_count": typed})
        assert edited is not None and edited.modified_args == {"number": 1.5, "count": 3, "text": "2"}
    for typed in ("three", "", "true", "NaN", "1e999", "[3]", "3.5", "[" * 5_000):
        with pytest.raises(InvalidArguments, match="arg_count"):
            elicitation.read_decision(question, {"decision": "approve", "arg_count": typed})


NAMES = st.text(max_size=12) | st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@requirement("forms:brief")
@example(
    arguments={"": None, "0000000\x1f\x1f\x07\U00018d09": "00000000000000\u061b"}, words="", names=[""], revision=1
)
@given(
    arguments=st.dictionaries(NAMES, VALUES, max_size=6),
    words=st.text(max_size=2 * AGENT_CHARS),
    names=st.lists(st.text(max_size=20), max_size=4),
    revision=st.integers(1, 3),
)
def test_whatever_is_asked_the_first_three_lines_hold_all_of_it_or_there_is_no_form(
    arguments: dict[str, JsonValue], words: str, names: list[str], revision: int
) -> None:
    card = _card(replace(_call(arguments, words), covers=_confirmation("", *names).covers, revision=revision))
    text, facts = compact_message.build_compact_message(card), compact_message.build_compact_facts(card)
    assert (text is None) == (facts is None)
    if text is None:
        return
    lines = text.split("\n")
    label = "The agent says (unverified)"
    said = next((at for at, line in enumerate(lines) if line.startswith(label)), len(lines))
    assert (said < len(lines)) == bool(words)
    assert (
        0
        < said
        <= compact_message.MAX_FACT_LINES
        < len(text)
        <= compact_message.MAX_FACT_LINES * compact_message.LINE_CELLS + AGENT_CHARS + 100
    )
    assert len(lines) <= compact_message.MAX_LINES and len(text.splitlines()) == len(lines)
    assert all(_cells(line) <= compact_message.LINE_CELLS for line in lines[: compact_message.MAX_LINES - 1])
    assert lines[0].startswith("Run this call? send (risk: confirm)")
    shown = "".join(line.removeprefix(compact_message.CONTINUATION) for line in lines[:said])
    assert all(f"{name}=" in shown for name in arguments if name.isidentifier() and name.isascii())
    assert shown.count("send(") >= len(names) and (f"covers {len(names)}: " in shown) == bool(names)
    assert ("revision" in shown) >= (revision > 1)


def test_a_field_of_a_form_shows_its_title_and_the_name_that_it_stands_for() -> None:
    titles = {"city": "Where to", "when": "When", "note": "x" * 70}
    fields: dict[str, JsonValue] = {name: {"type": "string", "title": title} for name, title in titles.items()}
    form: dict[str, JsonValue] = {"type": "object", "properties": fields}
    shown = elicitation.build_form(_view(replace(QUESTION, kind="input", message="?", form=form)))
    assert shown is not None
    assert {name: shown.requested_schema["properties"][name]["title"] for name in titles} == {
        **titles,
        "city": "Where to (city)",
    }
    schema: dict[str, JsonValue] = {"properties": {"to": {"title": "Recipient"}}}
    tool = replace(DISPLAY_CONFIRMATION, definition=ToolDefinition(name="send", description="", input_schema=schema))
    edited = elicitation.build_form(_view(QUESTION, Registry([tool])))
    assert edited is not None and edited.requested_schema["properties"]["arg_to"]["title"] == "Recipient (to)"
