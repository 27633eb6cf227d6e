"""What grows with size: `python -m benchmarks.sizes` measures steps, executions at once and finished executions.

Writes `results/sizes.json` and draws `docs/images/sizes.svg` from it; `--draw` only draws. The finished executions are
copies of one, made with SQL; a million of them need 5 GB of disk and some minutes, `--finished 100000` a tenth.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from pydantic import JsonValue

import planwarden
from benchmarks.pages import PLAN_STEPS, open_pages, write_saved_plans
from benchmarks.planwarden_side import DATABASE, resume_one, run_one, suspend_one
from benchmarks.plot import Panel, draw
from benchmarks.report import about
from benchmarks.side import together
from benchmarks.workload import FUNCTIONS, find_order
from planwarden import Warden
from planwarden.agent.ports.listing import ExecutionFilter

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "sizes.json"
PICTURE = HERE.parent / "docs" / "images" / "sizes.svg"
STEPS = (10, 100, 500, 2_000)
AT_ONCE = (1, 10, 100, 1_000)
FINISHED = (1_000, 10_000, 100_000, 1_000_000)
REPEATS = 9
EXECUTIONS = 1_000
"""Per sample of executions at once."""

_COPIED_ID = "printf('%032x', i)"

Milliseconds = dict[str, dict[str, float]]
"""By operation, then by size."""


def main() -> None:
    """Measure, write the results, and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--finished", type=int, default=FINISHED[-1], help="finished executions at most")
    parser.add_argument("--draw", action="store_true", help="only draw the results that are there")
    chosen = parser.parse_args()
    if not chosen.draw:
        cache = user_cache_path("planwarden")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as folder:
            found = asyncio.run(_measure(Path(folder), chosen.finished))
        RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(json.dumps(found, indent=2))
    PICTURE.write_text(draw("Time against size", _panels(found)), encoding="utf-8")


async def _measure(folder: Path, most: int) -> dict[str, Any]:
    facts = about(folder)
    _say("steps")
    _allow_steps(folder / "steps")
    steps = await _time_steps(folder / "steps")
    _say("executions at once")
    at_once = await _time_at_once(folder / "at-once")
    finished: Milliseconds = {}
    for count in (count for count in FINISHED if count <= most):
        _say(f"{count} finished executions")
        home = folder / "finished"
        for name, milliseconds in (await _time_finished(home, count)).items():
            finished.setdefault(name, {})[str(count)] = milliseconds
    return {"about": facts, "steps": steps, "at_once": at_once, "finished": finished}


def _allow_steps(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "planwarden.toml").write_text(f"[execution]\nmaxSteps = {STEPS[-1]}\n", encoding="utf-8")


async def _time_steps(home: Path) -> Milliseconds:
    """Milliseconds per step of plans in which each step depends on the one before."""
    found: dict[str, float] = {}
    mark = planwarden.tool(risk="read", effect="effect")
    async with Warden(home=home, tools=[mark(find_order)]) as opened:
        for count in STEPS:
            plan = _chain(count)

            async def run(plan: dict[str, JsonValue] = plan) -> None:
                done = await opened.execute_plan(plan, wait_seconds=120)
                if done.status != "completed":
                    raise RuntimeError(f"the plan did not complete: {done.status} {done.error}")

            found[str(count)] = await _median(run, 3 if count > 500 else REPEATS) / count
    return {"a step": found}


def _chain(count: int) -> dict[str, JsonValue]:
    calls: list[JsonValue] = [{"toolName": "find_order", "arguments": {"order": f"A-{n}"}} for n in range(count)]
    return {
        "todoList": [
            {"id": f"s{number}", "description": "Look the order up", "toolCalls": [call]}
            for number, call in enumerate(calls)
        ]
    }


async def _time_at_once(home: Path) -> Milliseconds:
    found: dict[str, float] = {}
    async with _warden(home) as opened:
        for count in AT_ONCE:
            lanes = EXECUTIONS // count

            async def lane(lanes: int = lanes) -> None:
                for _ in range(lanes):
                    await run_one(opened)

            await run_one(opened)
            began = time.perf_counter()
            await asyncio.gather(*(lane() for _ in range(count)))
            found[str(count)] = (time.perf_counter() - began) * 1_000 / EXECUTIONS
    return {"an execution": found}


