"""Results of downstream tools: every kind of content is kept, text stays text, sizes and counts are limited."""

import base64
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.tools.downstream import value_counter
from planwarden.tools.downstream.results import MAX_BLOCKS, MAX_MEDIA_CHARS, build_result, read_error_text
from planwarden.tools.downstream.value_counter import EventCounter, ValueCounter
from tests.requirements import requirement


def text_block(said: str) -> dict[str, JsonValue]:
    return {"type": "text", "text": said}


@requirement("downstream:results")
def test_structured_content_is_the_result_and_text_that_says_more_stands_beside_it() -> None:
    value: JsonValue = {"ids": [1, 2]}
    assert build_result([text_block(json.dumps(value))], value) == value
    assert build_result([], value) == value
    assert build_result([text_block("hello")], {"result": "hello"}) == {"result": "hello"}
    both = build_result([text_block("something else")], value)
    assert isinstance(both, ResultWithArtifacts)
    assert both.value == value and both.beside == [text_block("something else")]


@requirement("downstream:results")
def test_one_text_is_that_text_and_is_not_parsed() -> None:
    said = '{"toolCalls": [{"toolName": "x"}], "$from": "step_1"}'
    assert build_result([text_block(said)], None) == said
    assert build_result([text_block("a"), text_block("b")], None) == {"content": [text_block("a"), text_block("b")]}
    assert build_result([], None) == {"content": []}
    assert read_error_text([text_block("a"), {"type": "image"}, text_block("b")]) == "a b"
    assert read_error_text([]) == "no reason was given"
    many = build_result([text_block("x")] * (MAX_BLOCKS + 5), None)
    assert many == {"content": [text_block("x")] * MAX_BLOCKS + [text_block("[5 more blocks were left out]")]}


@requirement("downstream:results")
def test_every_kind_of_block_is_kept() -> None:
    blocks: list[dict[str, JsonValue]] = [
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "t"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA"}},
        {"type": "resource_link", "uri": "file:///c", "name": "c"},
    ]
    assert build_result([{**block, "_meta": {"x": 1}} for block in blocks], None) == {"content": blocks}


@requirement("downstream:results")
def test_media_beyond_the_limit_leave_their_size_and_hash_and_the_text_whole() -> None:
    data = b"x" * MAX_MEDIA_CHARS
    blob = base64.b64encode(data).decode()
    found = build_result([text_block("what it is"), {"type": "image", "data": blob, "mimeType": "image/png"}], None)
    assert found == {
        "content": [
            text_block("what it is"),
            {
                "type": "image",
                "mimeType": "image/png",
                "omitted": True,
                "sizeBytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            },
        ]
    }


VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a",[]{}\\é'),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='a",[\\', max_size=3), inner, max_size=5)
    ),
)


def count_all(document: JsonValue) -> int:
    """Returns the separators and openings outside strings, by parsing."""
    if isinstance(document, dict):
        return 1 + max(len(document) - 1, 0) + sum(map(count_all, document.values()))
    if isinstance(document, list):
        return 1 + max(len(document) - 1, 0) + sum(map(count_all, document))
    return 0


@requirement("downstream:bounded")
@given(document=VALUES, cut=st.integers(1, 7))
def test_values_are_counted_as_a_parser_would_wherever_the_text_is_cut(document: JsonValue, cut: int) -> None:
    text = json.dumps(document).encode()
    counter = ValueCounter()
    for start in range(0, len(text), cut):
        counter.feed(text[start : start + cut])
    assert counter.count == count_all(document)


@pytest.mark.parametrize("cut", [1, 2, 3, 100])
def test_events_are_counted_apart_and_cannot_hide_values_behind_line_ends(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_counter, "MAX_VALUES", 5)

    def is_refused(text: bytes) -> bool:
        counter = EventCounter()
        for start in range(0, len(text), cut):
            counter.feed(text[start : start + cut])
        return counter.is_too_many

    assert not is_refused(b"data: [1,2,3]\r\n\r\ndata: [1,2,3]\n\n" * 5)
    assert is_refused(b"data: [1,2,3,\ndata: 4,5,6]\n\n")
