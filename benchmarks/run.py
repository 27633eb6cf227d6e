"""planwarden beside LangGraph and bare commits, on SQLite: `python -m benchmarks.run`, under four minutes on two cores.

All sides run in processes of their own and take turns in every round, in an order that rotates, so that a slow minute
of the machine hits all of them. Nothing is asserted and nothing is thrown away: the report shows medians and extremes.

Commits are counted in the write-ahead log: the last frame of every transaction carries the size of the database
(https://sqlite.org/fileformat2.html#the_write_ahead_log). Bytes are the size of the database file after everything in
the log has been moved into it, divided by the number of executions; index pages and free space included.
"""

import argparse
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from dev.page import report_progress, write_parts, write_table

from benchmarks import planwarden_side, startup
from benchmarks.floor import BODIES
from benchmarks.harness import (
    README,
    Child,
    Row,
    describe_machine,
    make_folder,
    spread,
    write_machine,
    write_result,
    write_spread,
    write_target,
)
from benchmarks.side import IN_FLIGHT

ROUNDS = 7
SEQUENTIAL = 40
COUNTED = 5
"""Executions whose commits are counted; few enough to stay below SQLite's automatic checkpoint."""
QUICK = 5
"""How many times as many executions a quick side runs per sample, so that all samples take about as long."""
HEADER, FRAME_HEADER = 32, 24
"""Bytes in the log: before everything, and before each page."""
PATIENCE_S = 10.0
HEADLINE = "langgraph step-nodes"
MODES = ("one after the other", f"{IN_FLIGHT} at once")
LIBRARIES = ("planwarden", "langgraph", "langgraph-checkpoint-sqlite", "aiosqlite", "mcp", "pydantic", "anyio")


def settle(database: Path) -> int:
    """Move the log into the database, empty it, and return the size of the database. No other process may write."""
    is_busy = True
    give_up_at = time.monotonic() + PATIENCE_S
    with closing(sqlite3.connect(database)) as connection:
        # planwarden's own checkpoint, on a thread, may still be under way.
        while is_busy and time.monotonic() < give_up_at:
            is_busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if is_busy:
        raise RuntimeError(f"{database.name} is being written; its log cannot be emptied")
    return database.stat().st_size


def count_commits(database: Path) -> tuple[int, int]:
    """Return the transactions and the bytes in the log since it was last emptied, before it has to be again."""
    content = database.with_name(database.name + "-wal").read_bytes()
    frame_size = FRAME_HEADER + int.from_bytes(content[8:12], "big")
    frames = [content[start : start + FRAME_HEADER] for start in range(HEADER, len(content), frame_size)]
    # What is left of an older round has another salt.
    valid = list(takewhile(lambda frame: frame[8:16] == content[16:24], frames))
    # The frame that ends a transaction has the size of the database, the others have 0.
    return sum(1 for frame in valid if any(frame[4:8])), len(valid) * frame_size


