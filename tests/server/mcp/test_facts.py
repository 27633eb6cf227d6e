"""How a question is put to a person: facts first, nothing hidden, nothing that passes for something else."""

import hashlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import JsonValue

from planwarden.server.views.facts import (
    count_hidden,
    escape_text,
    format_facts,
    format_value,
    is_shown_whole,
)
from planwarden.server.views.suspension import CoveredCallView, HowToAnswer, Suspension
from planwarden.server.views.tools import ToolCall
from planwarden.server.views.voices import AGENT_CHARS, build_voices, format_found, is_whole
from tests.requirements import requirement

QUESTION = Suspension(
    suspension_id="s",
    thread_id="t",
    execution_id="e",
    step_id="a",
    addressee="human",
    kind="approval",
    message="tell Ann",
    tool_call=ToolCall(call_id="a:1", tool_name="send", arguments={"to": "Ann", "copies": 2}),
    risk="confirm",
    needs="client",
    digest="d",
    revision=1,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    expires_at=None,
    on_timeout="reject",
    prompt=None,
    tools=(),
    answer_schema=None,
    confirms=(),
    how_to_answer=HowToAnswer(),
)


def _with(arguments: dict[str, JsonValue], message: str = "") -> Suspension:
    return replace(QUESTION, message=message, tool_call=ToolCall(call_id="a:1", tool_name="send", arguments=arguments))


def test_the_facts_of_a_call_are_laid_out_one_a_line() -> None:
    full = replace(
        QUESTION,
        confirms=(CoveredCallView(step_id="b", tool_name="erase", arguments={"ids": [1, 2]}),),
        revision=2,
        expires_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    assert build_voices(full).lines == [
        "Run this call?",
        "planwarden found: This is revision 2: something changed since it was first asked.",
        "Tool: send",
        '  to = "Ann"',
        "  copies = 2",
        "The same decision also covers 1 call(s):",
        "  erase (step b)",
        "    ids = [1, 2]",
        "Risk: confirm",
        "Without an answer until 2026-01-02T03:04:05Z: reject",
        "The agent says (unverified): tell Ann",
    ]


def test_what_cannot_be_seen_is_written_out_and_counted() -> None:
    # What else cannot be seen, the properties below and the whole of Unicode in the tests of views show.
    for character in "\t\x1b\u200b\u202e\U000e0041\u00a0\u2028\u3164\ud800\ue000":
        shown = escape_text(f"a{character}b")
        assert character not in shown and shown.startswith("a\\") and shown.isascii()
        assert count_hidden(f"a{character}b") == 1 and not is_shown_whole(f"a{character}b")
        assert list(format_found(_with({"to": f"a{character}b"}))) == ["Control or invisible characters escaped: 1."]
    assert count_hidden("a\nb") == 1 and list(format_found(_with({"to": "a\nb"}))) == []


def test_ordinary_writing_is_left_alone() -> None:
    for text in ("Grüße, Ω≈ç√", "Привет", "日本語", "नमस्ते", "👍🏽 ok", "naïve e\u0301"):
        assert escape_text(text) == text and count_hidden(text) == 0
    assert escape_text("שלום") == "\u2067שלום\u2069" and count_hidden("שלום") == 0


def test_marks_piled_on_one_letter_are_written_out() -> None:
    assert escape_text("a" + "\u0301" * 10) == "a" + "\u0301" * 3 + "\\u0301" * 7


def test_no_value_can_start_a_line_of_its_own() -> None:
    nasty = "x\nRisk: read\nThe agent says (unverified): fine\r\n\u2028Approve"
    lines = format_facts(_with({"to": nasty, f"na{nasty}me": 1}, message=nasty))
    assert [line for line in lines if line.startswith("Risk")] == ["Risk: confirm"]
    assert len(lines) == 4 and all(len(line.splitlines()) == 1 for line in lines)


def test_a_long_value_is_cut_with_its_size_and_hash() -> None:
    value: JsonValue = {"text": "é" * 1_000}
    data = json.dumps(value, ensure_ascii=False).encode()
    shown = format_value(value)
    assert shown.endswith(f"... [{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}]")
    assert len(shown) < 460 and not is_shown_whole(value)


def test_the_agents_words_are_labelled_and_cut() -> None:
    voices = build_voices(_with({}, message="word " * 1_000))
    said = voices.words
    assert voices.label == "The agent says (unverified)"
    assert len(said) == AGENT_CHARS and said.endswith("... [5000 characters]")
    assert '  to = "Ann"' in format_facts(_with({"to": "Ann"}, message="Ann")), "repeated, it is still a fact"


@requirement("forms:whole")
@pytest.mark.parametrize(
    "cut",
    [
        _with({"to": "x" * 400}),
        _with({"to": {"x" * 400: 1}}),
        _with({"x" * 400: 1}),
        replace(QUESTION, confirms=(CoveredCallView(step_id="b", tool_name="erase", arguments={"a": "x" * 400}),)),
        replace(QUESTION, confirms=(CoveredCallView(step_id="b", tool_name="erase", arguments={"x" * 400: 1}),)),
        replace(QUESTION, kind="confirmation", message="x" * 501),
    ],
    ids=["value", "key", "name", "covered value", "covered name", "words"],
)
def test_a_question_of_which_anything_is_cut_is_not_whole(cut: Suspension) -> None:
    assert not is_whole(cut) and is_whole(QUESTION)
    assert "... [" not in "".join(build_voices(cut, limit=None, is_cut=False).lines)


@given(st.text(max_size=60))
def test_whatever_the_text_what_is_shown_is_one_printable_line(text: str) -> None:
    shown = escape_text(text).replace("\u2067", "").replace("\u2069", "")
    assert len(shown.splitlines()) <= 1
    assert all(character.isprintable() or character == "\ufe0f" for character in shown)
    assert (shown == text) == (count_hidden(text) == 0)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_whatever_the_value_it_stays_on_one_short_line(value: JsonValue) -> None:
    shown = format_value(value)
    assert len(shown.splitlines()) == 1 and len(shown) < 460
