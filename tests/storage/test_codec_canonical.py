"""The one text of a JSON value: what is digested is what was meant, and its size is known without guessing."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.canonical import (
    MAX_DEPTH,
    canonical_json,
    check_depth,
    digest,
    has_json_form,
    is_larger,
    is_same_json,
    read_json,
)
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from tests.requirements import requirement
from tests.support.strategies import JSON


def shuffled(value: JsonValue) -> JsonValue:
    """The same value with its keys inserted the other way round."""
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
    text = canonical_json(value)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert canonical_json(shuffled(value)) == text and text.isascii() and has_json_form(value)
    assert canonical_json(read_json(text)) == text


@requirement("canonical:one-text")
@given(JSON, JSON)
@example({"a": 1}, {"a": 1.0})
@example({"a": [10**30, "\ud800"]}, {"a": [10**30, "\udfff"]})
def test_digests_differ_exactly_when_the_texts_do_and_contexts_keep_uses_apart(one: JsonValue, two: JsonValue) -> None:
    is_same = canonical_json(one) == canonical_json(two)
    assert (digest(one) == digest(two)) == is_same and digest(one, context="a") != digest(one, context="b")
    assert digest(one) == digest(shuffled(one)) and is_same_json(one, two) == is_same


@requirement("canonical:one-text")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}, [10**5000]])
def test_what_has_no_json_form_is_refused(value: JsonValue) -> None:
    assert not has_json_form(value)
    with pytest.raises(InvalidArguments):
        canonical_json(value)
    with pytest.raises(InvalidArguments):
        is_larger(value, 10**9)


@requirement("canonical:one-text")
def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[JsonValue] = []
    circle.append({"again": circle})
    with pytest.raises(InvalidArguments):
        canonical_json(circle)
    with pytest.raises(LimitExceeded):
        check_depth(circle)


@requirement("canonical:one-text")
@given(JSON, st.integers(0, 200))
@example("\U0001f680" * 20, 200)
@example({"\U0001f680": None}, 17)
@example([True, False, None], 17)
def test_a_value_is_larger_than_a_limit_exactly_when_its_text_is(value: JsonValue, limit: int) -> None:
    assert is_larger(value, limit) == (len(canonical_json(value)) > limit)


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
        read_json(text)


@requirement("canonical:one-text")
@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
def test_nesting_is_bounded_before_it_can_exhaust_the_stack(depth: int) -> None:
    with pytest.raises(LimitExceeded):
        read_json("[" * depth + "]" * depth)
    assert read_json("[" * 64 + "]" * 64)
    nested: JsonValue = 1
    for level in range(min(depth, 900)):
        nested = [nested] if level % 2 else {"a": nested}
        if level == MAX_DEPTH - 1:
            check_depth(nested)
    with pytest.raises(LimitExceeded):
        check_depth(nested)
