"""An hour of mixed load on real processes, and proof that nothing grows: memory, threads, file descriptors, the log.

`make soak` runs it; `MINUTES=5` makes it shorter. Nothing in it is held against a clock, so a busy machine only makes
it do less. It runs the load, samples the servers, judges, and draws.

Everything of a run is in `dist/soak`. A run of an hour or more that found nothing is also written to
`docs/images/soak.svg` and `benchmarks/results/soak.json`. Ends with 1 when something grew, failed or complained.
"""

import json
import logging
import random
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import anyio
import httpx2
from pydantic import JsonValue

from planwarden.server.settings.configuration import DATABASE
from tests.campaign.checks import Checker
from tests.harness.people import People
from tests.harness.process import poll
from tests.harness.stage import Cast, Stage, open_stage
from tests.soak.load import Load
from tests.soak.samples import (
    WARM_UP_MINUTES,
    Sample,
    Verdict,
    draw,
    judge_all,
    read_files,
    read_process,
    write_samples,
)
from tests.support.paths import DOCS, ROOT

PUBLISHED_MINUTES = 60.0 + WARM_UP_MINUTES
JUDGED_MINUTES = 5.0
"""In a shorter run everything still begins."""
SAMPLE_S = 5.0
SETTLE_S = 180.0
SERVERS = ("http", "stdio")
FOLDER = ROOT / "dist" / "soak"
READS = ("desk_report", "desk_browse", "kiosk_collapse")
SETTINGS = "".join(f'[tools.{name}]\nrisk = "read"\neffect = "read"\n' for name in READS)


@asynccontextmanager
async def open_soak(folder: Path) -> AsyncGenerator[tuple[Stage, Load]]:
    """Open a stage of the product without any seam, whose people decide, and a load for it."""
    # The one that collapses is another process, so that it takes no other call with it.
    kiosk = {"command": sys.executable, "args": ["-m", "tests.harness.desk", str(folder)], "cwd": str(ROOT)}
    async with open_stage(folder, Cast(SERVERS, None, settings=SETTINGS, servers={"kiosk": kiosk})) as stage:
        chance, stage.browser.timeout = random.Random(1), httpx2.Timeout(60.0)
        stage.tasks.start_soon(People(stage, chance).answer_all)
        yield stage, Load(stage, chance)


async def settle(stage: Stage) -> list[str]:
    """Return everything that was promised and is not so, once nothing is left to do."""
    with anyio.move_on_after(SETTLE_S):
        await poll(lambda: not stage.records.unfinished())
    return await Checker(stage).breaches()


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED_MINUTES
    if not Path("/proc/self/fd").exists():
        raise SystemExit("the soak reads memory and descriptors from /proc, which only Linux has")
    shutil.rmtree(FOLDER, ignore_errors=True)
    # What the SDK's clients log when they are torn away is what the scenes do to them.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    raise SystemExit(anyio.run(soak, minutes))


async def soak(minutes: float) -> int:
    """Return 1 when something grew, failed or complained."""
    async with open_soak(FOLDER) as (stage, load):
        over, samples = anyio.Event(), list[Sample]()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.play_until, over)
            await take_samples(stage, load, samples, minutes)
            over.set()
        load.faults += await settle(stage)
        executions = len(stage.records.headers())
    verdicts = judge_all(samples, SERVERS)
    grown = [str(verdict) for verdict in verdicts if not verdict.is_flat]
    faults = [*load.faults, *(grown if minutes >= JUDGED_MINUTES else ())]
    report(minutes, samples, load, executions, verdicts, faults)
    return int(bool(faults))


async def take_samples(stage: Stage, load: Load, samples: list[Sample], minutes: float) -> None:
    began = time.monotonic()
    pids = {server.kind: server.process.pid for server in stage.servers}
    while (minute := (time.monotonic() - began) / 60) < minutes:
        sample: Sample = {"minute": minute, **read_files(stage.home / DATABASE)}
        for name in SERVERS:
            sample.update({f"{measure} of {name}": value for measure, value in read_process(pids[name]).items()})
        samples.append({**sample, "played": float(load.visits.total()), "faults": float(len(load.faults))})
        if len(samples) % 60 == 0:
            print(", ".join(f"{name} {value:,.0f}" for name, value in samples[-1].items()), flush=True)
        await anyio.sleep(SAMPLE_S)


def report(
    minutes: float, samples: list[Sample], load: Load, executions: int, verdicts: list[Verdict], faults: list[str]
) -> None:
    """Write samples, picture and summary, and print what was found."""
    title = f"{minutes:.0f} minutes, {load.visits.total():,} scenes, {executions:,} executions"
    summary: dict[str, JsonValue] = {
        "minutes": minutes,
        "executions": executions,
        "scenes": dict(sorted(load.visits.items())),
        "series": [asdict(verdict) for verdict in verdicts],
        "faults": list[JsonValue](faults),
    }
    picture, text = draw(samples, SERVERS, title), json.dumps(summary, indent=2) + "\n"
    write_samples(FOLDER / "samples.csv", samples)
    (FOLDER / "soak.svg").write_text(picture, encoding="utf-8")
    (FOLDER / "soak.json").write_text(text, encoding="utf-8")
    if minutes >= PUBLISHED_MINUTES and not faults:
        (DOCS / "images" / "soak.svg").write_text(picture, encoding="utf-8")
        (ROOT / "benchmarks" / "results" / "soak.json").write_text(text, encoding="utf-8")
    print(f"\n{title}", *verdicts, *faults, f"{len(faults)} faults; everything is in {FOLDER}", sep="\n")


if __name__ == "__main__":
    main()
