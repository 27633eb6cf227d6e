"""A crash at every store call of a scenario, before and after it; and the proof that the check can fail.

After the crash nothing of the old engine is used again: a new one opens the same file, a person answers what is asked,
and the outcome must be that of a run without a crash.

A database of PostgreSQL loses its connections, once for each point, and the scenario begins anew for the next one.
A file is copied at every point of one run, as it would be found if the process had been killed there.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

import psycopg
import pytest
from pydantic import JsonValue

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.core.tool import Suspend
from planwarden.agent.ports.store import Store
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.cli.checks.replay import replay_logs
from planwarden.tools.registry import Registry
from tests.crash.scenario import SCENARIOS, Scenario, scenario_tools, undisturbed, violations
from tests.harness.fault import LyingStore, When
from tests.harness.ledger import Ledger
from tests.harness.person import Acknowledged, Person
from tests.harness.team import engine_on
from tests.requirements import requirement
from tests.storage.suite import BackEnd, Postgres, Sqlite
from tests.support.fakes import Crash, CrashingStore, StoreCall, WatchedStore
from tests.support.slices import each_once, first_only

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("only_turns_that_are_asked_for")]


class Mortal(BackEnd, Protocol):
    """A store whose process can die."""

    async def kill(self) -> None:
        """End the store that was opened last as the end of its process does."""
        ...


MakeBackEnd = Callable[[Path], Mortal]


class MortalSqlite(Sqlite):
    async def kill(self) -> None:
        await self.opened.pop().close()

    def leave(self, folder: Path) -> "MortalSqlite":
        """What stands in a copy of the folder, at the same time."""
        left = MortalSqlite(folder)
        left.clock = copy(self.clock)
        return left


class MortalPostgres(Postgres):
    """Whose owners are dead as soon as their locks are free."""

    gone_s = 0.0

    async def kill(self) -> None:
        """Its connections break before it can say that it ends."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await self.opened.pop().close()


@dataclass(frozen=True, slots=True)
class Point:
    """Where a life ends."""

    at: int
    when: When
    lies: bool = False

    def store(self, inner: Store) -> CrashingStore | LyingStore:
        return LyingStore(inner, at=self.at) if self.lies else CrashingStore(inner, at=self.at, when=self.when)


