"""What is different in a process of the campaign: its clock can jump, it waits less, and the ledger hears of it.

Nothing of this is in the product. A forked process calls `install` before it runs planwarden's own `main`.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psycopg

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.agent.runtime import run, scheduler, silence
from planwarden.agent.runtime.dispatch import CallJob
from planwarden.agent.runtime.perform import CallOutcome, Performer
from planwarden.storage.locks import LivenessFile
from planwarden.storage.postgres.control import Control
from planwarden.storage.postgres.store import PostgresStore
from planwarden.storage.sqlite import pace, store
from planwarden.storage.sqlite.store import SqliteStore
from tests.campaign import plants
from tests.campaign.clock import JumpingClock
from tests.campaign.database import NAME
from tests.campaign.ledger import Ledger
from tests.campaign.manner import stand_still_if_planned
from tests.campaign.patience import PATIENCE_VARIABLE

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
ConfirmLease = Callable[[], Coroutine[object, object, None]]
TRIGGER = """
CREATE TEMP TRIGGER taken AFTER UPDATE OF owner ON main.executions
WHEN old.owner IS NOT NULL AND old.owner IS NOT new.owner
BEGIN SELECT note_take(old.execution_id, old.owner, new.owner); END
"""


def install(stage: Path, plant: str | None) -> None:
    """Raises `KeyError` when there is no such planted bug."""
    time.time = JumpingClock(stage).now
    if os.getpid() % 2:
        # Every second process behaves as on a slow disk: its commits and lookups run on threads.
        pace.QUICK_S = -1.0
    patience = os.environ[PATIENCE_VARIABLE]
    if patience != "product":
        scheduler.TICK_S, scheduler.RENEW_S = TICK_S, RENEW_S
        setattr(run, "CERTAIN_S", CERTAIN_S)  # noqa: B010
        setattr(silence, "SILENT_S", HASTY_S if patience == "hasty" else SILENT_S)  # noqa: B010
        setattr(silence, "RENEW_S", RENEW_S if patience == "hasty" else SILENT_S)  # noqa: B010
        _shorten_leases(SqliteStore)
        _shorten_leases(PostgresStore)
    if patience == "hasty":
        setattr(silence, "longest_call_s", _wait_little)  # noqa: B010
    _report_owners(Ledger(stage))
    _stop_before_calls(stage)
    _name_connections()
    if plant is not None:
        {**plants.PLANTS, **plants.SHARED_PLANTS}[plant]()


def _wait_little(execution: ExecutionState, tools: Toolbox) -> float:
    return HASTY_S


def _shorten_leases(store: type[Any]) -> None:
    opened = store.open.__func__

    def open_store(cls: type[Any], place: object, **given: Any) -> Any:
        return opened(cls, place, **{"lease_s": LEASE_S, **given})

    store.open = classmethod(open_store)


def _report_owners(ledger: Ledger) -> None:
    """The ledger learns which process is which owner, and which process ended the ownership of another one.

    A trigger that only this process's connections have tells, in the transaction that does it.
    """
    announce, connect, own = LivenessFile.announce, store._connect_and_migrate, set[str]()  # pyright: ignore[reportPrivateUsage]
    announce_shared = Control.announce

    def report(owner: str) -> None:
        if owner not in own:
            own.add(owner)
            ledger.write("owner", owner=owner)

    def announcing(self: LivenessFile, owner: str) -> None:
        announce(self, owner)
        report(owner)

    def announcing_shared(self: Control, owner: str) -> None:
        report(owner)
        announce_shared(self, owner)

    def note(execution_id: str, previous: str, owner: str | None) -> None:
        if previous not in own:
            ledger.write("took", execution=execution_id, previous=previous, owner=owner)

    def connecting(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.create_function("note_take", 3, note)
        connection.execute(TRIGGER)
        return connection

    LivenessFile.announce, Control.announce = announcing, announcing_shared
    store._connect_and_migrate = connecting  # pyright: ignore[reportPrivateUsage]


def _stop_before_calls(stage: Path) -> None:
    """A process may stop where others can least see what it will do: its call is stored, and not yet sent."""
    attempt, ledger = Performer._attempt, Ledger(stage)  # pyright: ignore[reportPrivateUsage]

    async def attempting(
        self: Performer, execution: ExecutionState, job: CallJob, confirm_lease: ConfirmLease
    ) -> CallOutcome:
        if job.call.effect == "effect":
            stand_still_if_planned(stage, ledger, f"{execution.execution_id}:{job.call.call_id}")
        return await attempt(self, execution, job, confirm_lease)

    Performer._attempt = attempting  # pyright: ignore[reportPrivateUsage]


def _name_connections() -> None:
    """The database learns which process each connection belongs to."""
    connect = psycopg.Connection[Any].connect.__func__  # pyright: ignore[reportFunctionMemberAccess]

    def connecting(cls: type[Any], url: str, **given: Any) -> Any:
        return connect(cls, url, **{**given, "application_name": NAME.format(pid=os.getpid())})

    setattr(psycopg.Connection, "connect", classmethod(connecting))  # noqa: B010  # no type checker follows this
