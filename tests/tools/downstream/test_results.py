"""Results of downstream tools: every kind of content is kept, text stays text, every size is limited."""

import base64
import hashlib
import json

from pydantic import JsonValue

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.tools.downstream.results import MAX_BLOCKS, MAX_MEDIA_CHARS, build_result, read_error_text
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


def test_blocks_beyond_the_limit_are_counted() -> None:
    found = build_result([text_block("x")] * (MAX_BLOCKS + 5), None)
    assert isinstance(found, dict) and isinstance(found["content"], list)
    assert (
        found["content"][-1] == text_block("[5 more blocks were left out]") and len(found["content"]) == MAX_BLOCKS + 1
    )


def test_the_text_of_an_error_is_found() -> None:
    assert read_error_text([text_block("a"), {"type": "image"}, text_block("b")]) == "a b"
    assert read_error_text([]) == "no reason was given"