class EagerToolbox(Registry):
    """Planted bug: an effect happens while its call is being prepared, before the intent is committed."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(scenario_tools(ledger))
        self._ledger = ledger

    def question(self, name: str, arguments: Mapping[str, JsonValue]) -> Suspend | None:
        if name == "mail":
            self._ledger.write("done", key=f"dispatched early {arguments}", tool=name)
        return super().question(name, arguments)


class Trial:
    """One run of a scenario in a folder of its own, with one crash."""

    def __init__(self, folder: Path, scenario: Scenario, back_end: MakeBackEnd, *, is_eager: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.back_end = back_end(folder)
        self.scenario = scenario
        self.clock = self.back_end.clock
        self.ledger = Ledger(folder / "effects")
        self.acknowledged = Acknowledged()
        self.reached = False
        """The last crash that was asked for took place."""
        self._is_eager = is_eager

    def tools(self) -> Registry:
        return EagerToolbox(self.ledger) if self._is_eager else Registry(scenario_tools(self.ledger))

    async def run(self, *crashes: Point) -> dict[str, ExecutionState]:
        """The final states after as many lives as there are crashes, and a last one that is left in peace."""
        for crash in crashes:
            await self._die(crash)
        await self._live(self.back_end.connect())
        store = self.back_end.connect()
        headers = await store.executions(None, 10)
        states = {h.execution_id: await load_execution(store, h) for h in headers}
        report = await replay_logs(store, has_finished=True)
        assert report.executions == len(states) and report.faults == []
        await self.back_end.close()
        return states

    async def run_and_fork(self, folder: Path, when: When, *crashes: Point) -> "list[tuple[StoreCall, Trial]]":
        """The store calls of the last of these lives, with what a process killed there would have left of each."""
        for crash in crashes:
            await self._die(crash)
        forks: list[tuple[StoreCall, Trial]] = []

        async def fork(moment: StoreCall) -> None:
            if moment.when == when:
                forks.append((moment, self._fork(folder / f"{moment.number}")))

        await self._live(WatchedStore(self.back_end.connect(), fork))
        await self.back_end.close()
        return forks

    def _fork(self, folder: Path) -> "Trial":
        assert isinstance(self.back_end, MortalSqlite)
        # Closing a file gives up all locks that the process has on it: the log's are on -shm, which SQLite makes anew.
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        fork = Trial(folder, self.scenario, self.back_end.leave)
        fork.acknowledged = deepcopy(self.acknowledged)
        return fork

    async def _die(self, crash: Point) -> None:
        store = crash.store(self.back_end.connect())
        await self._live(store)
        self.reached = store.is_dead
        await self.back_end.kill()

    async def _live(self, store: Store) -> None:
        try:
            async with engine_on(store, self.tools(), self.scenario.model()) as engine:
                person = Person(engine, self.clock, self.ledger, self.acknowledged)
                inner = store.inner if isinstance(store, WatchedStore) else store
                known = await inner.executions(None, 10)
                for header in known:
                    await person.drive(await engine.find(header.execution_id))
                if not self.acknowledged.created and not known:
                    execution = await self.scenario.create(engine)
                    self.acknowledged.created.append(execution.execution_id)
                    await person.drive(execution)
        except* Crash:
            pass


async def broken_by_crashes(
    folder: Path,
    scenario: Scenario,
    when: When,
    *,
    back_end: MakeBackEnd = MortalSqlite,
    lies: bool = False,
    eager: bool = False,
) -> tuple[int, list[str]]:
    """The number of crash points that there are, and everything that a crash at one of them broke."""
    expected = await undisturbed(folder / "undisturbed", scenario)
    broken: list[str] = []
    for at in count(1):
        trial = Trial(folder / f"{at}", scenario, back_end, is_eager=eager)
        point = Point(at, when, lies)
        executions = await trial.run(point)
        if not trial.reached:
            return at - 1, broken
        found = violations(trial.acknowledged, trial.ledger, executions, expected)
        broken.extend(f"crash at {point}: {what}" for what in found)
    raise AssertionError("unreachable")


async def broken_by_kills(
    folder: Path, scenario: Scenario, when: When, *, first: Sequence[Point] = ()
) -> tuple[int, list[str]]:
    """The same for a process on a file that is killed there.

    `first` are crashes of earlier lives; the points are then those of the recovery.
    """
    expected = await undisturbed(folder / "undisturbed", scenario)
    trial = Trial(folder / "trial", scenario, MortalSqlite)
    forks = await trial.run_and_fork(folder, when, *first)
    broken: list[str] = []
    for moment, fork in forks:
        executions = await fork.run()
        found = violations(fork.acknowledged, fork.ledger, executions, expected)
        broken.extend(f"after {first}, killed at {moment}: {what}" for what in found)
    return len(forks), broken


@requirement("crash:every-call", "replay:real")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("name", "back_end"),
    [
        ("plan", MortalPostgres),
        *(pytest.param(name, MortalPostgres, marks=pytest.mark.exhaustive) for name in ("model", "outage")),
        # A file is killed below.
        pytest.param("plan", MortalSqlite, marks=pytest.mark.exhaustive),
    ],
)
async def test_a_crash_at_any_store_call_repeats_no_effect_and_loses_nothing(
    tmp_path: Path, name: str, when: When, back_end: MakeBackEnd
) -> None:
    crashes, broken = await broken_by_crashes(tmp_path, SCENARIOS[name], when, back_end=back_end)
    assert broken == []
    assert crashes > 10


@requirement("crash:every-call", "replay:real")
@pytest.mark.parametrize(("name", "when"), each_once(["plan", "model", "outage"], ["before", "after"]))
async def test_a_kill_at_any_store_call_repeats_no_effect_and_loses_nothing(
    tmp_path: Path, name: str, when: When
) -> None:
    kills, broken = await broken_by_kills(tmp_path, SCENARIOS[name], when)
    assert broken == []
    assert kills > 10


@requirement("crash:every-call")
@pytest.mark.parametrize("at", first_only(11, 5, 10, 12, 13))
async def test_a_second_crash_at_any_store_call_of_the_recovery_repeats_no_effect_either(
    tmp_path: Path, at: int
) -> None:
    kills, broken = await broken_by_kills(tmp_path, SCENARIOS["plan"], "before", first=[Point(at, "after")])
    assert broken == []
    assert kills > 0


@requirement("crash:every-call")
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_two_crashes_at_any_two_store_calls_repeat_no_effect_and_lose_nothing(tmp_path: Path, name: str) -> None:
    moments: tuple[When, ...] = ("before", "after")
    points = [Point(at, when) for at in range(1, 16) for when in moments]
    pairs: list[tuple[Point, When]] = [(first, when) for first in points for when in moments]
    crashes, broken = 0, list[str]()
    for number, (first, when) in enumerate(pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        count, found = await broken_by_kills(folder, SCENARIOS[name], when, first=[first])
        crashes, broken = crashes + count, broken + found
    print(f"\ntwo crashes, {name}: pairs={crashes} broken={len(broken)}")
    assert broken == []


@requirement("crash:control")
async def test_the_check_fails_on_a_store_that_acknowledges_before_it_commits(tmp_path: Path) -> None:
    _, broken = await broken_by_crashes(tmp_path, SCENARIOS["plan"], "after", lies=True)
    assert [what for what in broken if "times" in what], "no effect happened twice"
    assert [what for what in broken if "lost" in what], "nothing acknowledged was lost"


@requirement("crash:control")
async def test_the_check_fails_on_an_engine_that_dispatches_before_it_commits(tmp_path: Path) -> None:
    _, broken = await broken_by_crashes(tmp_path, SCENARIOS["plan"], "before", eager=True)
    assert [what for what in broken if "dispatched early" in what and "times" in what]
