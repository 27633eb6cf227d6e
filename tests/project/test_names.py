"""One thing has one name, and one name means one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import requirement
from tests.support.paths import ROOT

ROOMS = ("agent", "server", "storage", "tools")


def modules() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


@requirement("names:one-class")
def test_a_public_class_name_stands_for_one_class_in_the_whole_package() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@requirement("names:rooms")
def test_every_folder_says_what_lives_there_and_its_package_file_holds_no_code() -> None:
    folders = {path.parent for path in modules()}
    assert len(folders) > 20
    for folder in folders:
        body = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(body), f"{folder.relative_to(ROOT)}/__init__.py has no docstring"
        assert len(body.body) == 1, f"{folder.relative_to(ROOT)}/__init__.py holds code"
