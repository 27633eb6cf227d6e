"""What is different in a process of the campaign: its clock can jump, it waits less, and the ledger hears of it.

Nothing of this is in the product. A forked process calls `install` before it runs planwarden's own `main`.
"""

import os
import time
from pathlib import Path
from typing import Any

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Append, Lease
from planwarden.agent.runtime import engine, run, scheduler
from planwarden.storage.locks import LivenessFile
from planwarden.storage.sqlite.store import SqliteStore
from tests.campaign import plants
from tests.campaign.clock import JumpingClock
from tests.campaign.ledger import Ledger

LEASE_S = 0.8
RENEW_S = 0.2
TICK_S = 0.1
CERTAIN_S = 0.25
SILENT_S = 0.5
CALL_S = 2.0
"""The time limit of every tool with an effect."""
HASTY_VARIABLE = "CAMPAIGN_HASTY"
"""Where it is set, nobody waits until the calls of a silent owner are over: only the check before sending is left."""


def install(stage: Path, plant: str | None) -> None:
    """Raises `KeyError` when there is no such planted bug."""
    time.time = JumpingClock(stage).now
    scheduler.TICK_S, scheduler.RENEW_S = TICK_S, RENEW_S
    setattr(engine, "SILENT_S", SILENT_S)  # noqa: B010
    setattr(run, "CERTAIN_S", CERTAIN_S)  # noqa: B010
    if HASTY_VARIABLE in os.environ:
        setattr(engine.Engine, "_longest_call_s", _wait_little)  # noqa: B010
    _shorten_leases()
    _report_owners(Ledger(stage))
    if plant is not None:
        plants.PLANTS[plant]()


def _wait_little(self: engine.Engine, execution: ExecutionState) -> float:
    return SILENT_S


def _shorten_leases() -> None:
    opened = SqliteStore.open.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def open_store(cls: type[SqliteStore], path: Path, **given: Any) -> SqliteStore:
        return opened(cls, path, **{"lease_s": LEASE_S, **given})

    setattr(SqliteStore, "open", classmethod(open_store))  # noqa: B010  # no type checker follows this


def _report_owners(ledger: Ledger) -> None:
    """The ledger learns which process is which owner, and who took an execution from whom."""
    announce, claim, append = LivenessFile.announce, SqliteStore.claim, SqliteStore.append
    known: set[str] = set()

    def announcing(self: LivenessFile, owner: str) -> None:
        announce(self, owner)
        if owner not in known:
            known.add(owner)
            ledger.write("owner", owner=owner)

    async def claiming(self: SqliteStore, execution_id: str, owner: str, **given: Any) -> Lease | None:
        before = await self.header(execution_id)
        lease = await claim(self, execution_id, owner, **given)
        if lease is not None and before is not None and before.owner not in (None, owner):
            ledger.write("took", execution=execution_id, owner=owner, previous=before.owner, how="claim")
        return lease

    async def appending(self: SqliteStore, given: Append) -> Lease | None:
        takes = given.acquire and given.expected_version > 0
        before = await self.header(given.execution.execution_id) if takes else None
        lease = await append(self, given)
        if before is not None and before.owner not in (None, given.owner):
            execution_id = given.execution.execution_id
            ledger.write("took", execution=execution_id, owner=given.owner, previous=before.owner, how="answer")
        return lease

    LivenessFile.announce, SqliteStore.claim = announcing, claiming
    SqliteStore.append = appending  # pyright: ignore[reportAttributeAccessIssue]  # the parameter has another name
