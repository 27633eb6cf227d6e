"""Every guarantee in the manifest has a test, and every marked test names a guarantee."""

import ast
import functools

from tests.requirements import REQUIREMENTS
from tests.support.paths import TESTS


@functools.cache
def _marked() -> dict[str, set[str]]:
    """Returns the tests that name each entry, read from the sources, so that tests which a run leaves out count too."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for name in _names(node):
                    found.setdefault(name, set()).add(f"{path.name}::{node.name}")
    return found


def _names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [
        str(argument.value)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "requirement"
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    ]


def test_every_requirement_has_a_test() -> None:
    assert REQUIREMENTS.keys() - _marked().keys() == set()


def test_every_marker_names_a_requirement() -> None:
    assert {name: tests for name, tests in _marked().items() if name not in REQUIREMENTS} == {}


def test_every_requirement_says_where_it_comes_from_and_what_is_observable() -> None:
    assert [name for name, entry in REQUIREMENTS.items() if not (entry.source and entry.behaviour.endswith("."))] == []
