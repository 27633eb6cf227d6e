"""`make campaign`: one part after another, each bounded in time, and what all of them come to together.

A part runs two lanes at the same time; a lane is a process with stages of its own, one after another. Every round is
one line of JSON in the results; `--summary` adds the lines up. A stage that breaks a promise is kept.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import anyio

from tests.campaign.batches import BATCHES, run_batches, run_pairs
from tests.campaign.database import SharedDatabase
from tests.campaign.nursery import Nursery
from tests.campaign.plants import PLANTS, SHARED_PLANTS
from tests.campaign.results import append_results, describe_plant, describe_rounds, read_results, summarize
from tests.campaign.rounds import run_stage
from tests.support.paths import ROOT
from tests.support.postgres import Server

FOLDER = ROOT / ".cache" / "campaign"
PART_S = 470.0
PLANT_ROUNDS = 60
"""In how many rounds of each lane a planted bug has to be found."""
LANES = 2
SHARED = "postgres"
"""The part whose processes share a PostgreSQL."""
LANE_SEEDS = 100_000
MAX_ROUNDS_PER_STAGE = 8


def main() -> int:
    given = _read_arguments()
    results: Path = given.results
    if given.lane is not None:
        return anyio.run(run_lane, given)
    if given.teeth:
        return max(run_lanes(given, plant) for plant in sorted({**PLANTS, **SHARED_PLANTS}))
    if given.part in BATCHES:
        taken = len(read_results(results))
        return int(
            not run_batches(given.part, FOLDER, given.seconds, taken, lambda line: append_results(results, [line]))
        )
    if given.part == "pairs":
        return int(not run_pairs())
    if not given.summary:
        return run_lanes(given, given.plant)
    lines = read_results(results)
    print(summarize(lines))
    return int(any(line["breaches"] for line in lines if line.get("plant") is None))


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.campaign", description=__doc__)
    parser.add_argument("--part", default="1", help="a number for the seeds, or postgres, kills, decisions, pairs")
    parser.add_argument("--seed", type=int, help="the seed of one stage, to run only that one")
    parser.add_argument("--rounds", type=int, default=10_000, help="at most so many rounds in each lane")
    parser.add_argument("--seconds", type=float, default=PART_S, help="begins no round after so many seconds")
    parser.add_argument(
        "--plant", choices=sorted({**PLANTS, **SHARED_PLANTS}), help="a planted bug, which has to be found"
    )
    parser.add_argument("--teeth", action="store_true", help="look for every planted bug")
    parser.add_argument("--summary", action="store_true", help="add up the results")
    parser.add_argument("--results", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_lanes(given: argparse.Namespace, plant: str | None) -> int:
    """One part. 0 when no promise was broken; with a planted bug, when it was found."""
    before = len(read_results(given.results))
    part = SHARED if plant in SHARED_PLANTS else given.part
    command = [sys.executable, "-m", "tests.campaign", "--part", part, "--results", given.results]
    command = [*([] if part == SHARED else _own_mounts()), *command]
    command += ["--seconds", str(given.seconds), "--rounds", str(given.rounds if plant is None else PLANT_ROUNDS)]
    command += ["--plant", plant] if plant is not None else []
    command += ["--seed", str(given.seed)] if given.seed is not None else []
    count = 1 if given.seed is not None or plant is not None else LANES
    lanes = [subprocess.Popen([*command, "--lane", str(lane)], cwd=ROOT) for lane in range(count)]
    codes = [lane.wait() for lane in lanes]
    new = read_results(given.results)[before:]
    is_broken = any(line["breaches"] for line in new)
    print(describe_rounds(new) if plant is None else describe_plant(plant, new), flush=True)
    return int(any(codes) or is_broken is (plant is None))


def _own_mounts() -> list[str]:
    """Prefix of a command whose mounts nobody else sees and that vanish with it; empty where that is not allowed."""
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which("unshare") is not None:
            allowed = subprocess.run(
                [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
            )
            if allowed.returncode == 0:
                return prefix
    return []


async def run_lane(given: argparse.Namespace) -> int:
    """Stages one after another until the time or the rounds are used up; a planted bug ends them when it is found."""
    deadline, rounds = time.monotonic() + given.seconds, 0
    number = 0 if given.part == SHARED else int(given.part)
    first = (number * LANES + given.lane) * LANE_SEEDS if given.seed is None else given.seed
    server = Server() if given.part == SHARED else None
    with Nursery() as nursery, ExitStack() as stack:
        if server is not None:
            stack.callback(server.end)
        for seed in range(first, first + (LANE_SEEDS if given.seed is None else 1)):
            folder = FOLDER / "stages" / f"{given.plant or 'product'}-{seed}-{os.getpid()}"
            count = min(given.rounds - rounds, random.Random(seed).randrange(2, MAX_ROUNDS_PER_STAGE + 1))
            database = None if server is None else SharedDatabase(server)
            outcomes = await run_stage(folder, nursery, seed, count, deadline, given.plant, database)
            rounds += len(outcomes)
            append_results(given.results, [outcome.to_json() for outcome in outcomes])
            is_broken = any(outcome.breaches for outcome in outcomes)
            for outcome in outcomes:
                for breach in outcome.breaches:
                    print(f"seed {seed}, round {outcome.round}: {breach}\n  kept in {folder}", flush=True)
            if database is not None:
                database.close(folder if is_broken else None)
            if not is_broken:
                shutil.rmtree(folder, ignore_errors=True)
            if time.monotonic() > deadline or rounds >= given.rounds or (is_broken and given.plant is not None):
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
