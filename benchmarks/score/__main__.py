"""Write the generated part of docs/score.md: `python -m benchmarks.score`, or with `--check` compares it.

`--check` does not drive the harness, and fails if the page says something else, or if there is a hole.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import anyio
from dev.page import fill_parts, write_parts, write_table
from tests.support.paths import DOCS

from benchmarks.score.asking import Half, count, judge_corpus
from benchmarks.score.harness import run_harness
from benchmarks.score.vectors import SUITES, Outcome, judge, read_vectors

PAGE = DOCS / "score.md"
DURABLE = Path(__file__).parent.parent / "durable" / "results.json"
DURABLE_COLUMNS = ("effects lost", "effects doubled", "told the opposite", "asked whether it happened", "asked again")


def main() -> int:
    """Return 1 if there is a hole, if a call that is never to pass passes, or if `--check` finds another figure."""
    is_check = "--check" in sys.argv[1:]
    vectors, holes = anyio.run(write_vectors)
    asking, passed = write_asking()
    parts = {"vectors": vectors, "asking": asking, "durable": write_durable()}
    if not is_check:
        with tempfile.TemporaryDirectory() as folder:
            parts["harness"] = write_harness(run_harness(Path(folder)))
    text = PAGE.read_text(encoding="utf-8")
    is_stale = is_check and fill_parts(text, parts) != text
    if not is_check:
        write_parts(PAGE, parts)
    for fault in (*holes, *(f"passed, and never should: {call}" for call in passed)):
        print(f"HOLE: {fault}", file=sys.stderr)
    if is_stale:
        print("docs/score.md says something else; `make score` writes it", file=sys.stderr)
    return 1 if holes or passed or is_stale else 0


async def write_vectors() -> tuple[str, list[str]]:
    """Return the table, and the holes."""
    outcomes: tuple[Outcome, ...] = get_args(Outcome)
    rows, holes = list[list[object]](), list[str]()
    for suite in SUITES:
        counts = Counter[Outcome]()
        for vector in read_vectors(suite):
            outcome = await judge(suite, vector)
            counts[outcome] += 1
            if outcome == "hole":
                holes.append(f"{suite}/{vector.name}")
        rows.append([suite, counts.total(), *(counts[outcome] for outcome in outcomes)])
    rows.append(["**all**", *(f"**{sum(int(str(row[column])) for row in rows)}**" for column in range(1, 7))])
    return write_table(["suite", "vectors", *outcomes], rows), holes


def write_asking() -> tuple[str, list[str]]:
    """Return the table, and the calls that passed although they never should."""
    with tempfile.TemporaryDirectory() as home:
        plain, full = (judge_corpus(Path(home), names_project=names_project) for names_project in (False, True))
    passed = [call.text for call, answer in (*plain, *full) if (call.label, answer) == ("never", "pass")]
    rows = [
        [f"{label}, {half}", numbers["calls"], count(plain, half)[label]["ask"], *list(numbers.values())[1:]]
        for half in get_args(Half)
        for label, numbers in count(full, half).items()
    ]
    columns = ["label, half", "calls", "asked as written", "pass", "asked", "refused"]
    return write_table(columns, rows), passed


def write_harness(suites: dict[str, list[tuple[str, str, str]]]) -> str:
    """Return how many cases of the harness ended how."""
    results = ("passed", "failed", "inconclusive")
    rows = [[name, *(sum(case[2] == result for case in cases) for result in results)] for name, cases in suites.items()]
    return write_table(["cases", *results], rows)


def write_durable() -> str:
    """Return what the benchmark of durable questions counted, a line for each system."""
    systems: dict[str, dict[str, Any]] = json.loads(DURABLE.read_text(encoding="utf-8"))["systems"]
    rows = [[name, *(counts[column] for column in DURABLE_COLUMNS)] for name, counts in systems.items()]
    return write_table([f"of {next(iter(systems.values()))['jobs']} jobs", *DURABLE_COLUMNS], rows)


if __name__ == "__main__":
    sys.exit(main())
