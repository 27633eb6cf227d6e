"""Batches of two narrower kinds that can be added up: processes killed at any moment, and races for one question."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from tests.crash.campaign import kill_again_and_again
from tests.crash.scenario import SCENARIOS, undisturbed
from tests.race.campaign import race_again_and_again
from tests.support.paths import ROOT

Line = dict[str, Any]
Batch = Callable[[Path, int], Line]

KILLS = 25
RACES = 250


def kills(folder: Path, seed: int) -> Line:
    """One batch of killed processes, as one line of the results."""

    async def work() -> Line:
        expected = await undisturbed(folder / "undisturbed", SCENARIOS["plan"])
        report = await kill_again_and_again(folder, KILLS, seed, expected)
        return {"batch": "kills", "seed": seed, "rounds": KILLS, "effects": report.effects, "breaches": report.broken}

    return anyio.run(work)


def decisions(folder: Path, seed: int) -> Line:
    """One batch of races, as one line of the results."""
    report = race_again_and_again(folder, RACES, seed)
    return {"batch": "decisions", "seed": seed, "rounds": RACES, "effects": report.effects, "breaches": report.broken}


BATCHES: dict[str, Batch] = {"kills": kills, "decisions": decisions}


def run_batches(name: str, folder: Path, seconds: float, first: int, take: Callable[[Line], None]) -> bool:
    """Batches one after another for some seconds. Returns whether no promise was broken."""
    deadline, seed, is_whole = time.monotonic() + seconds, first, True
    while time.monotonic() < deadline:
        place = folder / f"{name}-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        line = BATCHES[name](place, seed)
        take(line)
        is_whole = is_whole and not line["breaches"]
        if not line["breaches"]:
            shutil.rmtree(place)
        seed += 1
    return is_whole


def run_pairs() -> bool:
    """Two crashes at every pair of store calls: tests too long for every day."""
    command = [sys.executable, "-m", "pytest", "-q", "--long", "-m", "long", "-n", "2"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0
