"""Events as JSON and back: nothing is lost, nothing that does not fit is believed, and old forms stay readable."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan import ToolFacts, parse_plan
from planwarden.storage.codec import CODES, decode_event, decode_events, encode_event, encode_events
from tests.requirements import requirement
from tests.support.strategies import EVENT_TYPES, EVENTS, JSON, of

GOLDEN = Path(__file__).parent / "golden"
NAMES = [kind.__name__ for kind in EVENT_TYPES]


def golden(version: str) -> list[JsonValue]:
    """Stored objects as that release wrote them: for each event type the fullest form and the emptiest."""
    return json.loads((GOLDEN / f"events_{version}.json").read_text(encoding="utf-8"))


@requirement("codec:round-trip")
@pytest.mark.parametrize("kind", EVENT_TYPES, ids=NAMES)
@settings(max_examples=50)
@given(data=st.data())
def test_an_event_decodes_to_what_was_encoded(kind: type[ev.Event], data: st.DataObject) -> None:
    """spec: ports.Store, round trip"""
    event = data.draw(of(kind))
    [decoded] = decode_events(encode_events([event]))
    # Also the types: 1, 1.0 and true are equal in Python and different in JSON.
    assert decoded == event and repr(decoded) == repr(event)


@requirement("codec:round-trip")
@given(st.lists(EVENTS, max_size=4))
def test_a_transaction_keeps_the_order_of_its_events(events: list[ev.Event]) -> None:
    """spec: ports.Store, ordering; the text is ASCII on one line, so any tool can show a row"""
    text = encode_events(events)
    assert decode_events(text) == tuple(events)
    assert text.isascii() and "\n" not in text


@requirement("codec:round-trip")
@given(EVENTS)
def test_defaults_are_left_out_and_come_back(event: ev.Event) -> None:
    """ours: bytes per execution"""
    code, *stored = encode_event(event)
    assert CODES[str(code)] is type(event) and (not stored or stored[-1] is not None)
    for entry, value in zip(fields(event), stored, strict=False):
        assert value is None or value != entry.default
    assert encode_event(decode_event([code, *stored])) == [code, *stored]


@requirement("codec:round-trip")
@given(JSON)
def test_what_is_not_an_event_is_a_store_error(value: JsonValue) -> None:
    """ours: a stored row is input"""
    if isinstance(value, list) and value and value[0] in list(CODES):
        return
    with pytest.raises(StoreError):
        decode_event(value)


@requirement("codec:round-trip")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "[[]]",
        '["SB"]',
        '[["SB"]]',
        '[["SB",{}]]',
        '[["SB","a","b"]]',
        '[["ZZ","a"]]',
        '[[["SB"],"a"]]',
        '[["SB","a"]',
        '[["QA",["s"]]]',
        '[2,["QT","no base64","reject"]]',
        '[2,["QT",7,"reject"]]',
        '[2,["PA",[[["a","d",[["t"]]]]]]]',
        '[2,["PA",[[["a","d",7]]]]]',
        '[2,["PA",[[["a","d",null,null,7]]]]]',
        '[2,["PA",[["a"]]]]',
        '[3,["SB","a"]]',
        '[["QA","s"]]',
        '[["QT","s","maybe"]]',
        '[["PA",[[["a","d","magic"]]]]]',
        '[["PA",[["a","d","tool"]]]]',
        "[" * 100_000,
    ],
)
def test_a_damaged_row_is_a_store_error(text: str) -> None:
    """spec: design.md, damaged storage fails closed"""
    with pytest.raises(StoreError):
        decode_events(text)


@requirement("codec:golden")
@pytest.mark.parametrize("stored", golden("v2"), ids=lambda stored: str(stored[0]))
def test_a_released_stored_form_decodes_and_encodes_to_itself(stored: JsonValue) -> None:
    """spec: style, 34; append to the golden file, never edit it"""
    event = decode_event(stored)
    assert encode_event(event) == stored
    assert json.dumps(encode_event(event)) == json.dumps(stored)


@requirement("codec:golden")
def test_a_row_of_the_first_form_is_what_the_second_form_says_in_fewer_bytes() -> None:
    """spec: style, 34; the two golden files tell the same events in the same order"""
    first, second = golden("v1"), golden("v2")
    text = json.dumps(first)
    events = decode_events(text)
    assert events == decode_events(json.dumps([2, *second]))
    assert list(events) == [decode_event(stored, form=1) for stored in first]
    assert len(encode_events(events)) < len(text)


@requirement("codec:golden")
def test_what_the_parser_fills_in_is_left_out_of_a_plan() -> None:
    """ours: bytes per execution; what is not what the parser would fill in is written"""
    steps: list[JsonValue] = [
        {"id": "a", "description": "d", "toolCalls": [{"toolName": "t", "arguments": {}}]},
        {"id": "b", "description": "d", "toolCalls": [{"toolName": "t", "arguments": {}}]},
        {"id": "c", "description": "d", "dependencies": []},
        {"id": "d", "description": "d", "dependencies": ["a"], "requiredTools": ["u"]},
    ]
    plan, _ = parse_plan(
        {"todoList": steps},
        author="caller",
        tools={"t": ToolFacts(is_blocking=False), "u": ToolFacts(is_blocking=False)},
    )
    event = ev.PlanAccepted(plan=plan)
    _, written = encode_event(event)
    calls: JsonValue = [["t", {}]]
    assert written == [[["a", "d", calls], ["b", "d", calls], ["c", "d", None, []], ["d", "d", None, ["a"], ["u"]]]]
    assert decode_event(encode_event(event)) == event


@requirement("codec:round-trip")
@pytest.mark.parametrize("text", ["", "a", "=", "=a", "ab" * 16, "AB" * 16, "ab" * 32, "ab cd", "0" * 15, "3n1P+/=="])
def test_an_id_or_digest_is_kept_whatever_it_looks_like(text: str) -> None:
    """ours: base64 stands only for lower-case hexadecimal digits; everything else is marked"""
    event = ev.SuspensionWithdrawn(suspension_id=text, reason="r")
    assert decode_event(encode_event(event)) == event


@requirement("codec:golden")
def test_the_golden_file_shows_every_field_of_every_event() -> None:
    """ours: a new event or field gets its stored form recorded before it is released"""
    longest: dict[type[ev.Event], int] = {}
    for stored in golden("v2"):
        assert isinstance(stored, list)
        kind = CODES[str(stored[0])]
        longest[kind] = max(longest.get(kind, 0), len(stored) - 1)
    assert longest == {kind: len(fields(kind)) for kind in EVENT_TYPES}


@requirement("codec:golden")
def test_no_null_is_ever_needed_for_a_field_whose_default_is_something_else() -> None:
    """ours: null stands for the default"""
    stored_kinds = [
        *EVENT_TYPES,
        ev.Options,
        ev.Question,
        ev.Alarm,
        ev.RecordedDecision,
        ev.CoveredCall,
        ev.ProposedCall,
    ]
    ambiguous = [
        (kind.__name__, entry.name)
        for kind in stored_kinds
        for entry in fields(kind)
        if entry.default not in (None, MISSING) and type(None) in get_args(get_type_hints(kind)[entry.name])
    ]
    assert ambiguous == []
