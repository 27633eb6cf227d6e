"""What grows with size: `python -m benchmarks.sizes` measures steps, executions at once and finished executions.

Writes `results/sizes.json` and draws `docs/images/sizes.svg` from it; `--draw` only draws. The finished executions are
copies of one, made with SQL; a million of them need 5 GB of disk and some minutes, `--finished 100000` a tenth.

Pages of the inbox are those that grow with what is stored: from the request to the last byte, without a network.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
from dev.page import report_progress
from dev.plot import Panel, draw

from benchmarks.harness import IMAGES, describe_machine, make_folder, read_result, write_result
from benchmarks.planwarden_side import DATABASE, Planwarden, make_warden, write_plan
from benchmarks.side import PlannedCall, run_together
from planwarden import Warden
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.inbox_port import INBOX_PATH
from planwarden.server.inbox.site import InboxSite
from planwarden.server.settings.configuration import Settings

STEPS = (10, 100, 500, 2_000)
AT_ONCE = (1, 10, 100, 1_000)
FINISHED = (1_000, 10_000, 100_000, 1_000_000)
REPEATS = 9
EXECUTIONS = 1_000
"""Per sample of executions at once."""
PLAN_STEPS = 300
"""Of the plan that has a page."""
SAVED_PLANS = 100
ORIGIN = "http://127.0.0.1:8766"
SAVED = "todoList: [{id: look, description: Look, toolCalls: [{toolName: find_order, arguments: {order: A-1}}]}]\n"

Milliseconds = dict[str, dict[str, float]]
"""By operation, then by size."""
Run = Callable[[], Awaitable[object]]


def main() -> None:
    """Measure, write the results, and draw them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--finished", type=int, default=FINISHED[-1], help="finished executions at most")
    parser.add_argument("--draw", action="store_true", help="only draw the results that are there")
    options = parser.parse_args()
    if not options.draw:
        with make_folder() as folder:
            write_result("sizes", asyncio.run(measure(folder, options.finished)))
    result = read_result("sizes")
    print(json.dumps(result, indent=2))
    (IMAGES / "sizes.svg").write_text(draw("Time against size", list_panels(result)), encoding="utf-8")


async def measure(folder: Path, most: int) -> dict[str, Any]:
    """Return milliseconds of everything, by size."""
    facts, finished = describe_machine(folder), dict[str, dict[str, float]]()
    report_progress("steps")
    steps = await time_steps(make_home(folder / "steps", STEPS[-1]))
    report_progress("executions at once")
    at_once = await time_at_once(make_home(folder / "at-once", PLAN_STEPS))
    home = make_home(folder / "finished", PLAN_STEPS)
    for count in (count for count in FINISHED if count <= most):
        report_progress(f"{count} finished executions")
        for name, milliseconds in (await time_finished(home, count)).items():
            finished.setdefault(name, {})[str(count)] = milliseconds
    return {"about": facts, "steps": {"a step": steps}, "at_once": {"an execution": at_once}, "finished": finished}


def make_home(home: Path, max_steps: int) -> Path:
    """Make a home with saved plans, in which long plans run."""
    (home / "plans").mkdir(mode=0o700, parents=True)
    for number in range(SAVED_PLANS):
        (home / "plans" / f"plan-{number}.yaml").write_text(SAVED, encoding="utf-8")
    (home / "planwarden.toml").write_text(f"[execution]\nmaxSteps = {max_steps}\n", encoding="utf-8")
    return home


async def run_chain(warden: Warden, count: int) -> str:
    """Run a plan in which each step depends on the one before; return the execution's id."""
    calls = [PlannedCall("find_order", "Look the order up", {"order": f"A-{number}"}) for number in range(count)]
    done = await warden.execute_plan(write_plan(calls), wait_seconds=120)
    if done.status != "completed":
        raise RuntimeError(f"the plan did not complete: {done.status} {done.error}")
    return done.execution_id


async def time_steps(home: Path) -> dict[str, float]:
    """Return milliseconds of a step, by the number of steps."""
    async with make_warden(home) as warden:
        return {
            str(count): await time_median(lambda count=count: run_chain(warden, count), 3 if count > 500 else REPEATS)
            / count
            for count in STEPS
        }


