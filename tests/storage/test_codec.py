"""Events as JSON text and back: nothing is lost, and a row that does not fit is refused.

And the one text of a JSON value: what is digested is what was meant, and its size is known without guessing.
"""

import json
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common import canonical
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, StoreError
from planwarden.agent.common.struct import plain_value
from planwarden.agent.core.execution import events as ev
from planwarden.storage.sql.rows import decode_events, encode_events
from tests.requirements import requirement
from tests.support.strategies import EVENTS, JSON, values_of

GOLDEN: list[list[JsonValue]] = json.loads(
    (Path(__file__).parent / "golden" / "events.json").read_text(encoding="utf-8")
)
"""Events as they are stored: for each event type the fullest form and the emptiest."""
TYPE_OF: dict[str, type[ev.Event]] = {str(kind.__struct_config__.tag): kind for kind in ev.EVENT_TYPES}
NAMES = [kind.__name__ for kind in ev.EVENT_TYPES]


@requirement("codec:round-trip")
@pytest.mark.parametrize("kind", ev.EVENT_TYPES, ids=NAMES)
@given(data=st.data())
def test_an_event_decodes_to_what_was_encoded(kind: type[ev.Event], data: st.DataObject) -> None:
    event = data.draw(values_of(kind))
    [decoded] = decode_events(encode_events([event]))
    # Also the types: 1, 1.0 and true are equal in Python and different in JSON.
    assert decoded == event and repr(decoded) == repr(event)


class Name(str):
    __slots__ = ()


class Metres(float):
    __slots__ = ()


RETURNED: list[tuple[object, JsonValue]] = [
    *((value, value) for value in cast("list[JsonValue]", [None, [1, None, False], ["", [], {}], {"x": [0, []]}])),
    *((text, text) for text in ("\ud800", "a\udcffb.txt", 'a,null] and ,""]')),
    ([10**30, 1.0, "\N{ROCKET}"], [10**30, 1.0, "\N{ROCKET}"]),
    ({"x": (1, 2)}, {"x": [1, 2]}),
    ([Name("x"), Metres(2.5)], ["x", 2.5]),
]


@requirement("codec:round-trip")
@pytest.mark.parametrize(("returned", "stored"), RETURNED)
def test_what_a_tool_returned_is_stored_as_the_json_that_it_is(returned: object, stored: JsonValue) -> None:
    event = ev.ToolReturned(call_id="a:1", value=cast("JsonValue", returned))
    text = encode_events([event, ev.ExecutionCreated()])
    decoded, created = decode_events(text)
    assert repr(decoded) == repr(ev.ToolReturned(call_id="a:1", value=stored)) and created == ev.ExecutionCreated()
    assert "\n" not in text and text.encode().decode() == text


@requirement("codec:round-trip")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_never_stored_as_something_else(number: float) -> None:
    for event in (
        ev.ToolReturned(call_id="a:1", value=["\ud800", {"x": number}]),
        ev.ExecutionCreated(options=ev.Options(budget_seconds=number)),
        ev.ExecutionCreated(options=ev.Options(wait_seconds=number)),
    ):
        with pytest.raises(ValueError, match="Out of range float values"):
            encode_events([event])


@requirement("codec:round-trip")
@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1]", "[[]]", '["SB"]', '[["SB"]]', '[["SB",{}]]', '[["SB","a","b"]]', '[["ZZ","a"]]'),
        *('[[["SB"],"a"]]', '[["SB","a"]', '[["SB","\\ud800"]', '[["TR","a:1",NaN,null]]'),
        *('[["TR","a:1",[-Infinity],null]]', '[["TR","a:1",["\\ud800",1e999],null]]', '[["QA",["s"]]]'),
        *('[["QT",7,"reject"]]', '[["PA",[[["a","d","tool",[["t"]]]]]]]', '[["PA",[[["a","d",7]]]]]'),
        *('[["PA",[["a"]]]]', '[3,["SB","a"]]', '[["QA","s"]]', '[["QT","s","maybe"]]'),
        *('[["PA",[[["a","d","magic"]]]]]', '[["PA",[["a","d","tool"]]]]', "[" * 100_000),
    ],
)
def test_a_damaged_row_is_a_store_error(text: str) -> None:
    with pytest.raises(StoreError):
        decode_events(text)


@requirement("codec:golden")
@pytest.mark.parametrize("stored", GOLDEN, ids=lambda stored: str(stored[0]))
def test_the_stored_form_decodes_and_encodes_to_itself(stored: list[JsonValue]) -> None:
    assert json.loads(encode_events(decode_events(json.dumps([stored])))) == [stored]


