"""The results and the tables of the durable question."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

COUNTS: dict[str, Callable[[Any], bool]] = {
    "effects lost": lambda job: job["verdict"] == "lost",
    "effects doubled": lambda job: job["verdict"] == "doubled",
    "told the opposite": lambda job: job["verdict"] == "contradicted",
    "ended in an error": lambda job: job["verdict"].startswith("failed"),
    "asked whether it happened": lambda job: job["asked_outcome"] > 0,
    "asked again": lambda job: job["asked_again"] > 0,
    "questions lost": lambda job: job["question_lost"] > 0,
    "delivered to a late caller": lambda job: job["late"] is not None,
    "jobs": lambda job: True,
}
TIMES = {
    "answer to effect, ms": "answered by another process",
    "new process to effect, ms": "answered after a restart",
}


def count(version: str, jobs: list[Any]) -> dict[str, Any]:
    """Return the figures of one system, by the words of the table."""
    sums: dict[str, Any] = {"version": version, **{words: sum(map(test, jobs)) for words, test in COUNTS.items()}}
    for words, scenario in TIMES.items():
        times = [job["ms"] for job in jobs if job["scenario"] == scenario and job["ms"] is not None]
        sums[words] = round(median(times)) if times else None
    return sums


def describe(job: Any) -> str:
    """Return a word for what became of a job."""
    asked = "asked: sent?" if job["asked_outcome"] else "asked again" if job["asked_again"] else "right"
    return asked if job["verdict"] == "right" else job["verdict"].partition(":")[0]


def list_worst(systems: Iterable[str], outcomes: list[Any]) -> list[list[str]]:
    """Return a row for each scenario, with the worst of the jobs of each system."""
    cells: dict[str, dict[str, str]] = {job["scenario"]: {} for job in outcomes}
    for job in sorted(outcomes, key=lambda job: job["verdict"] != "right"):
        cells[job["scenario"]][job["system"]] = describe(job)
    return [[scenario, *(row[system] for system in systems)] for scenario, row in cells.items()]


def write(folder: Path, about: str, versions: dict[str, str], outcomes: list[Any]) -> None:
    """Write the results, and the tables in the README."""
    systems = {name: count(versions[name], [job for job in outcomes if job["system"] == name]) for name in versions}
    sums = ",\n".join(f"  {json.dumps(name)}: {json.dumps(figures)}" for name, figures in systems.items())
    jobs = ",\n".join(f"  {json.dumps(job)}" for job in outcomes)
    text = f'{{\n "about": {json.dumps(about)},\n "systems": {{\n{sums}\n }},\n "outcomes": [\n{jobs}\n ]\n}}\n'
    (folder / "results.json").write_text(text, encoding="utf-8")
    figures = [[words, *(sums[words] for sums in systems.values())] for words in next(iter(systems.values()))]
    tables = [
        [["", *systems], ["---", *["---:"] * len(systems)], *rows] for rows in (figures, list_worst(systems, outcomes))
    ]
    parts = ["\n".join(f"| {' | '.join(map(str, row))} |" for row in table) for table in tables]
    readme = folder / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- table -->\n")
    after = rest.partition("<!-- end -->")[2]
    content = "\n\n".join([*parts, f"{about}."])
    readme.write_text(f"{before}<!-- table -->\n{content}\n<!-- end -->{after}", encoding="utf-8")
