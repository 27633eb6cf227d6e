"""Files of saved plans: which name stands for which file, what cannot be used and why, and what their YAML can say."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, LimitExceeded, UnknownPlan
from planwarden.agent.core.plan.plan import MAX_STEPS
from planwarden.server.plans import library, yaml_text
from planwarden.server.plans.library import PlanCatalogue, PlanLibrary
from planwarden.server.plans.plan_file import MAX_FILE_BYTES
from planwarden.server.plans.plan_writer import write_plan
from planwarden.server.plans.yaml_text import read_yaml, write_yaml
from tests.requirements import requirement
from tests.support.strategies import JSON

STEP: dict[str, JsonValue] = {"id": "a", "description": "look"}
STEPS: JsonValue = [STEP]
TAKES_INPUT: JsonValue = {
    **STEP,
    "toolCalls": [{"toolName": "send", "arguments": {"to": {"$from": "inputs", "pointer": "/cc"}}}],
}
PLAN: dict[str, JsonValue] = {"todoList": STEPS}
YAML = "title: Remind\ntodoList:\n  - id: a\n    description: look\n"
UNUSABLE: list[tuple[str, str | bytes | JsonValue, str]] = [
    ("a.yaml", "todoList: [", "not valid YAML"),
    (
        "a.yaml",
        "title: a: b\n",
        "line 1: mapping values are not allowed in this context; put a text that has ': ' in it",
    ),
    ("a.yaml", "todoList:\n\t- id: a\n", "line 2: found character that cannot start any token; indent with spaces"),
    ("a.yaml", "todoList:\n  - id: a\n   description: x\n", "; compare how far this line and those before it are"),
    ("a.yaml", "a: &x [1]\ntodoList: *x", "anchors"),
    ("a.yaml", f"{YAML}tittle: x", "write 'title'"),
    ("a.yaml", b"\xff\xfe", "not UTF-8"),
    ("a.yaml", "#" * (MAX_FILE_BYTES + 1), "the limit is 524288"),
    ("a.yaml", "- 1", "a list"),
    ("a.json", "{", "not valid JSON"),
    ("a.json", '{"todoList": [{"id": NaN}]}', "NaN"),
    ("a.json", '{"todoList": [], "todoList": []}', "duplicate key"),
    ("a.json", '{"title": "\\ud800", "todoList": [{"id": "a"}]}', "half of a surrogate pair"),
    ("a.yaml", f"{YAML}description: 0x{'f' * 5_000}", "a number with thousands of digits"),
    ("a.json", {"todoList": []}, "not a list of steps"),
    ("a.json", {**PLAN, "steps": STEPS}, "both 'todoList' and 'steps'"),
    ("a.json", {**PLAN, "title": 3}, "'title' is not a text"),
    ("a.json", {**PLAN, "description": "x" * 2_001}, "'description' has 2001 characters"),
    ("a.json", {**PLAN, "inputs": {"type": "array"}}, "JSON Schema of an object"),
    ("a.json", {**PLAN, "inputs": {"properties": []}}, "'inputs.properties' is not an object"),
    ("a.json", {**PLAN, "inputs": {"properties": {"a": {"type": "nothing"}}}}, "not a usable JSON Schema"),
    ("a.json", {**PLAN, "inputs": {"$ref": "https://example.org/schema"}}, "not a usable JSON Schema"),
    ("a.json", {**PLAN, "inputs": {"properties": {str(n): {} for n in range(101)}}}, "101 properties"),
    ("a.json", {"todoList": ["look"]}, "todoList[0]"),
    ("a.json", {"todoList": [{"id": "a"}]}, "description"),
    ("a.json", {"todoList": [{**STEP, "colour": "red"}]}, "colour"),
    ("a.json", {"todoList": [STEP, STEP]}, "several steps have the id 'a'"),
    ("a.json", {"todoList": [{**STEP, "dependencies": ["b"]}]}, "unknown steps: 'b'"),
    ("a.json", {"todoList": [{**STEP, "dependencies": ["b"]}, {**STEP, "id": "b"}]}, "in a circle: "),
    ("a.json", {"todoList": [{**STEP, "when": {"value": {"$from": "b"}, "matches": {"type": 1}}}]}, "when[0]"),
    ("a.json", {"inputs": {"properties": {"to": {}}}, "todoList": [TAKES_INPUT]}, "there is no 'cc', only 'to'"),
    ("a.yml", YAML, "plans are called a.yaml or a.json"),
    ("a b.yaml", YAML, "letters, digits, - and _"),
    (f"{'a' * 65}.yaml", YAML, "at most 64"),
]


def fill(folder: Path, files: Mapping[str, str | bytes | JsonValue]) -> Path:
    """Writes the files: text and bytes as they are, everything else as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, str | bytes) else json.dumps(content)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def look(*folders: Path) -> PlanCatalogue:
    """What the folders hold; the first is the home's."""
    sources = ["home", *map(str, range(1, len(folders)))]
    return PlanLibrary(dict(zip(folders, sources, strict=True))).look_now()


