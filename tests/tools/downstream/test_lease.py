"""A call whose process lost the execution while the call waited: whichever look finds out, nothing is sent."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import LeaseLost
from planwarden.agent.ports.store import Lease
from planwarden.storage.clock import SystemClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.doubles.hostile_http import http_double
from tests.tools.downstream.support import Place, build_plan, run_call, wait_until

pytestmark = pytest.mark.anyio


class HurriedClock(SystemClock):
    """So much time passes between two looks that a lease is never certain."""

    def __init__(self) -> None:
        self._looks = 0

    def steady(self) -> float:
        self._looks += 1
        return 1_000.0 * self._looks


class LostLeaseStore(MemoryStore):
    """Another process has the execution from the given look at the lease on."""

    def __init__(self, lost_at: int) -> None:
        super().__init__(HurriedClock(), lease_s=1e9)
        self.looks = 0
        self._lost_at = lost_at

    async def confirm(self, lease: Lease) -> None:
        self.looks += 1
        if self.looks >= self._lost_at:
            raise LeaseLost(f"execution {lease.execution_id!r} is owned by another process")
        await super().confirm(lease)


LOOKS = {"before the tool": 1, "after its server started": 2, "when the bytes leave": 3}
NEVER = 99


@requirement("lease:effect")
@pytest.mark.parametrize("lost_at", LOOKS.values(), ids=LOOKS)
async def test_a_call_over_stdio_is_not_written_when_the_lease_is_lost(tmp_path: Path, lost_at: int) -> None:
    place = Place(
        tmp_path, settings='[servers.d]\ntrusted = true\n[tools."d_note"]\nrisk = "read"\neffect = "effect"\n'
    )
    place.serve(d="good")
    store = LostLeaseStore(lost_at)
    async with place.warden(store) as warden:
        await warden.execute_plan(build_plan("d_note", {"text": "hi"}), wait_seconds=0)
        await wait_until(lambda: store.looks >= lost_at)
    assert store.looks == lost_at
    assert not [line for line in place.ledger if line.startswith("note ")]


@requirement("lease:effect")
@pytest.mark.parametrize("lost_at", LOOKS.values(), ids=LOOKS)
async def test_a_call_over_http_is_not_posted_when_the_lease_is_lost(tmp_path: Path, lost_at: int) -> None:
    place = Place(tmp_path, settings='[tools."d_good"]\nrisk = "read"\neffect = "effect"\n')
    store = LostLeaseStore(lost_at)
    async with http_double() as double:
        place.configure({"d": {"url": double.url}})
        async with place.warden(store) as warden:
            await warden.execute_plan(build_plan("d_good"), wait_seconds=0)
            await wait_until(lambda: store.looks >= lost_at)
    assert store.looks == lost_at
    assert double.calls == []


@requirement("lease:effect")
async def test_a_call_looks_at_its_lease_once_more_when_its_bytes_leave_and_is_then_sent(tmp_path: Path) -> None:
    place = Place(
        tmp_path, settings='[servers.d]\ntrusted = true\n[tools."d_note"]\nrisk = "read"\neffect = "effect"\n'
    )
    place.serve(d="good")
    store = LostLeaseStore(NEVER)
    async with place.warden(store) as warden:
        done = await run_call(warden, "d_note", {"text": "hi"})
    assert (done.status, store.looks, place.ledger[-1]) == ("completed", len(LOOKS), "note hi")
