"""Every guarantee in the manifest has a test, and every marked test names a guarantee."""

import functools
import re

from tests.requirements import REQUIREMENTS, SPECIFIED
from tests.support.paths import TESTS

MARKS = re.compile(r"(?:^ *@requirement\(|^        requirements=\()(.*?)\)", re.MULTILINE | re.DOTALL)
"""Above a test, and in a case of the channel suite, whose tests are marked with them."""


@functools.cache
def _marked() -> dict[str, set[str]]:
    """Returns the files that name each entry, read as text, so that tests which a run leaves out count too."""
    found: dict[str, set[str]] = {}
    for path in [*sorted(TESTS.rglob("test_*.py")), TESTS / "channels" / "suite.py"]:
        for marks in MARKS.findall(path.read_text(encoding="utf-8")):
            for name in re.findall(r'"([^"]+)"', marks):
                found.setdefault(name, set()).add(path.name)
    return found


def test_every_requirement_has_a_test() -> None:
    assert REQUIREMENTS.keys() - _marked().keys() == set()


def test_every_marker_names_a_requirement() -> None:
    assert {name: tests for name, tests in _marked().items() if name not in REQUIREMENTS} == {}


def test_every_requirement_is_a_sentence_and_specifications_demand_some_of_them() -> None:
    assert [name for name, behaviour in REQUIREMENTS.items() if not behaviour.endswith(".")] == []
    assert {name for names in SPECIFIED.values() for name in names} <= REQUIREMENTS.keys()
