"""A call whose process lost the execution while the call waited: whichever look finds out, nothing is sent."""

from pathlib import Path

import pytest

from planwarden.agent.common.errors import LeaseLost
from planwarden.agent.ports.store import Lease
from planwarden.storage.clock import SystemClock
from tests.kit import MemoryStore, requirement
from tests.support.doubles.hostile_http import http_double
from tests.support.slices import first_only
from tests.tools.downstream.support import Place, build_plan, wait_until

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


LOOKS = {"when the bytes leave": 3, "never": 99, "before the tool": 1, "after its server started": 2}
"""When the lease is lost: at which look at it."""


@requirement("lease:effect")
@pytest.mark.parametrize("lost_at", first_only(*LOOKS.values(), keep=2))
async def test_a_call_over_stdio_is_not_written_when_the_lease_is_lost(tmp_path: Path, lost_at: int) -> None:
    settings = '[servers.d]\ntrusted = true\n[tools."d_note"]\nrisk = "read"\neffect = "effect"\n'
    place = Place(tmp_path, settings=settings)
    place.serve(d="good")
    store = LostLeaseStore(lost_at)
    async with place.warden(store) as warden:
        await warden.execute_plan(build_plan("d_note", {"text": "hi"}), wait_seconds=0)
        await wait_until(lambda: store.looks >= lost_at or "note hi" in place.ledger)
    # It looks once more when its bytes leave.
    assert store.looks == min(lost_at, 3)
    assert place.ledger.count("note hi") == (lost_at > 3)


@requirement("lease:effect")
@pytest.mark.parametrize("lost_at", [1, 2, 3])
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