def reasons(found: PlanCatalogue) -> dict[str, str]:
    return {fault.path.name: fault.reason for fault in found.faults}


@requirement("plans:version")
def test_the_version_is_the_content_however_it_is_written(tmp_path: Path) -> None:
    inputs: JsonValue = {"type": "object", "properties": {"to": {"type": "string"}}}
    content: dict[str, JsonValue] = {"title": "Remind", "description": " all ", "inputs": inputs, "todoList": STEPS}
    [one] = look(fill(tmp_path / "1", {"b-2_c.yaml": write_yaml(content)})).plans
    [same] = look(fill(tmp_path / "2", {"a.json": content})).plans
    [other] = look(fill(tmp_path / "3", {"a.json": {**content, "title": "Remind all"}})).plans
    assert one.digest == same.digest != other.digest and len(one.digest) == 64
    assert (one.name, one.title, one.description, one.inputs, one.source) == ("b-2_c", "Remind", "all", inputs, "home")
    assert one.document == {"inputs": inputs, "todoList": STEPS}


@requirement("plans:hostile-files")
@pytest.mark.parametrize(("name", "content", "said"), UNUSABLE)
def test_a_file_that_is_no_plan_is_named_with_the_reason_and_hides_no_other(
    tmp_path: Path, name: str, content: str | bytes | JsonValue, said: str
) -> None:
    found = look(fill(tmp_path, {"good.yaml": YAML, "README.md": "# Plans", ".hidden.yaml": "", name: content}))
    assert found.names == ["good"]
    [reason] = reasons(found).values()
    assert said in reason


def test_a_plan_that_only_a_run_can_judge_is_usable(tmp_path: Path) -> None:
    takes_earlier: JsonValue = {**STEP, "toolCalls": [{"toolName": "gone", "arguments": {"to": {"$from": "earlier"}}}]}
    many: JsonValue = [{**STEP, "id": f"s{number}"} for number in range(MAX_STEPS + 1)]
    assert look(fill(tmp_path, {"a.json": {"todoList": [takes_earlier]}, "b.json": {"todoList": many}})).faults == ()


@requirement("plans:hostile-files")
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_in_a_circle_folders_and_pipes_are_named_and_nothing_waits(tmp_path: Path) -> None:
    fill(tmp_path, {"good.yaml": YAML, "target.txt": YAML})
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "link.yaml").symlink_to("target.txt")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "inner").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    found = look(tmp_path)
    assert found.names == ["good", "link"]
    assert reasons(found) == {
        "loop.yaml": "its links lead in a circle",
        "gone.yaml": "it cannot be read: No such file or directory",
        "folder.yaml": "it is a folder",
        "inner": "it is a folder in a folder of plans, which is not searched",
        "pipe.yaml": "it is not a file, but a device or a pipe",
    }
    assert look(tmp_path / "missing") == PlanCatalogue()
    assert reasons(look(*(tmp_path / name for name in ("target.txt", "loop.yaml", "gone.yaml")))) == {
        "target.txt": "it is not a folder",
        "loop.yaml": "its links lead in a circle",
        "gone.yaml": "it is not a folder",
    }


