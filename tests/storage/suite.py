"""Every store behind one door, so that the tests of the port's laws run over all of them.

A new back end is one class here and one entry in `BACK_ENDS`; the laws in `tests/storage/test_laws.py` then apply to
it. `Scribe` writes the logs that the laws are tested with: real events, folded as the engine folds them.
"""

import functools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest
from pytest import ParameterSet

from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.question import KINDS, Addressee
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.ports.store import Append, Guard, Lease, Store
from planwarden.storage.clock import ManualClock
from planwarden.storage.postgres.store import GONE_S, PostgresStore
from planwarden.storage.sqlite import database
from planwarden.storage.sqlite.store import MemoryStore, SqliteStore
from tests.support.postgres import shared_pooler, shared_server

LEASE_S = 15.0
PLAN = Plan(
    steps=(
        PlanStep(
            step_id="a",
            description="ask, then book",
            step_type="tool",
            required_tools=("book",),
            tool_calls=(PlannedCall(tool_name="book", arguments={"city": "Łódź"}),),
        ),
    )
)


class BackEnd(Protocol):
    clock: ManualClock

    def connect(self) -> Store:
        """A store over the content, as a process of its own would open it."""
        ...

    async def close(self) -> None: ...


class Memory:
    """SQLite in memory: all connections are the same object, as all processes share one file."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._store = MemoryStore(self.clock, lease_s=LEASE_S)

    def connect(self) -> Store:
        return self._store

    async def close(self) -> None:
        await self._store.close()


@functools.cache
def _migrated_file() -> bytes:
    """A database that planwarden has just made. Most tests copy it, because making one takes three times as long as
    opening it; those of `tests/storage/test_sqlite.py` make their own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planwarden.db"
        database.prepare(path)
        with closing(database.connect(path)) as connection:
            database.migrate(connection, path)
        return path.read_bytes()


class Sqlite:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._path = folder / "planwarden.db"
        self.opened: list[Store] = []

    def connect(self) -> Store:
        if not self._path.exists():
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._path.touch(mode=0o600)
            self._path.write_bytes(_migrated_file())
        store = SqliteStore.open(self._path, clock=self.clock, lease_s=LEASE_S)
        self.opened.append(store)
        return store

    async def close(self) -> None:
        for store in self.opened:
            await store.close()


class Postgres(Sqlite):
    gone_s = GONE_S

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.url = shared_server().make_database()

    def connect(self) -> Store:
        store = PostgresStore.open(self.url, clock=self.clock, lease_s=LEASE_S, gone_s=self.gone_s)
        self.opened.append(store)
        return store

    async def close(self) -> None:
        await super().close()
        shared_server().empty_database(self.url)


class PooledPostgres(Postgres):
    """The same through PgBouncer in transaction mode, its control connection past it."""

    def connect(self) -> Store:
        pooled = shared_pooler().lead_to(self.url)
        store = PostgresStore.open(pooled, control_url=self.url, clock=self.clock, lease_s=LEASE_S, gone_s=self.gone_s)
        self.opened.append(store)
        return store


BACK_ENDS: dict[str, Callable[[Path], BackEnd]] = {
    "memory": Memory,
    "sqlite": Sqlite,
    "postgres": Postgres,
    "postgres, pooled": PooledPostgres,
}
_LANES = {"memory": pytest.mark.exhaustive, "postgres, pooled": pytest.mark.postgres}
BACK_END_NAMES = [pytest.param(name, marks=_LANES.get(name, ())) for name in sorted(BACK_ENDS)]
"""As parameters of a fixture. What needs a package of Debian runs only with `make postgres`. That no disk
changes nothing above the laws of the store is seen only with `make exhaustive`."""


def mainly(*names: str) -> list[ParameterSet]:
    """All, as parameters of a test, of which `make test` runs the named ones."""
    lanes = dict.fromkeys(BACK_ENDS, pytest.mark.exhaustive) | _LANES | dict.fromkeys(names, ())
    return [pytest.param(name, marks=lanes[name]) for name in sorted(BACK_ENDS)]


@dataclass
class Scribe:
    """Writes one execution's log through a store, as one process."""

    store: Store
    execution: ExecutionState
    owner: str = "p1"
    lease: Lease | None = None
    written: list[ev.Recorded] = field(default_factory=list[ev.Recorded])
    """What this scribe wrote, as it should come back."""

    @classmethod
    def on(
        cls, store: Store, execution_id: str, *, thread_id: str | None = None, owner: str = "p1", principal: str = "ann"
    ) -> "Scribe":
        empty = new_execution(execution_id, thread_id or f"thread of {execution_id}", principal)
        return cls(store, empty, owner=owner)

    def append(self, *events: ev.Event, guards: Sequence[Guard] = ()) -> Append:
        """The transaction that `write` would commit: owned while running, released when it stops."""
        execution, recorded = self.execution, list[ev.Recorded]()
        at = self.store.clock.now()
        for event in events:
            execution = apply(execution, event, at)
            recorded.append(ev.Recorded(sequence=execution.version, at=at, event=event))
        return Append(
            execution=execution,
            recorded=recorded,
            expected_version=self.execution.version,
            lease=self.lease,
            acquire=self.lease is None,
            release=execution.status != "running",
            owner=self.owner,
            guards=guards,
        )

    async def write(self, *events: ev.Event, guards: Sequence[Guard] = ()) -> ExecutionState:
        append = self.append(*events, guards=guards)
        self.lease = await self.store.append(append)
        self.execution = append.execution
        self.written.extend(append.recorded)
        return self.execution

    async def start(self) -> ExecutionState:
        """A running execution with one started step."""
        return await self.write(ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN), ev.StepStarted(step_id="a"))

    async def suspend(self, suspension_id: str, *, addressee: Addressee = "human", **fields: object) -> ExecutionState:
        """Start and ask one question; the execution is suspended and has no owner."""
        if not self.execution.version:
            await self.start()
        asked = question(suspension_id, addressee=addressee, **fields)
        return await self.write(ev.Suspended(question=asked), ev.ExecutionSuspended())

    async def finish(self) -> ExecutionState:
        if not self.execution.version:
            await self.start()
        return await self.write(
            ev.ToolCallIntended(call_id="a:1", arguments={"city": "Łódź"}),
            ev.ToolReturned(call_id="a:1", value={"seat": 7}),
            ev.StepCompleted(step_id="a", validation="passed"),
            ev.ExecutionCompleted(),
        )


async def kinds(store: Store) -> list[str]:
    return [row.entry.kind for row in await store.audit_rows()]


def question(suspension_id: str, *, addressee: Addressee = "human", **fields: object) -> ev.Question:
    given: dict[str, object] = {"digest": f"digest of {suspension_id}", "step_id": "a", "call_id": "a:1", **fields}
    # The fields are the dataclass's own; a wrong one raises at once.
    return ev.Question(
        suspension_id=suspension_id,
        kind=next(kind for kind, traits in KINDS.items() if traits.addressee == addressee),
        message="book?",
        **given,  # pyright: ignore[reportArgumentType]
    )


def decided(suspension_id: str, *, approved: bool = True) -> ev.SuspensionDecided:
    return ev.SuspensionDecided(
        suspension_id=suspension_id,
        decision=ev.RecordedDecision(approved=approved),
        assurance="embedder",
        channel="test",
        principal="ann",
        digest=f"digest of {suspension_id}",
    )


def guard(suspension_id: str, **fields: str) -> Guard:
    return Guard(suspension_id=suspension_id, digest=fields.get("digest", f"digest of {suspension_id}"))
