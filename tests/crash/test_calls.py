"""A crash at every store call, before and after it, and a lost answer to every append.

After the crash nothing of the old process is used again. A new one opens what a file would hold if the process had been
killed there, or the same database of PostgreSQL, to which the old one has lost its connections. A person answers
truthfully what is asked, and the outcome must be that of a run without a crash.
"""

import math
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

import anyio
import psycopg
import pytest

import planwarden.agent.runtime.run
from planwarden.agent.common.errors import CommitUnknown, PlanwardenError
from planwarden.agent.runtime import scheduler
from planwarden.agent.runtime.log_reader import load_execution
from planwarden.server.cli.checks.store import replay_logs
from planwarden.storage.sqlite import disk_pace
from tests.crash.worlds import SCENARIOS, WORLDS, Outcome, Play, World
from tests.kit import ManualClock, each_once, first_only, requirement
from tests.storage.suite import BackEnd, Memory, Postgres, Sqlite
from tests.support.fakes import Crash, CrashingStore, StoreCall, WatchedStore


@pytest.fixture(autouse=True)
def only_turns_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first turn the scheduler makes none by itself, and no disk is too slow to be waited for, so store calls
    have the same numbers on any machine."""
    monkeypatch.setattr(scheduler, "TICK_S", 3_600.0)
    monkeypatch.setattr(disk_pace, "QUICK_S", math.inf)


When = Literal["before", "after"]
Point = tuple[int, When]
"""The number of a call to the store, and whether the process dies before or after it."""
WHEN: tuple[When, ...] = ("before", "after")


class Mortal(BackEnd, Protocol):
    async def kill(self) -> "Mortal":
        """Return what is left of the store when its process is killed now."""
        ...


class MortalSqlite(Sqlite):
    async def kill(self) -> "MortalSqlite":
        folder = self._path.parent.with_name(f"{self._path.parent.name} left")
        # SQLite makes the file of shared memory anew.
        shutil.copytree(self._path.parent, folder, ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        await self.close()
        left = MortalSqlite(folder)
        left.clock = self.clock
        return left


class MortalPostgres(Postgres):
    """Whose owners are dead as soon as their locks are free."""

    gone_s = 0.0

    async def kill(self) -> "MortalPostgres":
        """Its connections break before it can say that it ends."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await self.opened.pop().close()
        return self


async def crash_at_every_call(
    folder: Path,
    open_world: Callable[[Path, ManualClock], World],
    when: When,
    *,
    kind: Callable[[Path], Mortal] = MortalSqlite,
    first: Sequence[Point] = (),
) -> list[Outcome]:
    """Return what each run came to whose last process but one died at call 1, 2, ..., and then the one where none did.

    Before it, processes die at the points in `first`.
    """
    outcomes = list[Outcome]()
    for at in count(1):
        (place := folder / f"{at}").mkdir()
        back_end = kind(place / "home")
        world = open_world(place, back_end.clock)
        try:
            await world.prepare(back_end.connect())
            is_dead = False
            points: list[Point] = [*first, (at, when)]
            for point, moment in points:
                dying = CrashingStore(back_end.connect(), at=point, when=moment)
                try:
                    await world.live(dying)
                except* Crash:
                    pass
                except* PlanwardenError:
                    assert dying.is_dead
                is_dead = dying.is_dead
                back_end = await back_end.kill()
            with anyio.fail_after(120):
                outcomes.append(await world.finish(back_end.connect()))
            report = await replay_logs(back_end.connect(), has_finished=True)
            assert report.faults == []
        except BaseException as error:
            error.add_note(f"after a crash at store call {at}")
            raise
        finally:
            await back_end.close()
        if not is_dead:
            return outcomes
    raise AssertionError("unreachable")


def check(outcomes: list[Outcome], promised: Outcome, fewest: int = 8) -> None:
    *crashed, undisturbed = outcomes
    assert undisturbed | promised == undisturbed
    assert {at: outcome for at, outcome in enumerate(crashed, 1) if outcome != undisturbed} == {}
    assert len(crashed) >= fewest


@requirement("crash:every-call", "replay:real", "retry:once", "rules:once", "rules:budget")
@pytest.mark.parametrize(
    ("name", "when", "kind"), each_once(["plan", "model", "once", "retry"], WHEN, [MortalSqlite, MortalPostgres])
)
async def test_a_crash_at_any_store_call_repeats_no_effect_and_loses_nothing(
    tmp_path: Path, name: str, when: When, kind: Callable[[Path], Mortal]
) -> None:
    outcomes = await crash_at_every_call(tmp_path, WORLDS[name], when, kind=kind)
    check(outcomes, WORLDS[name](tmp_path, ManualClock()).promised)


@requirement("crash:every-call")
@pytest.mark.parametrize("at", first_only(11, 5, 10, 12, 13))
async def test_a_second_crash_at_any_store_call_of_the_recovery_repeats_no_effect(tmp_path: Path, at: int) -> None:
    outcomes = await crash_at_every_call(tmp_path, WORLDS["plan"], "before", first=[(at, "after")])
    check(outcomes, Play.promised)


@requirement("crash:every-call")
@pytest.mark.long
@pytest.mark.parametrize("at", range(1, 16))
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("last", WHEN)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_two_crashes_at_any_two_store_calls_repeat_no_effect_and_lose_nothing(
    tmp_path: Path, name: str, last: When, when: When, at: int
) -> None:
    outcomes = await crash_at_every_call(tmp_path, WORLDS[name], last, first=[(at, when)])
    check(outcomes, Play.promised, fewest=0)


class Forgetful:
    def __init__(self, at: int) -> None:
        self.appends, self._at = 0, at

    async def __call__(self, moment: StoreCall) -> None:
        if (moment.call, moment.when) == ("append", "after"):
            self.appends += 1
            if self.appends == self._at:
                raise CommitUnknown()


@requirement("crash:lost-answer")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_lost_answer_to_any_append_repeats_no_effect_stops_nothing_and_asks_nobody(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planwarden.agent.runtime.run, "RETRY_S", 0.001)
    outcomes = list[Outcome]()
    for at in count(1):
        (folder := tmp_path / str(at)).mkdir()
        back_end, forgetful = Memory(folder), Forgetful(at)
        store, play = back_end.connect(), Play(name, folder, back_end.clock)
        with anyio.fail_after(60):
            await play.live(WatchedStore(store, forgetful))
        outcomes.append(await play.finish(store))
        [header] = await store.executions(None, 10)
        asked = (await load_execution(store, header)).suspensions.values()
        assert "reconcile" not in [found.question.kind for found in asked]
        if forgetful.appends < at:
            break
    check(outcomes, Play.promised, fewest=5)
