"""What goes wrong with a store: it lies, stands still, forgets an answer, or its process dies at one of its calls."""

import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection
from itertools import count
from pathlib import Path
from typing import Literal, TypeVar

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError, StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.ports.store import Append, Changes, Lease, Store
from tests.harness.process import WORKER
from tests.storage.suite import BackEnd, Memory, Postgres, Sqlite
from tests.support.fakes import Crash, CrashingStore, StoreCall, WatchedStore
from tests.support.paths import ROOT
from tests.support.slices import first_only

When = Literal["before", "after"]
World = TypeVar("World")
"""What outlives the processes of one crash."""
MOMENTS = first_only(
    ("after", Sqlite),
    ("before", Postgres),
    ("before", Sqlite),
    ("after", Postgres),
    ("before", Memory),
    ("after", Memory),
    keep=2,
)
"""As parameters `when` and `kind` of a test: before or after a store call the process dies, and on which store."""


async def crash_at_every_call(
    folder: Path,
    kind: Callable[[Path], BackEnd],
    when: When,
    open_world: Callable[[Path], World],
    live: Callable[[World, BackEnd, CrashingStore], Awaitable[None]],
    recover: Callable[[World, BackEnd], Awaitable[None]],
    prepare: Callable[[World, BackEnd], Awaitable[None]] | None = None,
) -> None:
    """For each call that a life makes to its store, let one life die there, and another one recover."""
    for at in count(1):
        (place := folder / str(at)).mkdir()
        back_end, world = kind(place), open_world(place)
        try:
            if prepare is not None:
                await prepare(world, back_end)
            crashing = CrashingStore(back_end.connect(), at=at, when=when)
            try:
                await live(world, back_end, crashing)
            except* Crash:
                pass
            except* PlanwardenError:
                assert crashing.is_dead
            with anyio.fail_after(120):
                await recover(world, back_end)
        except BaseException as error:
            error.add_note(f"after a crash {when} store call {at}")
            raise
        finally:
            await back_end.close()
        if not crashing.is_dead:
            assert at > 8
            return


class LyingStore(WatchedStore):
    """A planted bug: it acknowledges append number `at` without storing it, and dies at the next call.

    A checker of durability that does not notice proves nothing.
    """

    def __init__(self, inner: Store, *, at: int) -> None:
        super().__init__(inner, self._die)
        self.is_dead = False
        self._at = at
        self._appends = 0

    async def _die(self, moment: StoreCall) -> None:
        if self._appends >= self._at:
            # Give the callers time to act on the false acknowledgement.
            for _ in range(0 if self.is_dead else 10):
                await anyio.lowlevel.checkpoint()
            self.is_dead = True
            raise Crash(f"{moment.when} {moment.call}, after append {self._at} was not stored")

    async def append(self, append: Append) -> Lease | None:
        if self._appends + 1 == self._at:
            self._appends += 1
            return None if append.release else append.lease or Lease(append.execution.execution_id, append.owner, 1)
        held = await self.call("append", lambda: self.inner.append(append))
        self._appends += 1
        return held


class SilentStore(WatchedStore):
    """The store of a process that stands still: it renews no lease and notices nothing that others do, until it wakes.

    What the process had begun goes on all the same.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_awake = False

    async def renew(self, owner: str, execution_ids: Collection[str]) -> None:
        if self.is_awake:
            await self.call("renew", lambda: self.inner.renew(owner, execution_ids))

    async def changes(self, since: int) -> Changes:
        return await self.call("changes", lambda: self.inner.changes(since)) if self.is_awake else Changes(since)


class ForgetfulStore(WatchedStore):
    """A store that takes an execution over and then loses the answer, once."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.lost: Lease | None = None

    async def claim_many(self, owner: str, limit: int, *, skip: Collection[str] = ()) -> tuple[Lease, ...]:
        leases = await self.call("claim_many", lambda: self.inner.claim_many(owner, limit, skip=skip))
        for lease in leases:
            self._lose(lease)
        return leases

    async def claim(self, execution_id: str, owner: str, *, silent_s: float = 0.0) -> Lease | None:
        lease = await self.call("claim", lambda: self.inner.claim(execution_id, owner, silent_s=silent_s))
        if lease is not None:
            self._lose(lease)
        return lease

    def _lose(self, lease: Lease) -> None:
        if self.lost is None:
            self.lost = lease
            raise StoreError("the answer was lost")


def has_result_of(append: Append, call_id: str) -> bool:
    """Whether the transaction records that the call returned."""
    events = (entry.event for entry in append.recorded)
    return any(isinstance(event, ev.ToolReturned) and event.call_id == call_id for event in events)


def run_on_mount(folder: Path, mount: str, program: str) -> dict[str, JsonValue]:
    """Run a program in its own mount namespace, after the shell command `mount`. Return the JSON that it prints."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("needs Linux and unshare(1) to mount something that only one process sees")
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"this machine does not let us mount: {allowed.stderr.decode().strip()}")
    script = f'{mount} && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *WORKER, program, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
