"""How large the project is, with docstrings, comments and blank lines: `make size` prints it against what it may be.

`tests/project/test_tree.py` fails above the ceilings of `tests/project/size.toml`; `--lower` lowers them, raising none.
"""

import argparse
import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import DOCS, ROOT, TESTS

CEILINGS = TESTS / "project" / "size.toml"
ROOTS = ("agent", "tools", "storage", "server")
SLACK = 0.02
"""How far below its ceiling a number may be before the ceiling is to be lowered, as a part of the ceiling."""

PARTICIPLES = {"asked", "chosen", "done", "found", "given", "gone", "held", "kept", "known", "left", "made"} | {
    *("named", "needed", "said", "seen", "sent", "shown", "taken", "told", "wanted", "written")
}
"""As names of variables they say what happened to a value, not what it is."""
PUBLIC_FIELDS = {"found", "left"}
"""Fields that the wire and the Python API name so."""
PHRASES = re.compile(
    (
        r"of which|whoever|whomever|nobody [a-z ]*who\b|(?<!there\s)\b(is|are) no (?!longer|more)[a-z]|is not no\b"
        r"|\bstands\b|\bbesides\b|\bmeanwhile\b|\bas ever\b|of today\b|the doing of|by its own word|says so of itself"
        r"|to be had\b"
    ).replace(" ", r"\s+"),
    re.IGNORECASE,
)
"""Turns of phrase that one reads twice, also where a line ends within them."""

HEAD = """\
# How large the project may be: ceilings that only fall. `python -m dev.size --lower` lowers each to the number of now.
# Where two branches lowered the same ceiling, take either line and run it again.
"""


@dataclass(frozen=True, slots=True)
class Measure:
    label: str
    count: Callable[[], int]
    most: int | None
    """The number that has to be reached, if one was set."""
    aim: int | None


def _files(*folders: str, pattern: str = "*.py") -> Iterator[Path]:
    return (path for folder in folders for path in sorted((ROOT / folder).rglob(pattern)))


def _lines(*folders: str, pattern: str = "*.py") -> Callable[[], int]:
    return lambda: sum(len(path.read_bytes().splitlines()) for path in _files(*folders, pattern=pattern))


def _modules(*folders: str) -> Callable[[], int]:
    return lambda: sum(1 for _ in _files(*folders))


def _count_late_imports() -> int:
    paths = (path for path in _files(*ROOTS) if re.search(r"\n +(import|from) ", path.read_text(encoding="utf-8")))
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_bytes())))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = (node for function in functions for node in ast.walk(function))
    return len({node for node in inner if isinstance(node, ast.Import | ast.ImportFrom)})


def _count_type_checking() -> int:
    paths = (path for path in _files(*ROOTS) if "TYPE_CHECKING" in path.read_text(encoding="utf-8"))
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_bytes())))
    return sum(isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") for node in nodes)


def _count_words() -> int:
    pages = (path for path in DOCS.rglob("*.md") if DOCS / "reference" not in path.parents)
    return sum(len(path.read_text(encoding="utf-8").split()) for path in pages)


MEASURES: dict[str, Measure] = {
    "python": Measure("Python in the four roots, lines", _lines(*ROOTS), 50_000, 45_000),
    "agent": Measure("... in agent", _lines("agent"), 14_500, 13_000),
    "tools": Measure("... in tools", _lines("tools"), 5_500, 5_000),
    "storage": Measure("... in storage", _lines("storage"), 5_200, 4_600),
    "server": Measure("... in server", _lines("server"), 25_000, 22_000),
    "sql": Measure("SQL, lines", _lines(*ROOTS, pattern="*.sql"), 1_500, 1_300),
    "modules": Measure("modules in the four roots", _modules(*ROOTS), 380, 300),
    "tests": Measure("Python in tests, lines", _lines("tests"), 50_000, 42_000),
    "test_modules": Measure("modules in tests", _modules("tests"), 330, None),
    "programs": Measure("Python in dev and benchmarks, lines", _lines("dev", "benchmarks"), 4_500, 3_500),
    "late_imports": Measure("imports inside functions", _count_late_imports, 40, None),
    "type_checking": Measure("TYPE_CHECKING blocks", _count_type_checking, 15, None),
    "words": Measure("words in docs without docs/reference", _count_words, 20_000, 16_000),
}


def read_ceilings() -> dict[str, int]:
    """Return the ceiling of each measure, as the file has it."""
    return tomllib.loads(CEILINGS.read_text(encoding="utf-8"))


def find_participles() -> Iterator[str]:
    """Yield where a variable, an argument or a field is named by a participle, as `file:line: name`."""
    for path in _files(*ROOTS):
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        fields = [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
        public = {field for field in fields if isinstance(field, ast.Name) and field.id in PUBLIC_FIELDS}
        stores = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        names = [(node.lineno, node.id) for node in stores if node not in public]
        names += [(node.lineno, node.arg) for node in nodes if isinstance(node, ast.arg)]
        names += [(node.lineno, str(node.name)) for node in nodes if isinstance(node, ast.MatchAs)]
        yield from (f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in names if name in PARTICIPLES)


def find_phrases() -> Iterator[str]:
    """Yield where code, pages and docs have a turn of phrase that one reads twice, as `file:line: phrase`."""
    texts = (path for path in _files(*ROOTS, pattern="*.*") if path.suffix in (".py", ".html", ".sql", ".css", ".js"))
    for path in (*texts, *_files("docs", pattern="*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        content = path.read_text(encoding="utf-8")
        for match in PHRASES.finditer(content):
            yield f"{path.relative_to(ROOT)}:{content.count(chr(10), 0, match.start()) + 1}: {match[0]}"


def count_all() -> dict[str, int]:
    """Return the number of each measure, as the files are now."""
    return {name: measure.count() for name, measure in MEASURES.items()}


def is_far_below(number: int, ceiling: int) -> bool:
    """Return whether `ceiling` is to be lowered to `number`."""
    return ceiling - number > max(ceiling * SLACK, 5)


def lower(ceilings: dict[str, int], numbers: dict[str, int]) -> dict[str, int]:
    """Return the ceilings, each lowered to its number where that is less. A new measure starts at its number."""
    return {name: min(number, ceilings.get(name, number)) for name, number in numbers.items()}


def write_table(numbers: dict[str, int], ceilings: dict[str, int]) -> str:
    """Return the table that `make size` prints."""
    lines = [f"{'':<38}{'now':>10}{'ceiling':>10}{'at most':>10}{'aim':>10}"]
    for name, measure in MEASURES.items():
        cells = (numbers[name], ceilings.get(name), measure.most, measure.aim)
        lines.append(f"{measure.label:<38}" + "".join(f"{'-' if cell is None else f'{cell:,}':>10}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how large the project is, against what it may be.")
    parser.add_argument("--lower", action="store_true", help="lower each ceiling to the number of now; raise none")
    numbers, ceilings = count_all(), read_ceilings()
    if parser.parse_args().lower:
        ceilings = lower(ceilings, numbers)
        lines = (f"{name} = {ceiling}\n" for name, ceiling in ceilings.items())
        CEILINGS.write_text(HEAD + "".join(lines), encoding="utf-8")
    print(write_table(numbers, ceilings))


if __name__ == "__main__":
    main()