@dataclass
class Side:
    """One side, how much of it is needed for its sizes, and what it took."""

    name: str
    module: str
    database: str
    finished: int = 0
    suspended: int = 0
    times: int = 1
    tree: Path | None = None
    """Another checkout of planwarden that it runs; None for this one."""
    child: Any = None
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds of an execution."""
    figures: dict[str, float] = field(default_factory=dict[str, float])

    def start(self, stack: ExitStack, folder: Path) -> None:
        """Start its process, and warm it up."""
        place = folder / self.name
        place.mkdir(exist_ok=True)
        self.database = str(place / self.database)
        self.child = stack.enter_context(Child(self.module, self.name.rpartition(" ")[2], place, tree=self.tree))
        self.figures["idle_bytes"] = self.child.call("look")["peak_bytes"]
        self.child.call("sequential", count=10)
        self.child.call("concurrent", count=IN_FLIGHT)

    def count_commits(self) -> None:
        """Count the transactions and the bytes of log that one execution costs, in the log itself."""
        # A side that slept renews its leases first, which belongs to no execution; give it time for that.
        self.child.call("sequential", count=SEQUENTIAL)
        settle(Path(self.database))
        self.child.call("sequential", count=COUNTED)
        commits, size = count_commits(Path(self.database))
        self.figures |= {"commits": commits / COUNTED, "log_bytes": size / COUNTED}

    def sample(self) -> None:
        """Run executions one after the other, and at once."""
        for mode, number in (("sequential", SEQUENTIAL * self.times), ("concurrent", IN_FLIGHT * self.times)):
            answer = self.child.call(mode, count=number)
            self.samples.setdefault(f"{mode}_seconds", []).append(answer["seconds"] / number)
            self.figures["peak_bytes"] = answer["peak_bytes"]

    def measure_sizes(self) -> list[tuple[str, str]]:
        """Measure bytes per finished and per suspended execution; return questions that wait now."""
        empty = settle(Path(self.database))
        self.child.call("concurrent", count=self.finished)
        finished = settle(Path(self.database))
        waiting = self.child.call("suspend", count=self.suspended)["value"]
        suspended = settle(Path(self.database))
        self.figures["finished_bytes"] = (finished - empty) / self.finished
        self.figures["suspended_bytes"] = (suspended - finished) / self.suspended
        return waiting

    def sum_up(self) -> Mapping[str, Any]:
        """Return medians, extremes and single figures."""
        return {**{key: spread(values) for key, values in self.samples.items()}, **self.figures}


def make_sides() -> tuple[Side, ...]:
    """Return planwarden, its peers and the floor."""
    forms = ("step-nodes", "plan-executor", "functional")
    return (
        Side("planwarden", "planwarden_side", planwarden_side.DATABASE, 2_000, 10_000, QUICK),
        *(Side(f"langgraph {form}", "langgraph_side", "langgraph.db", 200, 200) for form in forms),
        Side("floor", "floor", "floor.db", times=QUICK),
    )


def record_bodies(folder: Path) -> list[str]:
    """Return what planwarden logs for one execution: the body of each of its transactions, in order."""
    folder.mkdir()
    with Child("planwarden_side", "planwarden", folder) as child:
        child.call("sequential", count=1)
    with closing(sqlite3.connect(folder / planwarden_side.DATABASE)) as connection:
        return [str(body) for (body,) in connection.execute("SELECT body FROM events ORDER BY position")]


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Return everything that the report shows."""
    facts, sides = describe_machine(folder, *LIBRARIES), make_sides()
    (folder / "floor").mkdir()
    (folder / "floor" / BODIES).write_text(json.dumps(record_bodies(folder / "log")))
    with ExitStack() as stack:
        report_progress("starting and warming up, counting commits")
        for side in sides:
            side.start(stack, folder)
        for side in sides:
            side.count_commits()
        take_turns(sides, rounds)
        report_progress("measuring sizes")
        waiting, *_ = [side.measure_sizes() for side in sides if side.finished]
    report_progress("resuming in fresh processes")
    cold = startup.measure_cold_resume(folder / "planwarden", waiting)
    report_progress("first answers")
    answers = anyio.run(startup.measure_first_answers, folder / "server")
    report_progress("commands")
    commands = startup.measure_commands(folder / "commands")
    return {
        "about": facts,
        "sides": {side.name: side.sum_up() for side in sides},
        "cold_resume": {**_spread_all(cold, ("seconds", "interpreter")), "imported": cold["imported"]},
        "first_answer": {
            version: {name: _spread_all(values, values) for name, values in servers.items()}
            for version, servers in answers.items()
        },
        "commands": _spread_all(commands, commands),
    }


def take_turns(sides: tuple[Side, ...], rounds: int) -> None:
    """Sample each side in each round, in an order that rotates."""
    for turn in range(rounds):
        report_progress(f"round {turn + 1} of {rounds}")
        shift = turn % len(sides)
        for side in sides[shift:] + sides[:shift]:
            side.sample()


def compare(folder: Path, tree: Path, rounds: int) -> Iterator[str]:
    """Yield the time of an execution in another checkout, which has its own `.venv`, and in this one."""
    database = planwarden_side.DATABASE
    there, here = (
        Side(f"{name} planwarden", "planwarden_side", database, times=QUICK, tree=checkout)
        for name, checkout in (("there", tree), ("here", None))
    )
    with ExitStack() as stack:
        for side in (there, here):
            side.start(stack, folder)
        take_turns((there, here), rounds)
    for mode, other in there.samples.items():
        (before, fastest_before), (now, fastest) = (
            (median(seconds), min(seconds)) for seconds in (other, here.samples[mode])
        )
        yield (
            f"{mode.removesuffix('_seconds')}: {before * 1000:.2f} -> {now * 1000:.2f} ms, {now / before:.2f} x "
            f"(fastest {fastest / fastest_before:.2f} x)"
        )


def _spread_all(samples: Mapping[str, list[float]], keys: Iterable[str]) -> dict[str, Any]:
    return {key: spread(samples[key]) for key in keys}