async def _time_finished(home: Path, count: int) -> dict[str, float]:
    """Milliseconds of what is done often, in a database with `count` finished executions and some that wait."""
    write_saved_plans(home)
    async with _warden(home) as opened:
        await run_one(opened)
        waiting = iter(await together(lambda: suspend_one(opened), REPEATS + 1))
    _add_finished(home / DATABASE, count)
    opening: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        async with _warden(home):
            opening.append(time.perf_counter() - began)
    async with _warden(home) as opened:
        store = opened.service.store

        async def resume() -> None:
            await resume_one(opened, *next(waiting))

        async with open_pages(opened, home, _chain(PLAN_STEPS)) as pages:
            of_pages = {name: await _median(run) for name, run in pages.items()}
        return {
            "open": statistics.median(opening) * 1_000,
            "list": await _median(lambda: opened.list_suspensions(limit=20)),
            "newest executions": await _median(lambda: store.executions(None, 20)),
            "list of executions": await _median(lambda: store.list_executions(ExecutionFilter())),
            "search of executions": await _median(
                lambda: store.list_executions(ExecutionFilter(search="is in none of them"))
            ),
            "start and run to the question": await _median(lambda: suspend_one(opened)),
            "resume": await _median(resume),
            "sweep of what is due": await _median(lambda: store.due(100)),
            **of_pages,
        }


def _add_finished(database: Path, wanted: int) -> None:
    """Copies the first finished execution until there are so many."""
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA synchronous = OFF")
        number, name = db.execute(
            "SELECT number, execution_id FROM executions WHERE status = 'completed' ORDER BY number"
        ).fetchone()
        [asked] = db.execute("SELECT suspension_id FROM suspensions WHERE execution = ?", (number,)).fetchone()
        [first] = db.execute("SELECT coalesce(max(number), 0) + 1 FROM executions").fetchone()
        [there] = db.execute("SELECT count(*) FROM executions WHERE status = 'completed' ORDER BY number").fetchone()
        db.execute("CREATE TEMP TABLE copies (i INTEGER PRIMARY KEY)")
        db.execute(
            "WITH RECURSIVE s (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM s WHERE i < ?1 + ?2 - 1) "
            "INSERT INTO copies SELECT i FROM s",
            (first, wanted - there),
        )
        for table, columns, key, value in (
            ("executions", {"number": "i", "execution_id": "hex(randomblob(16))", "thread_id": "hex(randomblob(16))"},
             "number", number),
            ("synopses", {"execution": "i"}, "execution", number),
            # The page of history reads the question out of the log.
            ("events", {"position": None, "execution": "i", "body": f"replace(body, '{asked}', {_COPIED_ID})"},
             "execution", number),
            ("suspensions", {"number": None, "suspension_id": _COPIED_ID, "execution": "i"},
             "execution", number),
            ("audit", {"sequence": None, "execution_id": "hex(randomblob(16))"}, "execution_id", name),
        ):  # fmt: skip
            names = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
            taken = [column for column in names if columns.get(column, column) is not None]
            values = ", ".join(str(columns.get(column, column)) for column in taken)
            db.execute(
                f"INSERT INTO {table} ({', '.join(taken)}) SELECT {values} FROM copies, {table} WHERE {key} = ?",
                (value,),
            )
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _warden(home: Path) -> Warden:
    mark = planwarden.tool(risk="read", effect="effect")
    return Warden(home=home, tools=[mark(function) for function in FUNCTIONS])


async def _median(run: Callable[[], Awaitable[object]], times: int = REPEATS) -> float:
    """Milliseconds; the first run, which may fill caches, is left out."""
    await run()
    taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await run()
        taken.append((time.perf_counter() - began) * 1_000)
    return statistics.median(taken)


def _panels(found: dict[str, Any]) -> list[Panel]:
    panels = [
        Panel("Steps of a plan: milliseconds a step", found["steps"]),
        Panel("Executions at once: milliseconds an execution", found["at_once"]),
        Panel("Finished executions in the database: milliseconds", _split(found["finished"], "page", is_wanted=False)),
        Panel("Pages of the inbox, by finished executions: milliseconds", _split(found["finished"], "page")),
    ]
    # Results of before have no pages.
    return [panel for panel in panels if panel.lines]


def _split(found: Milliseconds, beginning: str, *, is_wanted: bool = True) -> Milliseconds:
    return {name: sizes for name, sizes in found.items() if name.startswith(beginning) is is_wanted}


def _say(what: str) -> None:
    print(what, file=sys.stderr)


if __name__ == "__main__":
    main()
