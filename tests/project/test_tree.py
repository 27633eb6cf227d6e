"""Rules for the whole tree: one name for one thing, numbers that only fall, a test for each guarantee, no skips."""

import ast
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from dev.size import count_all, find_participles, find_phrases, is_far_below, lower, read_ceilings

from tests.harness.ledger import Ledger
from tests.requirements import REQUIREMENTS, SPECIFIED, requirement
from tests.support.paths import ROOT, TESTS

ROOMS = ("agent", "server", "storage", "tools")
NAMES = re.compile(r"`(\w[\w./]*(?: -> \w+)*)`")
"""What a docstring names: a module, a folder, a class, or modules in the order of calls."""


def modules() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


@requirement("names:one-class")
def test_a_public_class_name_stands_for_one_class_in_the_whole_package() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@requirement("names:rooms")
def test_every_folder_says_what_is_there_names_nothing_else_and_holds_no_code() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in modules()}
    classes = {name for text in texts.values() for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    for folder in {path.parent for path in texts}:
        body = ast.parse(texts[folder / "__init__.py"]).body
        text = ast.get_docstring(ast.Module(body, []))
        assert text, f"{folder.relative_to(ROOT)}/__init__.py has no docstring"
        assert len(body) == 1, f"{folder.relative_to(ROOT)}/__init__.py holds code"
        code = "".join(texts[path] for path in texts if folder in path.parents and path.name != "__init__.py")
        near = [folder, *folder.parents[: len(folder.relative_to(ROOT).parts)]]
        for name in (name for names in NAMES.findall(text) for name in names.split(" -> ")):
            is_file = any((place / suffixed).exists() for place in near for suffixed in (name, f"{name}.py"))
            assert is_file or name in classes or re.search(rf'def {name}\b|"{name}"', code), f"{folder}: {name}"


def test_the_map_of_folders_and_the_direction_of_imports_in_contributing_are_those_of_the_tree() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for room in (*ROOMS, "tests"):
        [row] = re.findall(rf"^\| `{room}/` \| (.*) \|$", text, re.MULTILINE)
        named, folders = set(re.findall(r"`(\w+)/`", row)), {path.parent for path in (ROOT / room).rglob("__init__.py")}
        assert {path.name for path in folders if path.parent == ROOT / room} - named - {*ROOMS} == set()
        assert named <= {path.name for path in folders}
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [" → ".join(contract["layers"]) for contract in linter["contracts"] if contract["type"] == "layers"]
    assert [line for line in layers if f"`{line.replace('planwarden.', '')}`" not in text] == []


def test_no_number_is_above_its_ceiling_or_far_below_it() -> None:
    numbers, ceilings = count_all(), read_ceilings()
    assert numbers.keys() == ceilings.keys()
    grown = {name: (number, ceilings[name]) for name, number in numbers.items() if number > ceilings[name]}
    assert grown == {}, "more than it may be, see `make size`: make it smaller, or take as much away elsewhere"
    fallen = {name: number for name, number in numbers.items() if is_far_below(number, ceilings[name])}
    assert fallen == {}, "much less than it may be: run `python -m dev.size --lower`, so that it stays so"


def test_a_ceiling_is_lowered_and_never_raised() -> None:
    assert lower({"sql": 100, "tests": 100}, {"sql": 90, "tests": 110}) == {"sql": 90, "tests": 100}
    assert lower({}, {"sql": 90}) == {"sql": 90}
    assert not is_far_below(980, 1000) and is_far_below(979, 1000)


def test_code_pages_and_docs_are_plain_english() -> None:
    assert list(find_participles()) == [], "name what the value is, not what happened to it"
    assert list(find_phrases()) == [], "say it plainly: these turns of phrase (PHRASES in dev/size.py) are read twice"


MARKS = re.compile(
    r"^(?: *@(?:kit\.)?requirement|pytestmark = [^\n]*requirement|        requirements=)\((.*?)\)",
    re.MULTILINE | re.DOTALL,
)
"""Above a test, at the top of a file, and in a case of the channel suite, whose tests are marked with them."""


@functools.cache
def _marked() -> dict[str, set[str]]:
    """Returns the files that name each entry, read as text, so that tests which a run leaves out count too."""
    found: dict[str, set[str]] = {}
    for path in [*sorted(TESTS.rglob("test_*.py")), TESTS / "channels" / "suite.py"]:
        for marks in MARKS.findall(path.read_text(encoding="utf-8")):
            for name in re.findall(r'"([^"]+)"', marks):
                found.setdefault(name, set()).add(path.name)
    return found


def test_every_requirement_has_a_test_and_every_marker_names_a_requirement() -> None:
    assert REQUIREMENTS.keys() ^ _marked().keys() == set()


def test_every_requirement_is_a_sentence_and_specifications_demand_some_of_them() -> None:
    assert [name for name, behaviour in REQUIREMENTS.items() if not behaviour.endswith(".")] == []
    assert {name for names in SPECIFIED.values() for name in names} <= REQUIREMENTS.keys()


SKIPPED = "import pytest\n\n\ndef test_a():\n    pytest.skip('there is no such program')\n"
PASSED = "def test_a():\n    pass\n"


def run_pytest(folder: Path, content: str, *options: str) -> tuple[int, str]:
    """Returns the exit code and the output of a session over one file, with our options."""
    file = folder / "test_one.py"
    file.write_text(content, encoding="utf-8")
    plugins = ["-p", "tests.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-ra", *options, str(file)]
    # What the outer session was told does not count for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [["-n", "1"], []])
def test_a_skipped_test_fails_a_session_that_allows_none_and_is_named(tmp_path: Path, workers: list[str]) -> None:
    code, said = run_pytest(tmp_path, SKIPPED, "--no-skips", *workers)
    assert (code, "there is no such program" in said) == (pytest.ExitCode.TESTS_FAILED, True)


@pytest.mark.exhaustive
def test_a_skipped_test_fails_no_session_that_was_not_told_so(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPPED)[0] == pytest.ExitCode.OK
    assert run_pytest(tmp_path, PASSED, "--no-skips")[0] == pytest.ExitCode.OK


def test_a_line_torn_by_a_kill_spoils_no_other_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.write("before")
    with ledger.path.open("ab") as file:
        file.write(b'\n["torn", {"key": "a')
    ledger.write("after")
    assert [line.what for line in ledger.lines()] == ["before", "after"]
