"""YAML of saved plans: what JSON can say is read as the core schema of YAML 1.2 says, all else is refused."""

import json

import pytest
import yaml
from hypothesis import given
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.server.plans.yaml_text import MAX_VALUES, read_yaml, write_yaml
from tests.requirements import requirement
from tests.support.slices import first_only
from tests.support.strategies import JSON


@pytest.fixture(params=["libyaml", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers of the library; the one in C is missing on some platforms."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\nb: [x, '1', 2.5, -3]", {"a": 1, "b": ["x", "1", 2.5, -3]}),
        ("[yes, No, on, off, y, 2024-01-01, 12:30:00]", ["yes", "No", "on", "off", "y", "2024-01-01", "12:30:00"]),
        ("[true, FALSE, null, ~, '']", [True, False, None, None, ""]),
        ("[0o17, 0x1F, 007, 1e3, .5, +4]", [15, 31, 7, 1000.0, 0.5, 4]),
        ("9: nine\nnull: nothing", {"9": "nine", "null": "nothing"}),
        ("text: |\n  first\n  second\n", {"text": "first\nsecond\n"}),
        ("# nothing but\n--- one document\n...", "one document"),
        ("empty:", {"empty": None}),
        ('{"json": [1, {"a": "b"}]}', {"json": [1, {"a": "b"}]}),
    ],
)
def test_plain_words_mean_what_the_core_schema_says(text: str, value: JsonValue) -> None:
    assert read_yaml(text) == value


@requirement("plans:hostile-files")
@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [lol]\nb: [*x, *x]", "line 1: anchors"),
        ("b: *x", "line 1: aliases"),
        ("a: 1\n<<: {b: 2}", "line 2: merge keys"),
        ("a: !!python/object/apply:os.system [ls]", "line 1: tags"),
        ("a: !mine 1", "line 1: tags"),
        ("a: 1\nb:\n  c: 1\n  c: 2", "line 4: the key stands twice"),
        ("a: 1\n---\nb: 2", "line 2: a second document"),
        ("a: .nan", "line 1: NaN and infinity"),
        ("a: -.Inf", "line 1: NaN and infinity"),
        ("a: 1e999", "line 1: a number is too large"),
        ("a: " + "9" * 5_000, "line 1: a number has thousands of digits"),
        ("? [a]\n: b", "line 1: a key is a list"),
        ("", "it is empty"),
        ("a: b: c", "line 1: "),
        ("a: [1, 2", "not valid YAML"),
        ("a: \x07", "a character that YAML does not allow"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        read_yaml(text)
    assert said in refused.value.message


@requirement("plans:hostile-files")
@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 5_000])
def test_deep_text_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(LimitExceeded):
        read_yaml(text)


@requirement("plans:hostile-files")
@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("parser", first_only("libyaml", "python"), indirect=True)
@pytest.mark.parametrize("text", ["- [] \n" * (MAX_VALUES + 1)])
def test_endless_text_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(LimitExceeded):
        read_yaml(text)


@given(JSON)
def test_written_text_reads_back_as_the_same_value(value: JsonValue) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair has no place in a file.
        return
    assert read_yaml(write_yaml(value)) == value