async def time_at_once(home: Path) -> dict[str, float]:
    """Return milliseconds of an execution, by the number of those at once."""
    milliseconds: dict[str, float] = {}
    async with make_warden(home) as warden:
        side = Planwarden(warden)
        for count in AT_ONCE:
            await side.run_one()
            began = time.perf_counter()
            await asyncio.gather(*(side.sequential(EXECUTIONS // count) for _ in range(count)))
            milliseconds[str(count)] = (time.perf_counter() - began) * 1_000 / EXECUTIONS
    return milliseconds


async def time_finished(home: Path, count: int) -> dict[str, float]:
    """Return milliseconds of what is done often, in a database with `count` finished executions and some that wait."""
    async with make_warden(home) as warden:
        await Planwarden(warden).run_one()
        waiting = iter(await run_together(Planwarden(warden).suspend_one, REPEATS + 1))
    add_finished(home / DATABASE, count)

    async def open_store() -> None:
        async with make_warden(home):
            pass

    milliseconds = {"open": await time_median(open_store, 3)}
    async with make_warden(home) as warden:
        store, side = warden.service.store, Planwarden(warden)
        runs: dict[str, Run] = {
            "list": lambda: warden.list_suspensions(limit=20),
            "newest executions": lambda: store.executions(None, 20),
            "list of executions": lambda: store.list_executions(ExecutionFilter()),
            "search of executions": lambda: store.list_executions(ExecutionFilter(search="is in none of them")),
            "start and run to the question": side.suspend_one,
            "resume": lambda: side.resume_one(*next(waiting)),
            "sweep of what is due": lambda: store.due(100),
        }
        async with open_pages(warden, home) as pages:
            for name, run in (*runs.items(), *pages.items()):
                milliseconds[name] = await time_median(run)
    return milliseconds


@asynccontextmanager
async def open_pages(warden: Warden, home: Path) -> AsyncGenerator[Mapping[str, Run]]:
    """Yield what requests each page, by the name of the page; a page that does not answer 200 raises."""
    execution_id = await run_chain(warden, PLAN_STEPS)
    site = InboxSite(service=lambda: warden.service, settings=Settings(home=home))
    session = await site.access().redeem((await site.access().make_codes("bench", "terminal")).link)
    app = build_inbox_app(site, lambda: {ORIGIN.removeprefix("http://")})
    cookies = {site.cookie_name: session.token}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ORIGIN, cookies=cookies) as client:

        async def request(path: str) -> None:
            (await client.get(f"{INBOX_PATH}{path}")).raise_for_status()

        yield {
            "page of what waits": lambda: request(""),
            "page of plans": lambda: request("/plans"),
            "page of history": lambda: request("/history"),
            "page of saved plans": lambda: request("/saved"),
            f"page of a plan of {PLAN_STEPS} steps": lambda: request(f"/executions/{execution_id}"),
        }


def add_finished(database: Path, wanted: int) -> None:
    """Copy the first finished execution until there are so many."""
    with closing(sqlite3.connect(database)) as db:

        def fetch(query: str, *values: object) -> tuple[Any, ...]:
            return db.execute(query, values).fetchone()

        db.execute("PRAGMA synchronous = OFF")
        number, name = fetch(
            "SELECT number, execution_id FROM executions WHERE status = 'completed' ORDER BY number LIMIT 1"
        )
        [question] = fetch("SELECT suspension_id FROM suspensions WHERE execution = ?", number)
        [first] = fetch("SELECT coalesce(max(number), 0) + 1 FROM executions")
        [present] = fetch("SELECT count(*) FROM executions WHERE status = 'completed'")
        db.execute("CREATE TEMP TABLE copies (i INTEGER PRIMARY KEY)")
        db.execute(
            "WITH RECURSIVE s (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM s WHERE i < ?1 + ?2 - 1) "
            "INSERT INTO copies SELECT i FROM s",
            (first, wanted - present),
        )
        new_id, copied_id = "hex(randomblob(16))", "printf('%032x', i)"
        # The page of history reads the question out of the log.
        body = f"replace(body, '{question}', {copied_id})"
        tables: dict[str, tuple[dict[str, str | None], str, object]] = {
            "executions": ({"number": "i", "execution_id": new_id, "thread_id": new_id}, "number", number),
            "synopses": ({"execution": "i"}, "execution", number),
            "events": ({"position": None, "execution": "i", "body": body}, "execution", number),
            "suspensions": ({"number": None, "suspension_id": copied_id, "execution": "i"}, "execution", number),
            "audit": ({"sequence": None, "execution_id": new_id}, "execution_id", name),
        }
        for table, (changes, key, value) in tables.items():
            names = [str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")]
            sources = {name: changes.get(name, name) for name in names if changes.get(name, name)}
            db.execute(
                f"INSERT INTO {table} ({', '.join(sources)}) SELECT {', '.join(map(str, sources.values()))} "
                f"FROM copies, {table} WHERE {key} = ?",
                (value,),
            )
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def time_median(run: Run, times: int = REPEATS) -> float:
    """Return milliseconds; the first run, which may fill caches, is left out."""
    milliseconds: list[float] = []
    for _ in range(times + 1):
        began = time.perf_counter()
        await run()
        milliseconds.append((time.perf_counter() - began) * 1_000)
    return statistics.median(milliseconds[1:])


def list_panels(result: dict[str, Any]) -> list[Panel]:
    """Return what is drawn."""
    finished: Milliseconds = result["finished"]
    pages = {name: sizes for name, sizes in finished.items() if name.startswith("page")}
    others = {name: sizes for name, sizes in finished.items() if name not in pages}
    return [
        Panel("Steps of a plan: milliseconds a step", result["steps"]),
        Panel("Executions at once: milliseconds an execution", result["at_once"]),
        Panel("Finished executions in the database: milliseconds", others),
        Panel("Pages of the inbox, by finished executions: milliseconds", pages),
    ]


if __name__ == "__main__":
    main()