@requirement("plans:hostile-files")
@pytest.mark.skipif(sys.platform == "win32", reason="paths are limited otherwise there")
def test_an_entry_that_cannot_be_examined_hides_no_plan(tmp_path: Path) -> None:
    fill(tmp_path / "home", {"good.yaml": YAML})
    # The path of the entry is too long, while that of its folder is not: no mode of a file would stop root.
    folder = Path(str(tmp_path / "/".join(["d" * 200] * 20))[: os.pathconf(tmp_path, "PC_PATH_MAX") - 100])
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    os.close(os.open("n" * 200, os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
    assert look(folder, tmp_path / "home").names == ["good"]


@requirement("plans:hostile-files")
def test_the_number_of_files_and_their_bytes_together_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "MAX_FILES", 2)
    found = look(fill(tmp_path / "1", {f"{name}.yaml": YAML for name in "abcd"}))
    assert (found.names, list(reasons(found))) == (["a", "b"], ["c.yaml", "d.yaml"])
    monkeypatch.setattr(library, "MAX_TOTAL_BYTES", len(YAML) * 3)
    found = look(*(fill(tmp_path / str(n), {f"{n}{name}.yaml": YAML for name in "ab"}) for n in range(2, 4)))
    assert found.names == ["2a", "2b", "3a"]
    assert "all plans together" in reasons(found)["3b.yaml"]
    monkeypatch.setattr(library, "MAX_ENTRIES", 3)
    fill(tmp_path / "hidden", {f"{name}.yaml": YAML for name in ("a", ".b", ".c", ".d")})
    for folder in ("1", "hidden"):
        found = look(tmp_path / folder)
        assert (found.names, list(reasons(found))) == ([], [folder])


@requirement("plans:one-name")
def test_the_homes_plan_wins_over_a_folders_and_two_files_of_one_name_there_are_not_used(tmp_path: Path) -> None:
    found = look(fill(tmp_path / "twice", {"a.yaml": YAML, "a.json": PLAN, "b.yaml": YAML}))
    assert found.names == ["b"]
    assert reasons(found) == {"a.json": "a.json and a.yaml have one name; keep one of them"}
    with pytest.raises(UnknownPlan, match="cannot be used"):
        found.find("a")
    home = fill(tmp_path / "home", {"a.yaml": YAML})
    first = fill(tmp_path / "first", {"a.json": PLAN, "b.json": PLAN})
    second = fill(tmp_path / "second", {"b.yaml": YAML, "c.yaml": YAML})
    found = look(home, first, second)
    assert [(plan.name, plan.source) for plan in found.plans] == [("a", "home"), ("b", "1"), ("c", "2")]
    assert [(hidden.path, hidden.by) for hidden in found.hidden] == [
        (first / "a.json", home / "a.yaml"),
        (second / "b.yaml", first / "b.json"),
    ]
    # A slip in the home's plan does not let a folder's plan run in its place.
    slip = look(fill(home, {"a.yaml": "todoList: ["}), first)
    assert slip.names == ["b"] and [hidden.name for hidden in slip.hidden] == ["a"]


@requirement("inbox:keep")
def test_a_plan_is_in_its_folder_only_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.append([path.name for path in tmp_path.iterdir() if not path.name.startswith(".")])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    path = write_plan(tmp_path, "hello", PLAN, "kept by a test")
    with pytest.raises(InvalidArguments, match="already"):
        write_plan(tmp_path, "hello", PLAN, "kept by a test")
    assert seen == [[], ["hello.yaml"]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["hello.yaml"]
    assert path.stat().st_mode & 0o777 == 0o600


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
        ("a: 1\nb:\n  c: 1\n  c: 2", "line 4: the key 'c' occurs twice"),
        ("a: 1\n---\nb: 2", "line 2: a second document"),
        ("a: 1e999", "line 1: a number is too large"),
        ("a: .nan", "NaN and infinity are not JSON"),
        ("a: " + "9" * 5_000, "line 1: a number has thousands of digits"),
        ("? [a]\n: b", "line 1: a key is a list"),
        ("", "it is empty"),
        ("a: b: c", "line 1: "),
        ("a: \x07", "a character that YAML does not allow"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        read_yaml(text)
    assert said in refused.value.message


@requirement("plans:hostile-files")
@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 5_000, "- [] \n" * 1_001])
def test_deep_and_endless_text_is_refused_before_it_is_built(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "MAX_VALUES", 1_000)
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