@requirement("codec:golden")
@given(EVENTS)
def test_a_field_that_a_row_does_not_have_yet_takes_its_default(event: ev.Event) -> None:
    kind = type(event)
    optional = [field for field in msgspec.structs.fields(kind) if not field.required]
    stored = cast("list[JsonValue]", msgspec.to_builtins(event, enc_hook=plain_value))
    shorter = stored[: len(stored) - len(optional)]
    [decoded] = decode_events(json.dumps([shorter]))
    given_fields = {field.name: getattr(event, field.name) for field in msgspec.structs.fields(kind) if field.required}
    assert decoded == kind(**given_fields)


@requirement("codec:golden")
def test_the_golden_file_shows_every_event() -> None:
    longest = dict.fromkeys(TYPE_OF, 0)
    for stored in GOLDEN:
        longest[str(stored[0])] = max(longest[str(stored[0])], len(stored) - 1)
    assert longest == {tag: len(msgspec.structs.fields(kind)) for tag, kind in TYPE_OF.items()}


def shuffled(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [shuffled(child) for child in value]
    return value


@requirement("canonical:one-text")
@given(JSON)
@example({"\x7f\b\f\U0001f680\ud800": [1.0, 1e16, 5e-324, -0.0, 10**30]})
@example({"info": ["nanny", "nan and inf are words"]})
def test_a_value_has_the_one_text_that_json_writes_and_it_reads_back(value: JsonValue) -> None:
    text = canonical.canonical_json(value)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert canonical.canonical_json(shuffled(value)) == text and text.isascii() and canonical.has_json_form(value)
    assert canonical.canonical_json(canonical.read_json(text)) == text


@requirement("canonical:one-text")
@given(JSON, JSON)
@example({"a": 1}, {"a": 1.0})
@example({"a": [10**30, "\ud800"]}, {"a": [10**30, "\udfff"]})
def test_digests_differ_exactly_when_the_texts_do_and_contexts_keep_uses_apart(one: JsonValue, two: JsonValue) -> None:
    is_same = canonical.canonical_json(one) == canonical.canonical_json(two)
    assert (canonical.digest(one) == canonical.digest(two)) == is_same and canonical.digest(
        one, context="a"
    ) != canonical.digest(one, context="b")
    assert canonical.digest(one) == canonical.digest(shuffled(one)) and canonical.is_same_json(one, shuffled(one))


@requirement("canonical:one-text")
@pytest.mark.parametrize(
    ("one", "two", "is_same"),
    [
        ({"a": [1]}, {"a": [1.0]}, True),
        (0, -0.0, True),
        (10**22, 1e22, True),
        (2**53 + 1, float(2**53), False),
        ([1], [True], False),
        ([1.0], [True], False),
        (0, False, False),
        (1, "1", False),
        ({"a": None}, {}, False),
    ],
)
def test_numbers_are_the_same_by_their_value_and_nothing_else_is_a_number(
    one: JsonValue, two: JsonValue, is_same: bool
) -> None:
    assert canonical.is_same_json(one, two) == canonical.is_same_json(two, one) == is_same


@requirement("canonical:one-text")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}, [10**5000]])
def test_what_has_no_json_form_is_refused(value: JsonValue) -> None:
    assert not canonical.has_json_form(value)
    with pytest.raises(InvalidArguments):
        canonical.canonical_json(value)
    with pytest.raises(InvalidArguments):
        canonical.is_larger(value, 10**9)


@requirement("canonical:one-text")
@given(JSON, st.integers(0, 200))
@example("\U0001f680" * 20, 200)
@example({"\U0001f680": None}, 17)
@example([True, False, None], 17)
def test_a_value_is_larger_than_a_limit_exactly_when_its_text_is(value: JsonValue, limit: int) -> None:
    assert canonical.is_larger(value, limit) == (len(canonical.canonical_json(value)) > limit)


@requirement("canonical:one-text")
@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "NaN", "[Infinity]", '{"a":1,"a":2}', '{"b":{"a":1,"a":1}}', b"\xff", "1" * 5000, "'a'"),
        *("1e999", "[-1e999]"),
    ],
)
def test_text_that_is_not_one_unambiguous_json_value_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidArguments):
        canonical.read_json(text)


@requirement("canonical:one-text")
@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
def test_nesting_is_bounded_before_it_can_exhaust_the_stack(depth: int) -> None:
    with pytest.raises(LimitExceeded):
        canonical.read_json("[" * depth + "]" * depth)
    assert canonical.read_json("[" * 64 + "]" * 64)
    nested: JsonValue = 1
    for level in range(min(depth, 900)):
        nested = [nested] if level % 2 else {"a": nested}
        if level == canonical.MAX_DEPTH - 1:
            canonical.check_depth(nested)
    with pytest.raises(LimitExceeded):
        canonical.check_depth(nested)
