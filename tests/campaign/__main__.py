"""`make campaign`: one part after another, each bounded in time, and what all of them come to together.

A part runs two lanes at the same time; a lane is a process with stages of its own, one after another. Every round is
one line of JSON in the results; `--summary` adds the lines up. A stage that breaks a promise is kept.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import anyio

from tests.campaign.mishaps import KILLS
from tests.campaign.rounds import KILLED, run_stage
from tests.harness.seams import PLANTS, SHARED_PLANTS
from tests.harness.stage import SharedDatabase
from tests.race.racer import race_again_and_again
from tests.support.paths import ROOT
from tests.support.postgres import Server

Line = dict[str, Any]

FOLDER = ROOT / ".cache" / "campaign"
RESULTS = FOLDER / "results.jsonl"
PART_S = 470.0
PLANT_ROUNDS = 60
"""In how many rounds of each lane a planted bug has to be found."""
LANES, LANE_SEEDS, MAX_ROUNDS_PER_STAGE = 2, 100_000, 8
RACES = 250
"""In a batch of decisions."""
SHARED = "postgres"
"""The part whose processes share a PostgreSQL."""
SUMS = ("executions", "effects", "decisions", "reconciles", "seconds")
ALL_PLANTS = sorted({**PLANTS, **SHARED_PLANTS})


def main() -> int:
    given = _read_arguments()
    if given.lane is not None:
        return anyio.run(run_lane, given)
    if given.teeth:
        return max(run_lanes(given, plant) for plant in ALL_PLANTS)
    if given.part == "decisions":
        return run_decisions(given.seconds)
    if given.part == "pairs":
        # Two crashes at every pair of store calls: tests too long for every day.
        command = [sys.executable, "-m", "pytest", "-q", "--long", "-m", "long", "-n", "2"]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    if not given.summary:
        return run_lanes(given, given.plant)
    print(summarize(lines := read_results()))
    return int(any(line["breaches"] for line in lines if line.get("plant") is None))


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.campaign", description=__doc__)
    parser.add_argument("--part", default="1", help="a number for the seeds, or postgres, kills, decisions, pairs")
    parser.add_argument("--seed", type=int, help="the seed of one stage, to run only that one")
    parser.add_argument("--rounds", type=int, default=10_000, help="at most so many rounds in each lane")
    parser.add_argument("--seconds", type=float, default=PART_S, help="begins no round after so many seconds")
    parser.add_argument("--plant", choices=ALL_PLANTS, help="a planted bug, which has to be found")
    parser.add_argument("--teeth", action="store_true", help="look for every planted bug")
    parser.add_argument("--summary", action="store_true", help="add up the results")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_lanes(given: argparse.Namespace, plant: str | None) -> int:
    """Run one part. Return 0 when no promise was broken; with a planted bug, when it was found."""
    before = len(read_results())
    part = SHARED if plant in SHARED_PLANTS else given.part
    command = [*([] if part == SHARED else _own_mounts()), sys.executable, "-m", "tests.campaign", "--part", part]
    command += ["--seconds", str(given.seconds), "--rounds", str(given.rounds if plant is None else PLANT_ROUNDS)]
    command += ["--plant", plant] if plant is not None else []
    command += ["--seed", str(given.seed)] if given.seed is not None else []
    count = 1 if given.seed is not None or plant is not None else LANES
    lanes = [subprocess.Popen([*command, "--lane", str(lane)], cwd=ROOT) for lane in range(count)]
    codes = [lane.wait() for lane in lanes]
    new = read_results()[before:]
    is_broken = any(line["breaches"] for line in new)
    print(describe_rounds(new) if plant is None else describe_plant(plant, new), flush=True)
    return int(any(codes) or is_broken is (plant is None))


def _own_mounts() -> list[str]:
    """Return the prefix of a command whose mounts nobody else sees and that vanish with it, where that is allowed."""
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which("unshare") is not None:
            mount = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
            if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
                return prefix
    return []


async def run_lane(given: argparse.Namespace) -> int:
    """Run stages until the time or the rounds are used up; a planted bug ends them when it is found."""
    deadline, rounds = time.monotonic() + given.seconds, 0
    number = 0 if given.part in (SHARED, "kills") else int(given.part)
    first = (number * LANES + given.lane) * LANE_SEEDS if given.seed is None else given.seed
    server = Server() if given.part == SHARED else None
    cast, mishaps = (KILLED, KILLS) if given.part == "kills" else (None, None)
    for seed in range(first, first + (LANE_SEEDS if given.seed is None else 1)):
        folder = FOLDER / "stages" / f"{given.plant or 'product'}-{seed}-{os.getpid()}"
        count = min(given.rounds - rounds, random.Random(seed).randrange(2, MAX_ROUNDS_PER_STAGE + 1))
        database = None if server is None else SharedDatabase(server)
        outcomes = await run_stage(folder, seed, count, deadline, given.plant, database, cast=cast, mishaps=mishaps)
        rounds += len(outcomes)
        append_results(*({**asdict(outcome), "part": given.part} for outcome in outcomes))
        breaches = [(outcome.round, breach) for outcome in outcomes for breach in outcome.breaches]
        for round_number, breach in breaches:
            print(f"seed {seed}, round {round_number}: {breach}\n  kept in {folder}", flush=True)
        if database is not None:
            database.close(folder if breaches else None)
        if not breaches:
            shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline or rounds >= given.rounds or (breaches and given.plant is not None):
            break
    return 0


def run_decisions(seconds: float) -> int:
    """Run batches of races for one question, one after another, each as one line of the results."""
    deadline, seed, is_broken = time.monotonic() + seconds, len(read_results()), False
    while time.monotonic() < deadline:
        folder = FOLDER / f"decisions-{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        report = race_again_and_again(folder, RACES, seed)
        append_results({"part": "decisions", "rounds": RACES, "effects": report.effects, "breaches": report.broken})
        is_broken |= bool(report.broken)
        if not report.broken:
            shutil.rmtree(folder)
        seed += 1
    return int(is_broken)


def append_results(*lines: Line) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in lines))


def read_results() -> list[Line]:
    """Return one object for each round or batch that ran here, oldest first."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def summarize(lines: list[Line]) -> str:
    """Add up rounds, batches and planted bugs, each by itself."""
    groups: dict[str, list[Line]] = {name: [] for name in ("files", SHARED, "kills", "decisions")}
    for line in lines:
        if line.get("plant") is None:
            groups.get(line["part"], groups["files"]).append(line)
    return "\n".join(
        [
            *(f"{name}: {describe_rounds(found)}" for name, found in groups.items()),
            *(describe_plant(name, lines) for name in ALL_PLANTS),
        ]
    )


def describe_rounds(lines: list[Line]) -> str:
    mishaps = Counter(name for line in lines for name in line.get("mishaps", ()))
    breaches = Counter(breach.partition(":")[0] for line in lines for breach in line["breaches"])
    counts = " ".join(f"{name}={sum(line.get(name, 0) for line in lines):.0f}" for name in SUMS)
    return (
        f"rounds={sum(line.get('rounds', 1) for line in lines)} {counts}\n"
        f"  mishaps: {dict(mishaps.most_common())}\n"
        f"  breaches: {dict(breaches.most_common())}"
    )


def describe_plant(name: str, lines: list[Line]) -> str:
    """Say after how many rounds each search for the planted bug found it."""
    rounds = "".join("x" if line["breaches"] else "." for line in lines if line.get("plant") == name)
    *found, rest = (len(search) for search in rounds.split("x"))
    return f"planted {name}: found {len(found)} times, after {[n + 1 for n in found]} rounds, and not in {rest} more"


if __name__ == "__main__":
    sys.exit(main())
