"""Everything about several processes in one run: `python -m benchmarks.scale.run`, under ten minutes on two cores.

Writes `results/scale.json`, `docs/images/scale.svg` and the section of `benchmarks/README.md`; `--draw` does so from
the results that are there.
"""

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.support.postgres import Server

from benchmarks.report import about
from benchmarks.scale import report
from benchmarks.scale.costs import Costs, record_costs
from benchmarks.scale.measure import (
    FRONT,
    PLANWARDEN,
    PROCESSES,
    SIDES,
    Child,
    measure_decisions,
    measure_rate,
    measure_takeover,
    percentile,
    spread,
    start,
)
from benchmarks.scale.recording import record
from benchmarks.scale.server import settle, slow_disk, started, version
from benchmarks.scale.simulation import simulate

HERE = Path(__file__).parent.parent
RESULTS = HERE / "results" / "scale.json"
PICTURE = HERE.parent / "docs" / "images" / "scale.svg"
README = HERE / "README.md"
ROUNDS = 4
TURNS = 2
"""That every side gets for decisions."""
KILLS = 3
WORKERS = (1, 2, 4, 8, 16, 32, 64, 100)
CORES = (4, 16)
LIBRARIES = ("planwarden", "psycopg", "dbos", "langgraph", "langgraph-checkpoint-postgres", "procrastinate")


def main() -> None:
    """Measure, print, and write the results, the picture and the section of the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that every side gets")
    parser.add_argument("--dry", action="store_true", help="only print; leave the results in the repository alone")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if chosen.draw else _measure(chosen.rounds)
    print(report.section(found))
    if not chosen.dry:
        RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        PICTURE.write_text(report.picture(found), encoding="utf-8")
        text = README.read_text(encoding="utf-8")
        README.write_text(report.replace_section(text, report.section(found)), encoding="utf-8")


def _measure(rounds: int) -> dict[str, Any]:
    began = time.perf_counter()

    def say(what: str) -> None:
        print(f"[{time.perf_counter() - began:4.0f} s] {what}", file=sys.stderr)

    with started() as server:
        found: dict[str, Any] = {
            "about": {**about(server.folder, LIBRARIES), "postgresql": version(server)},
        }
        say("rates")
        rates = _measure_rates(server, rounds, say)
        found["rates"] = {
            name: {kind: {key: spread(values) for key, values in taken.items()} for kind, taken in kinds.items()}
            for name, kinds in rates.items()
        }
        say("decisions")
        found["decisions"] = _measure_decisions(server)
        say("takeovers")
        found["takeovers"] = _measure_takeovers(server)
        say("costs")
        url = server.make_database()
        recording = asyncio.run(record(url))
        process_cpu = found["rates"][PLANWARDEN.name]["cpu"]["1"]["median"]
        costs = record_costs(url, server.folder, recording, process_cpu)
    found["costs"] = asdict(costs)
    say("simulation")
    found["simulation"] = _simulate(costs)
    say("done")
    return found


def _measure_rates(server: Server, rounds: int, say: Any) -> dict[str, dict[str, dict[str, list[float]]]]:
    """By side, by what `measure_rate` returns, and by number of processes; `slow` is all of them on a slower disk."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with ExitStack() as stack:
        children = {spec: start(stack, spec, server.make_database()) for spec in SIDES}
        for turn in range(rounds):
            say(f"round {turn + 1} of {rounds}")
            order = SIDES[turn % len(SIDES) :] + SIDES[: turn % len(SIDES)]
            for key in (*map(str, PROCESSES), "slow"):
                for spec in order:
                    with ExitStack() as disk:
                        if key == "slow":
                            disk.enter_context(slow_disk(server))
                        using = children[spec][: max(PROCESSES) if key == "slow" else int(key)]
                        for kind, value in measure_rate(using, server.folder).items():
                            found.setdefault(spec.name, {}).setdefault(kind, {}).setdefault(key, []).append(value)
    return found


def _measure_decisions(server: Server) -> dict[str, dict[str, float]]:
    """Decided by the second process of a side, or by the first one where that is a front, which works on nothing."""
    settle(server)
    pairs = {spec.name: spec.name for spec in SIDES if spec.crosses} | {FRONT: PLANWARDEN.name}
    taken: dict[str, list[float]] = {name: [] for name in pairs}
    for turn in range(TURNS):
        for first, second in list(pairs.items())[:: -1 if turn % 2 else 1]:
            url, effects = server.make_database(), SimpleQueue[tuple[str, float]]()
            with Child(first, url, effects) as beginner, Child(second, url, effects) as other:
                for child in (beginner, other):
                    child.call("run", seconds=0.5, at_once=5)
                settle(server)
                taken[first] += measure_decisions(beginner, beginner if first == FRONT else other)
    return {
        name: {"p50": percentile(values, 0.50), "p99": percentile(values, 0.99), "samples": len(values)}
        for name, values in taken.items()
    }


def _measure_takeovers(server: Server) -> dict[str, dict[str, dict[str, float]]]:
    """The processes only wait, so the sides are measured at the same time, each in a database of its own."""
    sides = [spec for spec in SIDES if spec.takes_over]

    def measure(index: int) -> dict[str, dict[str, float]]:
        spec, url = sides[index], server.make_database()
        killed = [taken for _ in range(KILLS) for taken in measure_takeover(spec, url, kills=True)]
        stopped = measure_takeover(spec, server.make_database(), kills=False)
        return {"killed": spread(killed), "stopped": spread(stopped)}

    with ThreadPoolExecutor(len(sides)) as threads:
        return dict(zip((spec.name for spec in sides), threads.map(measure, range(len(sides))), strict=True))


def _simulate(costs: Costs) -> dict[str, dict[str, dict[str, float]]]:
    """By cores of the database and number of workers."""
    return {
        str(cores): {str(workers): asdict(simulate(costs, workers, cores)) for workers in WORKERS} for cores in CORES
    }


if __name__ == "__main__":
    main()
