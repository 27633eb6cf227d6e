"""What is different in a process of the campaign: its clock can jump, it waits less, and the ledger hears of it.

Nothing of this is in the product. A forked process calls `install` before it runs planwarden's own `main`.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime import run, scheduler, silence
from planwarden.storage.locks import LivenessFile
from planwarden.storage.sqlite import pace, store
from planwarden.storage.sqlite.store import SqliteStore
from tests.campaign import plants
from tests.campaign.clock import JumpingClock
from tests.campaign.ledger import Ledger

LEASE_S = 0.8
RENEW_S = 0.2
TICK_S = 0.1
CERTAIN_S = 0.25
SILENT_S = 2.0
HASTY_S = 0.5
CALL_S = 2.0
"""The time limit of every tool with an effect."""
HASTY_CALL_S = 12.0
"""That limit where nobody waits for it: so long that it stops no call of a process that continues."""
TRIGGER = """
CREATE TEMP TRIGGER taken AFTER UPDATE OF owner ON main.executions
WHEN old.owner IS NOT NULL AND old.owner IS NOT new.owner
BEGIN SELECT note_take(old.execution_id, old.owner, new.owner); END
"""
HASTY_VARIABLE = "CAMPAIGN_HASTY"
"""Where it is set, nobody waits until the calls of a silent owner are over: only the check before sending is left."""


def install(stage: Path, plant: str | None) -> None:
    """Raises `KeyError` when there is no such planted bug."""
    time.time = JumpingClock(stage).now
    scheduler.TICK_S, scheduler.RENEW_S = TICK_S, RENEW_S
    setattr(run, "CERTAIN_S", CERTAIN_S)  # noqa: B010
    if os.getpid() % 2:
        # Every second process behaves as on a slow disk: its commits and lookups run on threads.
        pace.QUICK_S = -1.0
    is_hasty = HASTY_VARIABLE in os.environ
    setattr(silence, "SILENT_S", HASTY_S if is_hasty else SILENT_S)  # noqa: B010
    if is_hasty:
        setattr(silence, "longest_call_s", _wait_little)  # noqa: B010
    _shorten_leases()
    _report_owners(Ledger(stage))
    if plant is not None:
        plants.PLANTS[plant]()


def _wait_little(execution: ExecutionState, tools: Toolbox) -> float:
    return HASTY_S


def _shorten_leases() -> None:
    opened = SqliteStore.open.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def open_store(cls: type[SqliteStore], path: Path, **given: Any) -> SqliteStore:
        return opened(cls, path, **{"lease_s": LEASE_S, **given})

    setattr(SqliteStore, "open", classmethod(open_store))  # noqa: B010  # no type checker follows this


def _report_owners(ledger: Ledger) -> None:
    """The ledger learns which process is which owner, and which process ended the ownership of another one.

    A trigger that only this process's connections have tells, in the transaction that does it.
    """
    announce, connect, own = LivenessFile.announce, store._connect_and_migrate, set[str]()  # pyright: ignore[reportPrivateUsage]

    def announcing(self: LivenessFile, owner: str) -> None:
        announce(self, owner)
        if owner not in own:
            own.add(owner)
            ledger.write("owner", owner=owner)

    def note(execution_id: str, previous: str, owner: str | None) -> None:
        if previous not in own:
            ledger.write("took", execution=execution_id, previous=previous, owner=owner)

    def connecting(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.create_function("note_take", 3, note)
        connection.execute(TRIGGER)
        return connection

    LivenessFile.announce = announcing
    store._connect_and_migrate = connecting  # pyright: ignore[reportPrivateUsage]
