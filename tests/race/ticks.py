"""`make ticks`: ticks of many schedules, started by two processes that are killed at random.

The time stands still until everything that is due is recorded. Then the next minute comes; now and then the clock is
set back. At the end every tick has to have one run, and no run may be without its tick.
"""

import argparse
import random
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from msgspec.structs import replace

from planwarden.agent.common.errors import KeyUsed
from planwarden.agent.core.execution import events as ev
from planwarden.agent.ports.environment import new_id
from planwarden.agent.ports.store import StartedExecution, StartRequest, Store
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.schedules.cron import CronTimes
from planwarden.server.schedules.ticker import ScheduleTicker
from planwarden.storage.schedules import ScheduleStore
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.ledger import SharedClock
from tests.harness.process import Worker, say
from tests.server.schedules.support import add_schedule
from tests.storage.suite import PLAN, Scribe
from tests.support.paths import ROOT

FOLDER = ROOT / ".cache" / "ticks"
LIFE_S = 0.4
"""How long a process that has started lives on average."""
LONGEST_MINUTE_S = 60.0
LOOK_S, PAUSE_S = 0.01, 0.002
JUMPS = 0.02
"""In how many minutes the clock is set back first."""


class EndedRuns:
    """Implements `PlanRunner`: each run is an execution that has ended already, stored in one transaction."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    async def run_plan(self, name: str, start: StartOptions) -> StartedExecution:
        key, requester = start.key, start.requester
        scribe = Scribe.on(self._store, new_id(), principal=requester.principal, owner=self._name)
        ended = ev.ExecutionFailed(code="ended", message="it ended")
        append = scribe.append(ev.ExecutionCreated(goal=name), ev.PlanAccepted(plan=PLAN), ended)
        try:
            await self._store.append(replace(append, start=StartRequest(key=str(key), request=name)))
        except KeyUsed:
            started = await self._store.find_start(requester.principal, str(key))
            assert started is not None
            return started
        execution = append.execution
        return StartedExecution(execution_id=execution.execution_id, thread_id=execution.thread_id, request=name)


async def work(folder: Path, name: str) -> None:
    """Start what schedules say until somebody kills the process."""
    store = SqliteStore.open(folder / "planwarden.db", clock=SharedClock(folder / "clock"))
    ticker = ScheduleTicker(store, ScheduleStore(store), EndedRuns(store, name))
    # How long it lives counts from here, however long a busy machine took to start it.
    say("ready")
    while True:
        await ticker.look()
        await anyio.sleep(PAUSE_S)


@dataclass
class Campaign:
    """Ticks that were due, and what happened to the processes."""

    folder: Path
    schedules: int
    minutes: int
    chance: random.Random
    life_s: float = LIFE_S
    kills: int = 0
    expected: set[str] = field(default_factory=set[str])
    processes: dict[str, tuple[Worker, float]] = field(default_factory=dict[str, tuple[Worker, float]])
    """Each with the moment at which it dies."""

    def run(self) -> list[str]:
        """Return what is wrong at the end, one sentence each."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        clock = SharedClock(self.folder / "clock")
        anyio.run(self._prepare, clock)
        try:
            with closing(sqlite3.connect(self.folder / "planwarden.db", timeout=30)) as database:
                for _ in range(self.minutes):
                    self._pass_minute(clock, database)
                return self._find_faults(database)
        finally:
            for process, _ in self.processes.values():
                process.kill()

    async def _prepare(self, clock: SharedClock) -> None:
        store = SqliteStore.open(self.folder / "planwarden.db", clock=clock)
        for number in range(self.schedules):
            overlap = self.chance.choice(("skip", "queue"))
            await add_schedule(store, "* * * * *", f"s{number}", overlap=overlap, timezone="Europe/Berlin")
        await store.close()

    def _pass_minute(self, clock: SharedClock, database: sqlite3.Connection) -> None:
        if self.chance.random() < JUMPS:
            # The minutes that come again have their runs; a process that notices looks at them once more.
            latest = clock.now()
            clock.set(latest - 60.0 * self.chance.randint(1, 5))
            self._wait_until_idle(clock, database)
            clock.set(latest)
        tick_at = CronTimes("* * * * *", "Europe/Berlin").find_next(clock.now())
        self.expected |= {f"planwarden:schedule:s{number}:{tick_at}" for number in range(self.schedules)}
        clock.set(tick_at + self.chance.random() * 50)
        self._wait_until_idle(clock, database)

    def _wait_until_idle(self, clock: SharedClock, database: sqlite3.Connection) -> None:
        """Kill and start processes until nothing is due."""
        deadline = time.monotonic() + LONGEST_MINUTE_S
        is_due = "SELECT 1 FROM records WHERE kind = 'schedule' AND expires_at <= ? LIMIT 1"
        while database.execute(is_due, (clock.now(),)).fetchone():
            if time.monotonic() > deadline:
                raise AssertionError(f"{clock.now()} has not come to an end; see {self.folder}")
            for name in ("a", "b"):
                self._keep(name)
            time.sleep(LOOK_S)

    def _keep(self, name: str) -> None:
        process, dies_at = self.processes.get(name, (None, 0.0))
        if process is not None and time.monotonic() > dies_at:
            process.kill()
            self.kills += 1
            process = None
        if process is None or process.process.poll() is not None:
            process = Worker("tests.race.ticks:work", str(self.folder), name)
            assert process.read() == "ready"
            self.processes[name] = process, time.monotonic() + self.chance.expovariate(1 / self.life_s)

    def _find_faults(self, database: sqlite3.Connection) -> list[str]:
        started = {str(row[0]) for row in database.execute("SELECT key FROM starts")}
        [(executions,)] = database.execute("SELECT count(*) FROM executions").fetchall()
        found = {
            "ticks started nothing": len(self.expected - started),
            "runs belong to no tick": len(started - self.expected),
            "executions are too many": executions - len(started),
        }
        return [f"{count} {what}" for what, count in found.items() if count]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.race.ticks", description=__doc__)
    parser.add_argument("--ticks", type=int, default=100_000)
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    campaign = Campaign(FOLDER, given.schedules, -(-given.ticks // given.schedules), random.Random(given.seed))
    faults = campaign.run()
    print(f"{len(campaign.expected)} ticks of {given.schedules} schedules, {campaign.kills} kills, seed {given.seed}")
    print(*(faults or ["each tick started one run"]), sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
