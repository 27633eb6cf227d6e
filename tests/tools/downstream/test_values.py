"""Counting the values of JSON that is not parsed yet."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.tools.downstream import value_counter
from planwarden.tools.downstream.value_counter import EventCounter, ValueCounter
from tests.requirements import requirement

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


@pytest.mark.parametrize("text", ['"\\\\", [1, 2]', '"\\"", [1, 2]', '"[[[[", [1, 2]', '"\\\\\\"[", [1, 2]'])
@pytest.mark.parametrize("cut", range(1, 9))
def test_escapes_at_the_end_of_a_piece_are_not_lost(text: str, cut: int) -> None:
    counter = ValueCounter()
    for start in range(0, len(text), cut):
        counter.feed(text[start : start + cut].encode())
    assert counter.count == 3


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
