"""A move that is killed: at every moment at most one of the two stores can be used, and the next run starts again."""

import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.storage.location import StoreLocation, read_location
from planwarden.storage.moving.move import move
from planwarden.storage.opening import open_store
from tests.requirements import requirement
from tests.storage.suite import Scribe
from tests.support.full_store import dump, fill, make_url
from tests.support.paths import ROOT
from tests.support.postgres import shared_server

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PROGRAM = """
import os, signal, sys
from planwarden.storage.location import read_location
from planwarden.storage.moving import move as moving
from planwarden.storage.moving.postgres import PostgresSide
from planwarden.storage.moving.sqlite import SqliteSide

source, target, moment = sys.argv[1:]
pass_on, commits, passed = moving.RowSum.pass_on, 0, 0

def die(reached):
    if reached == moment:
        os.kill(os.getpid(), signal.SIGKILL)

def count(self, rows):
    global passed
    for row in pass_on(self, rows):
        passed += 1
        die(f"row {passed}")
        yield row

def counting(commit):
    def count_commit(self):
        global commits
        commits += 1
        die(f"before commit {commits}")
        commit(self)
        die(f"after commit {commits}")
    return count_commit

moving.RowSum.pass_on = count
for side in (PostgresSide, SqliteSide):
    side.commit = counting(side.commit)
moving.move(read_location(source), read_location(target))
"""
MOMENTS = {
    # The moment, then what can be used after it: the source, the target as an empty store, or neither.
    "row 1": "both",
    "row 30": "both",
    "row 80": "both",
    "before commit 1": "both",
    "after commit 1": "source",
    "before commit 2": "source",
    "after commit 2": "neither",
    "before commit 3": "neither",
}


@pytest.fixture(params=["sqlite to postgres", "postgres to sqlite", "sqlite to sqlite"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[list[str]]:
    kinds: list[str] = str(request.param).split(" to ")
    urls = [make_url() if kind == "postgres" else f"sqlite://{tmp_path / f'{n}.db'}" for n, kind in enumerate(kinds)]
    yield urls
    for url in urls:
        if not url.startswith("sqlite"):
            shared_server().drop_database(url)


async def is_usable(location: StoreLocation) -> bool:
    try:
        async with open_store(location) as store:
            await store.executions(None, 1)
    except StoreError as error:
        assert "was moved to" in error.message or "was broken off; run `planwarden" in error.message
        return False
    return True


@requirement("move:crash")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_killed_move_leaves_no_two_stores_and_the_next_run_starts_again(places: list[str], moment: str) -> None:
    source, target = map(read_location, places)
    async with open_store(source) as store:
        await fill(store)
    was = dump(source)
    done = subprocess.run(  # noqa: ASYNC221, nothing else runs here
        [sys.executable, "-c", PROGRAM, *places, moment], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    usable = {"both": (True, True), "source": (True, False), "neither": (False, False)}[MOMENTS[moment]]
    assert (await is_usable(source), await is_usable(target)) == usable
    if usable[1]:
        assert not any(dump(target).values())
    if usable[0]:
        # What is written between the two runs moves with the second one.
        async with open_store(source) as store:
            await Scribe.on(store, "between").start()
        was = dump(source)
    report = move(source, target)
    assert (await is_usable(source), await is_usable(target)) == (False, True)
    assert dump(target) == was
    assert report.rows == {name: len(rows) for name, rows in was.items()}


@requirement("move:crash")
async def test_only_the_same_source_empties_what_a_killed_move_left(places: list[str], tmp_path: Path) -> None:
    source, target = map(read_location, places)
    async with open_store(source) as store:
        await fill(store)
    subprocess.run([sys.executable, "-c", PROGRAM, *places, "after commit 2"], cwd=ROOT, check=False)  # noqa: ASYNC221
    other = StoreLocation(path=tmp_path / "other.db")
    async with open_store(other) as store:
        await fill(store)
    with pytest.raises(StoreError, match="was broken off; run `planwarden --store"):
        move(other, target)
    with pytest.raises(StoreError, match="was broken off"):
        move(target, other.__class__(path=tmp_path / "third.db"))
    assert move(source, target).rows["executions"]
    assert await is_usable(other)
