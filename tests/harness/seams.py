"""What is different in a process of a stage: its clock can jump, it waits less, and the ledger hears of it.

Nothing of this is in the product. The worker calls `install` before it runs planwarden's own `main`. This is the only
place that replaces what has no seam of its own. Planted bugs are switched on only here; a campaign that does not find
them proves nothing.
"""

import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from planwarden.agent.approval import grants
from planwarden.agent.ports.budgets_and_keys import Grant
from planwarden.agent.runtime import adoption, ownership, scheduler
from planwarden.agent.runtime.dispatch import CallJob
from planwarden.agent.runtime.perform import Performer
from planwarden.agent.runtime.run import Run
from planwarden.storage.locks import LivenessFile
from planwarden.storage.postgres.connection import SQL as SHARED_SQL
from planwarden.storage.postgres.control_connection import Control
from planwarden.storage.postgres.store import LockLiveness, PostgresStore
from planwarden.storage.sql import append
from planwarden.storage.sqlite import disk_pace, store
from planwarden.storage.sqlite.database import SQL
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.ledger import STAND_STILL, Ledger, SharedClock, take
from tests.harness.process import CONNECTION_NAME, PATIENCE

LEASE_S, RENEW_S, TICK_S, CERTAIN_S, SILENT_S, HASTY_S = 0.8, 0.2, 0.1, 0.25, 2.0, 0.5
CALL_S = 2.0
"""The time limit of every tool with an effect."""
HASTY_CALL_S = 12.0
"""That limit where nobody waits for it: so long that it stops no call of a process that continues."""
TRIGGER = """
CREATE TEMP TRIGGER taken AFTER UPDATE OF owner ON main.executions
WHEN old.owner IS NOT NULL AND old.owner IS NOT new.owner
BEGIN SELECT note_take(old.execution_id, old.owner, new.owner); END
"""


def replace(owner: Any, **members: object) -> None:
    for name, member in members.items():
        setattr(owner, name, member)


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def _give(value: object) -> Callable[..., object]:
    def give(*arguments: object, **named: object) -> object:
        return value

    return give


def _give_always(function: Callable[..., Any], **facts: object) -> Callable[..., Any]:
    def give(*arguments: object, **named: object) -> Any:
        return function(*arguments, **{**named, **facts})

    return give


def install(stage: Path, plant: str | None) -> None:
    """Raises `KeyError` when there is no such planted bug."""
    time.time = SharedClock.of(stage).now
    if os.getpid() % 2:
        # Every second process behaves as on a slow disk: its commits and lookups run on threads.
        disk_pace.QUICK_S = -1.0
    patience, ledger = os.environ[PATIENCE], Ledger.of(stage)
    if patience != "product":
        is_hasty = patience == "hasty"
        replace(scheduler, TICK_S=TICK_S, RENEW_S=RENEW_S)
        replace(ownership, CERTAIN_S=CERTAIN_S)
        replace(adoption, SILENT_S=HASTY_S if is_hasty else SILENT_S, RENEW_S=RENEW_S if is_hasty else SILENT_S)
        for kind in (SqliteStore, PostgresStore):
            wrap(kind, "open", lambda opened: partial(opened, lease_s=LEASE_S))
        if is_hasty:
            replace(adoption, longest_call_s=_give(HASTY_S))
    _report_owners(ledger)
    _stop_before_calls(stage, ledger)
    # The database learns which process each connection belongs to.
    wrap(psycopg.Connection, "connect", partial(_give_always, application_name=CONNECTION_NAME.format(pid=os.getpid())))
    if plant is not None:
        {**PLANTS, **SHARED_PLANTS}[plant]()


def _report_owners(ledger: Ledger) -> None:
    """The ledger learns which process is which owner, and which process ended the ownership of another one.

    A trigger that only this process's connections have tells, in the transaction that does it.
    """
    own = set[str]()

    def announcing(announce: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        def report(self: Any, owner: str) -> None:
            if owner not in own:
                own.add(owner)
                ledger.write("owner", owner=owner)
            announce(self, owner)

        return report

    def note(execution_id: str, previous: str, owner: str | None) -> None:
        if previous not in own:
            ledger.write("took", execution=execution_id, previous=previous, owner=owner)

    def connecting(connect: Callable[[Path], sqlite3.Connection]) -> Callable[[Path], sqlite3.Connection]:
        def watch(path: Path) -> sqlite3.Connection:
            connection = connect(path)
            connection.create_function("note_take", 3, note)
            connection.execute(TRIGGER)
            return connection

        return watch

    wrap(LivenessFile, "announce", announcing)
    wrap(Control, "announce", announcing)
    wrap(store, "_connect_and_migrate", connecting)


def _stop_before_calls(stage: Path, ledger: Ledger) -> None:
    """A process may stop where others can least see what it will do: its call is stored, and not yet sent."""

    def attempting(attempt: Callable[..., Any]) -> Callable[..., Any]:
        async def stand_still(self: Performer, execution: Any, job: CallJob, confirm_lease: Any) -> Any:
            if job.call.effect == "effect" and take(stage, STAND_STILL):
                ledger.write("stands", key=f"{execution.execution_id}:{job.call.call_id}")
                os.kill(os.getpid(), signal.SIGSTOP)
            return await attempt(self, execution, job, confirm_lease)

        return stand_still

    wrap(Performer, "_attempt", attempting)


async def _confirm_nothing(self: Run, key: str) -> None:
    """As if nobody had asked."""


def ignore_the_fence() -> None:
    """An owner never notices that another process took its execution over, neither when it writes nor when it sends."""
    for statements in (SQL, SHARED_SQL):
        statements["confirm"] = re.sub(
            r"owner = (.4) AND fence = (.5)", r"(owner = \1 OR fence <> \2)", statements["confirm"]
        )
    replace(append, has_lease=_give(True))
    replace(Run, confirm_lease=_confirm_nothing, lose_ownership=_give(None))


def count_no_uses() -> None:
    """A grant lets calls through until its time is over."""

    def is_open(grant: Grant, now: float) -> bool:
        return grant.revoked_at is None and now < grant.expires_at

    def count_uses_left(grant: Grant, now: float) -> int:
        return grant.uses

    for module in (grants, append):
        replace(module, is_open=is_open, count_uses_left=count_uses_left)


def _count_as_dead(kind: Any, name: str, is_dead: Callable[[Any, str], bool]) -> Callable[[], None]:
    def counts(self: Any, owner: str, *facts: object, **named: object) -> bool:
        return is_dead(self, owner)

    return lambda: replace(kind, **{name: counts})


PLANTS: dict[str, Callable[[], None]] = {
    "no-fence": ignore_the_fence,
    # An owner counts as dead whether or not its process holds its lock.
    "no-lock": _count_as_dead(LivenessFile, "is_dead", lambda self, owner: owner not in self._held),
}
SHARED_PLANTS: dict[str, Callable[[], None]] = {
    # A sign of life that never ends: what was killed is waited for as what is silent.
    "shared-no-death": _count_as_dead(LockLiveness, "_counts_as_dead", lambda self, owner: False),
    "shared-no-fence": ignore_the_fence,
    # An owner on another machine counts as dead whether or not its lock is held.
    "shared-no-lock": _count_as_dead(
        LockLiveness, "_counts_as_dead", lambda self, owner: owner not in self._control._owners
    ),
    "shared-no-count": count_no_uses,
}
"""On PostgreSQL."""