def write_bench(summary: dict[str, Any]) -> str:
    """Return the generated part of the README, from `results/latest.json`."""
    sides = summary["sides"]
    parts = {
        "Time and commits per execution": write_table(["", *MODES, "commits", "log written"], _time_rows(sides)),
        "planwarden is so many times as fast": write_table(["than", *MODES], _ratio_rows(sides)),
        "On disk and in memory": write_table(
            ["", "finished", "suspended", "memory idle", "memory peak"], _size_rows(sides)
        ),
        "Figures to reach": write_table(["", "measured", "to reach", ""], _target_rows(summary)),
    }
    return "\n\n".join([write_machine(summary["about"]), *(f"## {title}\n\n{part}" for title, part in parts.items())])


def _time_rows(sides: dict[str, Any]) -> Iterator[Row]:
    for name, side in sides.items():
        times = (write_spread(side[f"{mode}_seconds"], "{:.2f}", " ms", 1000) for mode in ("sequential", "concurrent"))
        yield name, *times, f"{side['commits']:g}", f"{side['log_bytes'] / 1000:.0f} KB"


def _divide(sides: dict[str, Any], name: str, mode: str, kind: str = "median") -> float:
    """Return how many times longer another side takes than planwarden."""
    return sides[name][f"{mode}_seconds"][kind] / sides["planwarden"][f"{mode}_seconds"][kind]


def _ratio_rows(sides: dict[str, Any]) -> Iterator[Row]:
    for name in (name for name in sides if name != "planwarden"):
        digits = 2 if name == "floor" else 1
        ratios = (
            f"{_divide(sides, name, mode):.{digits}f} ({_divide(sides, name, mode, 'min'):.{digits}f})"
            for mode in ("sequential", "concurrent")
        )
        yield f"{name} (headline)" if name == HEADLINE else name, *ratios


def _size_rows(sides: dict[str, Any]) -> Iterator[Row]:
    for name, side in sides.items():
        if side.get("finished_bytes") is not None:
            sizes = (f"{side[key]:.0f} B" for key in ("finished_bytes", "suspended_bytes"))
            memory = (f"{side[key] / 1e6:.0f} MB" for key in ("idle_bytes", "peak_bytes"))
            yield name, *sizes, *memory


def _target_rows(summary: dict[str, Any]) -> Iterator[Row]:
    sides, cold = summary["sides"], summary["cold_resume"]
    ours = sides["planwarden"]
    for mode, title, least in zip(("sequential", "concurrent"), MODES, (4, 13), strict=True):
        yield write_target(f"times LangGraph, {title}", _divide(sides, HEADLINE, mode), least, "{:.1f}", at_least=True)
    yield write_target("commits per execution", ours["commits"], 8, "{:g}")
    yield write_target("bytes per finished execution", ours["finished_bytes"], 6144, "{:.0f}")
    yield write_target("bytes per suspended execution", ours["suspended_bytes"], 5120, "{:.0f}")
    yield write_target("cold resume among 10,000, ms", cold["seconds"]["median"] * 1000, 350, "{:.0f}")
    for name, values in summary["commands"].items():
        yield write_target(f"planwarden {name}, start to exit, ms", values["median"] * 1000, 350, "{:.0f}")
    yield "  Python alone, ms", f"{cold['interpreter']['median'] * 1000:.0f}", "", ""
    yield write_target("of mcp and the like imported by it", len(cold["imported"]), 0, "{:.0f}")
    held_mb: list[float] = []
    for version, servers in summary["first_answer"].items():
        both = [servers[name] for name in ("planwarden", "empty")]
        (first, empty_first), (tools, empty_tools) = (
            [server[key]["median"] for server in both] for key in ("first", "tools_list")
        )
        held_mb.append((both[0]["idle_bytes"]["median"] - both[1]["idle_bytes"]["median"]) / 1e6)
        yield write_target(f"first answer ({version}), times an empty server", first / empty_first, 1.2)
        yield "  in ms, planwarden / empty", f"{first * 1000:.0f} / {empty_first * 1000:.0f}", "", ""
        yield "  with tools/list, times an empty server", f"{tools / empty_tools:.2f}", "", ""
    yield write_target("idle over stdio, MB more than an empty server", held_mb[0], 25, "{:.1f}")


def main() -> None:
    """Measure, print, and write `results/latest.json` and `README.md`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns that every side gets")
    parser.add_argument("--against", type=Path, metavar="TREE", help="only compare with another checkout; print it")
    options = parser.parse_args()
    with make_folder() as folder:
        if options.against:
            print(*compare(folder, options.against.resolve(), options.rounds), sep="\n")
            return
        summary = measure(folder, options.rounds)
    write_result("latest", summary)
    write_parts(README, {"bench": write_bench(summary)})


if __name__ == "__main__":
    main()
