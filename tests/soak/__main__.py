"""`python -m tests.soak [MINUTES]`: runs the load, samples the servers, judges, and draws.

Everything of a run is in `dist/soak`. A run of an hour or more that found nothing is also written to
`docs/images/soak.svg` and `benchmarks/results/soak.json`. Ends with 1 when something grew, failed or complained.
"""

import json
import logging
import shutil
import sys
import time
from pathlib import Path

import anyio
from pydantic import JsonValue

from tests.soak.book import Book
from tests.soak.load import Load
from tests.soak.picture import draw
from tests.soak.samples import (
    WARM_UP_MINUTES,
    Sample,
    Verdict,
    as_documents,
    judge_all,
    read_files,
    read_process,
    write_samples,
)
from tests.soak.stage import Stage, open_stage
from tests.support.paths import DOCS, ROOT

PUBLISHED_MINUTES = 60.0 + WARM_UP_MINUTES
SAMPLE_S = 5.0
SERVERS = ("http", "stdio")
COMPLAINTS = ("Traceback (most recent call last)", "internal_error", "InternalFailure")
FOLDER = ROOT / "dist" / "soak"


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED_MINUTES
    if not Path("/proc/self/fd").exists():
        raise SystemExit("the soak reads memory and descriptors from /proc, which only Linux has")
    shutil.rmtree(FOLDER, ignore_errors=True)
    # What the SDK's clients log when they are torn away is what the scenes do to them.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    samples, book = list[Sample](), Book()
    anyio.run(soak, minutes, samples, book)
    verdicts = judge_all(samples, SERVERS)
    faults = [*book.faults, *(str(verdict) for verdict in verdicts if not verdict.is_flat)]
    report(minutes, samples, book, verdicts, faults)
    raise SystemExit(1 if faults else 0)


async def soak(minutes: float, samples: list[Sample], book: Book) -> None:
    """Adds to the samples while the load runs, and what went wrong to the book."""
    async with open_stage(FOLDER) as stage:
        async with stage.open_browser("carol") as browser:
            load, over = Load(stage, book, browser, seed=1), anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load.play_until, over)
                await take_samples(stage, book, samples, minutes)
                over.set()
            book.faults.extend(f"{goal} did not come to its end" for goal in await load.settle())
        statuses = await stage.read_statuses()
        book.faults.extend(book.compare(statuses, stage.orders))
        for check in (["audit", "verify"], ["doctor"]):
            result = await anyio.to_thread.run_sync(stage.cli.spawn, *check)
            if result.code:
                book.faults.append(f"planwarden {' '.join(check)} ended with {result.code}: {result.out}{result.err}")
    for name, log in stage.read_logs().items():
        book.faults.extend(f"the log of {name} has {text!r}" for text in COMPLAINTS if text in log)


async def take_samples(stage: Stage, book: Book, samples: list[Sample], minutes: float) -> None:
    began = time.monotonic()
    while (minute := (time.monotonic() - began) / 60) < minutes:
        sample: Sample = {"minute": minute, **read_files(stage.database)}
        for name in SERVERS:
            found = read_process(stage.servers[name])
            sample.update({f"{measure} of {name}": value for measure, value in found.items()})
        samples.append({**sample, "played": float(book.visits.total()), "faults": float(len(book.faults))})
        if len(samples) % 60 == 0:
            say(sample, book)
        await anyio.sleep(SAMPLE_S)


def say(sample: Sample, book: Book) -> None:
    facts = ", ".join(f"{name} {value:,.0f}" for name, value in sample.items())
    print(f"{facts}; {book.visits.total()} scenes, {len(book.faults)} faults", flush=True)


def report(minutes: float, samples: list[Sample], book: Book, verdicts: list[Verdict], faults: list[str]) -> None:
    """Writes samples, picture and summary, and prints what was found."""
    title = f"{minutes:.0f} minutes, {book.visits.total():,} scenes, {len(book.expected):,} executions"
    summary: dict[str, JsonValue] = {
        "minutes": minutes,
        "executions": len(book.expected),
        "orders": len(book.orders),
        "scenes": dict(sorted(book.visits.items())),
        "series": as_documents(verdicts),
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
