"""The results, the table and the picture of the durable question."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

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
COLOURS = {"right": "#d7efd7", "asked": "#fdf3c4", "contradicted": "#f9cfa0", "doubled": "#f2a7a0", "lost": "#f2a7a0"}


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


def draw(path: Path, systems: list[str], outcomes: list[Any]) -> None:
    """Draw a cell for each scenario and system, with the worst of its jobs."""
    cells: dict[str, dict[str, str]] = {job["scenario"]: {} for job in outcomes}
    for job in sorted(outcomes, key=lambda job: job["verdict"] != "right"):
        cells[job["scenario"]][job["system"]] = describe(job)
    text = [[line[system] for system in systems] for line in cells.values()]
    colours = [[COLOURS.get(word.split()[0].rstrip(":"), "#cccccc") for word in line] for line in text]
    matplotlib.rcParams.update({"svg.hashsalt": "durable", "svg.fonttype": "none", "font.size": 9})
    figure, axes = pyplot.subplots(figsize=(12.5, 4.6), layout="constrained")
    axes.axis("off")
    axes.set_title("What became of one refund that a person approves, by what happened to its job")
    heads = [system.replace(", ", "\n") for system in systems]
    table = axes.table(text, colours, "center", rowLabels=list(cells), colLabels=heads, bbox=(0.0, 0.0, 1.0, 1.0))
    table.auto_set_font_size(False)
    figure.savefig(path, metadata={"Date": None})


def write(folder: Path, about: str, versions: dict[str, str], outcomes: list[Any]) -> None:
    """Write the results, the picture, and the table in the README."""
    systems = {name: count(versions[name], [job for job in outcomes if job["system"] == name]) for name in versions}
    sums = ",\n".join(f"  {json.dumps(name)}: {json.dumps(figures)}" for name, figures in systems.items())
    jobs = ",\n".join(f"  {json.dumps(job)}" for job in outcomes)
    text = f'{{\n "about": {json.dumps(about)},\n "systems": {{\n{sums}\n }},\n "outcomes": [\n{jobs}\n ]\n}}\n'
    (folder / "results.json").write_text(text, encoding="utf-8")
    draw(folder / "durable.svg", list(systems), outcomes)
    rows = [["", *systems], ["---", *["---:"] * len(systems)]]
    rows += [[words, *(figures[words] for figures in systems.values())] for words in next(iter(systems.values()))]
    table = "\n".join(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)
    readme = folder / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- table -->\n")
    after = rest.partition("<!-- end -->")[2]
    readme.write_text(f"{before}<!-- table -->\n{table}\n\n{about}.\n<!-- end -->{after}", encoding="utf-8")
