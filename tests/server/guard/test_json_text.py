"""Changes of JSON files as people write them: every other character stays, and what was added goes without a trace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.guard.install.json_text import add_item, read_json_text, remove_at, set_member
from tests.requirements import requirement

PATH = ("hooks", "PreToolUse")
ITEM: JsonValue = {"hooks": [{"type": "x", "text": 'a "quoted" // no comment'}]}

FILES = [
    *('{\n  "a": 1\n}\n', '{"a":1}', '{\n\t"model": "x", // why\n\t"hooks": {\n\t\t"Stop": [] /* later */\n\t}\n}'),
    '{\n    "hooks": {\n        "PreToolUse": [\n            {"matcher": "Bash", "hooks": []}\n        ],\n    },\n}\n',
    '{\r\n  "hooks": {\r\n    "PreToolUse": [\r\n      1.0,\r\n      1e5\r\n    ]\r\n  }\r\n}\r\n',
    '\ufeff{ "hooks": { "PreToolUse": [ "\\u00e9", 12345678901234567890 ] } }',
    '{"url": "https://example.com/*x*/", "hooks": {"PreToolUse": [2,]}}',
]


@pytest.mark.parametrize("text", FILES)
@requirement("guard:files")
def test_what_was_added_is_removed_without_a_trace(text: str) -> None:
    changed = add_item(text, PATH, ITEM)
    before, after = read_json_text(text).value, read_json_text(changed).value
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    hooks = after["hooks"]
    assert isinstance(hooks, dict)
    entries = hooks["PreToolUse"]
    assert isinstance(entries, list)
    assert entries[-1] == ITEM
    assert all(comment in changed for comment in ("// why", "/* later */") if comment in text)
    assert remove_at(changed, (*PATH, len(entries) - 1)) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=12,
    ),
    st.sampled_from([None, 2, "\t"]),
)
def test_any_object_keeps_its_other_values(value: JsonValue, indent: int | str | None) -> None:
    document = {"a": value, "hooks": {"PreToolUse": [value]}}
    text = json.dumps(document, indent=indent)
    changed = add_item(text, PATH, ITEM)
    assert json.loads(changed) == {"a": value, "hooks": {"PreToolUse": [value, ITEM]}}
    assert remove_at(changed, (*PATH, 1)) == text


def test_an_empty_file_gets_an_object() -> None:
    changed = add_item("", PATH, ITEM)
    assert json.loads(changed) == {"hooks": {"PreToolUse": [ITEM]}}
    assert read_json_text(remove_at(changed, (*PATH, 0))).value == {}


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "1", '"x"', '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}', '{"hooks": null}', '{"a": 1', "{'a': 1}"),
        *(
            '{"a": 1, "a": 2}',
            '{"a": 01x}',
            '{"a" 1}',
            '{"a": 1} x',
            "{" * 1_000,
            '{"a": [1 2]}',
            "{a: 1}",
            '{"a": "\n"}',
        ),
    ],
)
def test_a_file_that_is_something_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidArguments):
        add_item(text, PATH, ITEM)


def test_a_member_that_is_there_stays() -> None:
    assert (
        set_member('{"permission": {"bash": "allow"}}', ("permission", "bash"), "ask")
        == '{"permission": {"bash": "allow"}}'
    )
    for text in ('{"permission": {"bash": "allow"}}', '{"permission": "ask"}'):
        assert set_member(text, ("permission", "bash"), "ask") == text
    assert json.loads(set_member("{}", ("permission", "bash"), "ask")) == {"permission": {"bash": "ask"}}


@given(st.text(st.sampled_from('{}[]",:/* \n1ae\\'), max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        node = read_json_text(text)
    except InvalidArguments:
        return
    assert 0 <= node.start <= node.end <= len(text)
