"""Bindings into text, and what is wrong with them."""

import json

import pytest
from pydantic import JsonValue

from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.bindings import Reference
from planwarden.agent.core.pointers import MAX_PARSED_CHARS, LeadsNowhere, ParsedTexts, PartAddress, follow, read_parts
from tests.requirements import requirement

TEXT = json.dumps({"customers": [{"id": 7, "note": "[1]"}]})


def take(result: JsonValue, pointer: str = "", parse: str = "") -> JsonValue:
    return follow(result, Reference("find", pointer, parse), ParsedTexts())


@requirement("references:text")
def test_json_in_text_is_read_where_the_binding_says_so() -> None:
    assert take(TEXT, "/customers/0/id", "json") == 7
    assert take(TEXT, "", "json") == json.loads(TEXT)
    # Once: what the JSON itself has as text stays text.
    assert take(TEXT, "/customers/0/note", "json") == "[1]"
    # Texts of several calls or blocks are found on the way.
    assert take(["", TEXT], "/1/customers/0/id", "json") == 7
    assert take({"content": [{"type": "text", "text": TEXT}]}, "/content/0/text/customers/0/id", "json") == 7
    assert take(TEXT) == TEXT


@requirement("references:text")
@pytest.mark.parametrize(
    ("result", "pointer", "parse", "why"),
    [
        (TEXT, "/customers", "", 'leads into text, which has no parts; if the text is JSON, add "parse": "json"'),
        (TEXT, "/customers", "", '{"$from": "find", "pointer": "/customers", "parse": "json"}'),
        (TEXT, "/0", "", "leads into text"),
        (TEXT, "/customers/0/note/0", "json", "leads into text"),
        (TEXT, "/orders", "json", "has nothing there"),
        ("Dear customer", "/x", "json", "leads to text that cannot be read as JSON: not valid JSON"),
        ('{"a": 1, "a": 2}', "/a", "json", "duplicate key"),
        ("[" * 100_000, "/0", "json", "nested deeper than 64 levels"),
        ({"customers": []}, "/customers", "json", "meets no text that could be read as JSON; leave 'parse' out"),
        (None, "", "json", "meets no text"),
        (f'"{"x" * MAX_PARSED_CHARS}"', "", "json", "leads to text that is too large"),
        ([1], "/-", "", "has nothing there"),
        ([1], "no pointer", "", "is no JSON pointer"),
    ],
)
def test_a_binding_that_leads_nowhere_says_why(result: JsonValue, pointer: str, parse: str, why: str) -> None:
    with pytest.raises(LeadsNowhere) as reason:
        take(result, pointer, parse)
    assert why in str(reason.value)


@requirement("references:text")
def test_text_in_an_artifact_is_read_too() -> None:
    artifact = make_artifact(json.dumps(TEXT).encode())
    wanted = [PartAddress(artifact.artifact_id, "/customers/0/id", "json"), PartAddress(artifact.artifact_id, "/x")]
    parts = read_parts(artifact, wanted)
    assert parts[wanted[0]].value == 7
    assert '"parse": "json"' in str(parts[wanted[1]].fault)


def test_a_repeated_key_among_very_many_is_found_at_once() -> None:
    text = "{" + ",".join(f'"{number}": 1' for number in range(100_000)) + ', "7": 2}'
    with pytest.raises(InvalidArguments, match="duplicate key '7'"):
        read_json(text)
