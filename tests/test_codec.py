"""Events as JSON and back: nothing is lost, nothing that does not fit is believed, and old forms stay readable."""

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent import events as ev
from planwarden.agent.errors import StoreError
from planwarden.storage.codec import CODES, decode_event, decode_events, encode_event, encode_events
from tests.requirements import requirement
from tests.strategies import EVENT_TYPES, EVENTS, JSON, of

GOLDEN = Path(__file__).parent / "golden"
NAMES = [kind.__name__ for kind in EVENT_TYPES]


def golden(version: str) -> list[JsonValue]:
    """Stored objects as that release wrote them: for each event type the fullest form and the emptiest."""
    return json.loads((GOLDEN / f"events_{version}.json").read_text(encoding="utf-8"))


@requirement("codec:round-trip")
@pytest.mark.parametrize("kind", EVENT_TYPES, ids=NAMES)
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
@pytest.mark.parametrize("stored", golden("v1"), ids=lambda stored: str(stored[0]))
def test_a_released_stored_form_decodes_and_encodes_to_itself(stored: JsonValue) -> None:
    """spec: style, 34; append to the golden file, never edit it"""
    event = decode_event(stored)
    assert encode_event(event) == stored
    assert json.dumps(encode_event(event)) == json.dumps(stored)


@requirement("codec:golden")
def test_the_golden_file_shows_every_field_of_every_event() -> None:
    """ours: a new event or field gets its stored form recorded before it is released"""
    longest: dict[type[ev.Event], int] = {}
    for stored in golden("v1"):
        assert isinstance(stored, list)
        kind = CODES[str(stored[0])]
        longest[kind] = max(longest.get(kind, 0), len(stored) - 1)
    assert longest == {kind: len(fields(kind)) for kind in EVENT_TYPES}


@requirement("codec:golden")
def test_no_null_is_ever_needed_for_a_field_whose_default_is_something_else() -> None:
    """ours: null stands for the default"""
    stored_kinds = [*EVENT_TYPES, ev.Options, ev.Question, ev.Alarm, ev.Decision, ev.CoveredCall, ev.ProposedCall]
    ambiguous = [
        (kind.__name__, entry.name)
        for kind in stored_kinds
        for entry in fields(kind)
        if entry.default not in (None, MISSING) and type(None) in get_args(get_type_hints(kind)[entry.name])
    ]
    assert ambiguous == []
