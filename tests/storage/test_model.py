"""Random use of a store against a model made of dictionaries: same answers, same refusals, same content.

The model says which conditions a write breaks; a store must refuse with one of those and otherwise store. It is used
through two connections in turn, as two processes would.
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from planwarden.agent.common import errors
from planwarden.agent.core.execution.fold import apply, fold
from planwarden.agent.core.execution.question import Alarm
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.core.plan.plan import Plan, PlanStep
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.agent.ports.store import Append, Guard, Header, Lease, StartRequest, Store, SuspensionRow
from tests.kit import ManualClock, ev, first_only, requirement
from tests.storage.suite import BACK_ENDS, LEASE_S, BackEnd, decided

Option = TypeVar("Option")

OWNERS, THREADS = ("p1", "p2", "p3"), tuple(f"t{number}" for number in range(8))
PRINCIPALS, KEYS, PLANS = ("ann", "bob"), ("k1", "k2"), ("plan 1", "plan 2")
PLAIN: dict[str, ev.Event] = {
    "sleep": ev.ExecutionSuspended(),
    "cancel": ev.CancelRequested(),
    "exhaust": ev.ExecutionExhausted(budget="toolCalls"),
    "go on": ev.ExecutionStarted(),
    "end": ev.ExecutionFailed(code="x", message="y"),
}
"""What may be written without a question."""
KINDS = ("ask", "ask", "ask the clock", "answer", "answer", "time out", "remind", "remind", "revise", *PLAIN)
PLAN = Plan(steps=(PlanStep(step_id="a", description="a", step_type="reasoning"),))


@dataclass
class Row:
    execution: ExecutionState
    principal: str
    created_at: float
    updated_at: float
    owner: str | None = None
    fence: int = 1
    until: float = 0.0
    plan: str | None = None
    log: list[ev.Recorded] = field(default_factory=list[ev.Recorded])

    def is_owned(self, now: float) -> bool:
        return self.owner is not None and self.until > now

    @property
    def lease(self) -> Lease | None:
        return None if self.owner is None else Lease(self.execution.execution_id, self.owner, self.fence)


class Model:
    """What a store is meant to be, without any regard for speed."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.rows: dict[str, Row] = {}
        self.questions: dict[str, SuspensionRow] = {}
        self.started: dict[tuple[str, str], str] = {}
        """By principal and key."""

    def broken(self, append: Append) -> set[type[errors.PlanwardenError]]:
        """Every condition that the write does not meet."""
        row = self.rows.get(append.execution.execution_id)
        found: set[type[errors.PlanwardenError]] = {
            errors.GuardFailed for guard in append.guards if not self.holds(guard)
        }
        if self.is_thread_busy(append):
            found.add(errors.ThreadBusy)
        if append.expected_version == 0:
            found |= self.known(append) | ({errors.VersionConflict} if row is not None else set())
        elif row is None or row.execution.version != append.expected_version:
            found.add(errors.VersionConflict)
        if row is not None and append.lease is not None and append.lease != row.lease:
            found.add(errors.LeaseLost)
        if row is not None and append.lease is None and append.acquire and row.owner is not None:
            found.add(errors.LeaseLost)
        return found

    def is_thread_busy(self, append: Append) -> bool:
        """Whether an execution would begin, or an incomplete one go on, beside another one of its thread."""
        row, execution = self.rows.get(append.execution.execution_id), append.execution
        begins = append.expected_version == 0 or (row is not None and row.execution.is_finished)
        others = (r.execution for r in self.rows.values() if r is not row or append.expected_version == 0)
        is_taken = any(o.thread_id == execution.thread_id and not o.is_finished for o in others)
        return begins and not execution.is_finished and is_taken

    def known(self, append: Append) -> set[type[errors.PlanwardenError]]:
        """How the request of a creation is known from before."""
        start, principal = append.start or StartRequest(), append.execution.principal
        found: set[type[errors.PlanwardenError]] = {errors.KeyUsed} if (principal, start.key) in self.started else set()
        rows = (r for r in self.rows.values() if r.plan == start.plan and r.principal == principal)
        if start.is_only and any(not row.execution.is_finished for row in rows):
            found.add(errors.PlanUnfinished)
        return found

    def holds(self, guard: Guard) -> bool:
        row = self.questions.get(guard.suspension_id)
        if row is None or (row.status, row.digest) != ("pending", guard.digest):
            return False
        passed = row.expires_at is not None and row.expires_at <= self.clock.now()
        return guard.deadline == "any" or passed == (guard.deadline == "passed")

    def append(self, append: Append) -> Lease | None:
        now, execution = self.clock.now(), append.execution
        row = self.rows.setdefault(execution.execution_id, Row(execution, execution.principal, now, now))
        if append.start is not None:
            row.plan = append.start.plan
            if append.start.key is not None:
                self.started[execution.principal, append.start.key] = execution.execution_id
        if append.lease is None and append.acquire:
            row.fence += 1 if append.expected_version else 0
            row.owner = append.owner
        if append.release and (append.acquire or append.lease):
            row.owner, row.until = None, 0.0
        elif append.lease is not None or append.acquire:
            row.until = now + LEASE_S
        row.execution, row.updated_at = execution, now
        row.log.extend(append.recorded)
        for entry in append.recorded:
            self._project(row, entry)
        if execution.is_finished:
            # One that is incomplete and goes on later no longer counts as the unfinished run of its plan.
            row.plan = None
            for name, asked in self.questions.items():
                if asked.execution_id == execution.execution_id and asked.status == "pending":
                    self.questions[name] = replace(asked, status="withdrawn")
        return row.lease if (append.lease or append.acquire) and not append.release else None

    def _project(self, row: Row, entry: ev.Recorded) -> None:
        match entry.event:
            case ev.Suspended(question=asked):
                self.questions[asked.suspension_id] = SuspensionRow(
                    suspension_id=asked.suspension_id,
                    execution_id=row.execution.execution_id,
                    thread_id=row.execution.thread_id,
                    principal=row.principal,
                    addressee=asked.addressee,
                    status="pending",
                    digest=asked.digest,
                    created_at=entry.at,
                    expires_at=asked.expires_at,
                    alarm_at=asked.alarms[0].at if asked.alarms else None,
                )
            case ev.SuspensionRevised(question=asked):
                known = self.questions[asked.suspension_id]
                changed = replace(known, digest=asked.digest, expires_at=asked.expires_at)
                self.questions[asked.suspension_id] = changed
            case ev.SuspensionReminded(suspension_id=name, number=number):
                left = row.execution.suspensions[name].question.alarms[number:]
                self.questions[name] = replace(self.questions[name], alarm_at=left[0].at if left else None)
            case ev.SuspensionDecided(suspension_id=name) | ev.SuspensionTimedOut(suspension_id=name):
                status = "decided" if isinstance(entry.event, ev.SuspensionDecided) else "timed_out"
                self.questions[name] = replace(self.questions[name], status=status)
            case _:
                pass

    def header(self, row: Row) -> Header:
        return Header(
            execution_id=row.execution.execution_id,
            thread_id=row.execution.thread_id,
            principal=row.principal,
            status=row.execution.status,
            version=row.execution.version,
            created_at=row.created_at,
            updated_at=row.updated_at,
            owner=row.owner,
            fence=row.fence,
            leased_until=row.until,
        )

    def due(self) -> set[str]:
        now = self.clock.now()
        return {name for name, at in self.waking() if at <= now}

    def waking(self) -> list[tuple[str, float]]:
        """Every moment at which a pending question wants to be looked at."""
        pending = [q for q in self.questions.values() if q.status == "pending"]
        return [(q.suspension_id, at) for q in pending for at in (q.expires_at, q.alarm_at) if at is not None]

    def listed(self) -> list[SuspensionRow]:
        return [q for q in self.questions.values() if q.status == "pending" and q.addressee != "clock"]


class Walk:
    """Random steps on store and model, which are compared after each step. A seed always walks the same way."""

    def __init__(self, seed: int, back_end: BackEnd) -> None:
        self.random, self.clock = random.Random(seed), back_end.clock
        self.model = Model(self.clock)
        self.connections = [back_end.connect() for _ in range(2)]
        self.made = 0
        self.refused = Counter[str]()
        self.written = Counter[str]()

    @property
    def store(self) -> Store:
        """Any of the connections, as processes take turns."""
        return self.random.choice(self.connections)

    def one_of(self, *options: Option) -> Option:
        return self.random.choice(options)

    def some(self, *options: Option) -> list[Option]:
        return [option for option in options if self.random.random() < 0.5]

    def one_row(self) -> Row | None:
        return self.random.choice(list(self.model.rows.values())) if self.model.rows else None

    async def go(self, steps: int) -> None:
        others = (self.claim, self.claim_many, self.release_or_confirm, self.renew, self.time_passes, self.prune)
        for _ in range(steps):
            await self.one_of(self.create, *[self.write] * 6, self.time_passes, self.one_of(*others))()
            await self.compare(self.store)

    # --- writing ---

    async def try_append(self, append: Append) -> None:
        broken = self.model.broken(append)
        expected = None if broken else self.model.append(append)
        try:
            given = await self.store.append(append)
        except errors.PlanwardenError as error:
            assert type(error) in broken, f"it refused with {error!r}, broken: {broken}"
            self.refused[type(error).__name__] += 1
        else:
            assert not broken, f"it stored although {broken}"
            assert given == expected
        self.written.update([] if broken else [type(entry.event).__name__ for entry in append.recorded])

    def appending(self, execution: ExecutionState, events: Sequence[ev.Event], **fields: Any) -> Append | None:
        """The write, or None when the events are not legal after the execution."""
        recorded: list[ev.Recorded] = []
        version, at = execution.version, self.clock.now()
        for event in events:
            try:
                execution = apply(execution, event, at)
            except errors.PlanwardenError:
                return None
            recorded.append(ev.Recorded(sequence=execution.version, at=at, event=event))
        return Append(execution=execution, recorded=recorded, expected_version=version, **fields)

    async def create(self) -> None:
        self.made += 1
        row = self.one_row()
        name = row.execution.execution_id if row is not None and self.random.random() < 0.1 else f"e{self.made}"
        created = [ev.ExecutionCreated(), ev.PlanAccepted(plan=PLAN), ev.StepStarted(step_id="a")]
        key = self.one_of(None, None, *KEYS)
        start = StartRequest(key=key, plan=self.one_of(*PLANS), is_only=self.one_of(True, True, False))
        append = self.appending(
            new_execution(name, self.one_of(*THREADS), self.one_of(*PRINCIPALS)),
            created,
            lease=None,
            acquire=True,
            owner=self.one_of(*OWNERS),
            start=self.one_of(None, start),
        )
        assert append is not None
        await self.try_append(append)

    async def write(self) -> None:
        """A legal write, one time in four with an old version or lease, or by somebody else."""
        for _ in range(10):
            row = self.one_row()
            append = None if row is None else self.any_write(row)
            if append is not None:
                await self.try_append(append)
                return

    def any_write(self, row: Row) -> Append | None:
        kind = self.one_of(*KINDS, *["go on"] * 20 * (row.execution.status == "incomplete"))
        events, guards = self.events(row, kind)
        execution, lease = row.execution, row.lease
        wrong = self.one_of(*[""] * 12, "version", "fence", "acquires", "visits")
        if wrong == "version":
            execution = msgspec.structs.replace(execution, version=execution.version - 1)
        if lease is not None and wrong == "fence":
            lease = dataclasses.replace(lease, fence=lease.fence - 1)
        is_writer = wrong != "visits"
        lease = lease if wrong not in ("acquires", "visits") else None
        acquire, owner = lease is None and is_writer, self.one_of(*OWNERS)
        append = self.appending(execution, events, lease=lease, acquire=acquire, owner=owner, guards=guards)
        is_over = append is not None and append.execution.status != "running"
        return append and replace(append, release=is_writer and is_over)

    def events(self, row: Row, kind: str) -> tuple[list[ev.Event], list[Guard]]:
        expires_at = self.one_of(None, self.clock.now() + 10, self.clock.now() + 40)
        open_now = [found.question for found in row.execution.open_suspensions]
        asked = self.one_of(*open_now) if open_now else None
        name = asked.suspension_id if asked else self.one_of(*self.model.questions, "nobody")
        known = self.model.questions.get(name)
        deadline: Literal["not passed", "passed", "any"] = self.one_of("not passed", "passed", "any")
        digest = self.one_of("digest 1", "digest 2", *([known.digest] * 6 if known else ()))
        guards = [Guard(suspension_id=name, digest=digest, deadline=deadline)]
        match kind:
            case "ask" | "ask the clock":
                self.made += 1
                asked = _question(f"q{self.made}", "review" if kind == "ask" else "wait", expires_at)
                if self.one_of(True, False):
                    moments = (self.clock.now() + 5, self.clock.now() + 20)
                    asked = msgspec.structs.replace(asked, alarms=tuple(Alarm(kind="remind", at=at) for at in moments))
                return [ev.Suspended(question=asked)], []
            case "answer":
                return [decided(name)], guards
            case "time out":
                return [ev.SuspensionTimedOut(suspension_id=name, outcome="reject")], guards
            case "remind":
                return [ev.SuspensionReminded(suspension_id=name, number=self.one_of(1, 2), kind="remind")], guards
            case "revise" if asked is not None:
                changes: dict[str, Any] = {"revision": asked.revision + 1, "digest": "digest 2"}
                changed = msgspec.structs.replace(asked, expires_at=expires_at, **changes)
                return [ev.SuspensionRevised(question=changed, reason="edited")], guards
            case _:
                # What needs no question may depend on any of them, also on one that is answered.
                any_name = self.one_of("nobody", *self.model.questions)
                other = self.model.questions.get(any_name)
                depends = Guard(suspension_id=any_name, digest=other.digest if other else digest, deadline="any")
                return [PLAIN.get(kind, PLAIN["cancel"])], [depends] if self.random.random() < 0.3 else []

    # --- leases, time, retention ---

    async def claim(self) -> None:
        name, owner = self.one_of(*self.model.rows, "nobody"), self.one_of(*OWNERS)
        row, expected = self.model.rows.get(name), None
        if row is not None and row.execution.status == "running" and not row.is_owned(self.clock.now()):
            row.owner, row.fence, row.until = owner, row.fence + 1, self.clock.now() + LEASE_S
            expected = row.lease
        assert await self.store.claim(name, owner) == expected

    async def claim_many(self) -> None:
        skip, limit, owner = self.some(*self.model.rows, "nobody"), self.one_of(1, 2, 3), self.one_of(*OWNERS)
        rows = ((name, row) for name, row in self.model.rows.items() if name not in skip)
        free = [row for _, row in rows if row.execution.status == "running" and row.owner is None]
        for row in free[:limit]:
            row.owner, row.fence, row.until = owner, row.fence + 1, self.clock.now() + LEASE_S
        taken = await self.store.claim_many(owner, limit, skip=skip)
        assert list(taken) == [row.lease for row in free[:limit]]

    async def release_or_confirm(self) -> None:
        row, is_release, older = self.one_row(), self.one_of(True, False), self.one_of(0, 0, 1)
        if row is None or row.lease is None:
            return
        lease = dataclasses.replace(row.lease, fence=row.fence - older)
        if not older:
            row.owner, row.until = (None, 0.0) if is_release else (row.owner, self.clock.now() + LEASE_S)
        with pytest.raises(errors.LeaseLost) if older and not is_release else nullcontext():
            await (self.store.release(lease) if is_release else self.store.confirm(lease))

    async def renew(self) -> None:
        names, owner = self.some(*self.model.rows, "nobody"), self.one_of(*OWNERS)
        for name, row in self.model.rows.items():
            if name in names and row.owner == owner and row.execution.status == "running":
                row.until = self.clock.now() + LEASE_S
        await self.store.renew(owner, names)

    async def time_passes(self) -> None:
        self.clock.advance(self.one_of(1.0, 5.0, 10.0, LEASE_S))
        # A lease that ran out may still have a living owner.
        await self.store.expire_dead()

    async def prune(self) -> None:
        before = self.clock.now() - self.one_of(0.0, 10.0)
        old = [n for n, r in self.model.rows.items() if r.execution.is_finished and r.updated_at < before]
        for name in old:
            del self.model.rows[name]
        questions = self.model.questions.items()
        self.model.questions = {name: asked for name, asked in questions if asked.execution_id in self.model.rows}
        self.model.started = {key: name for key, name in self.model.started.items() if name in self.model.rows}
        assert await self.store.prune(before) == len(old)

    # --- reading ---

    async def compare(self, store: Store) -> None:
        model, now = self.model, self.clock.now()
        rows = list(model.rows.values())
        assert list(await store.executions(None, 1000)) == [model.header(row) for row in rows[::-1]]
        listed = sorted(enumerate(rows), key=lambda entry: (entry[1].updated_at, entry[0]), reverse=True)
        page = await store.list_executions(ExecutionFilter(), limit=1000)
        found = [(row.execution_id, row.status, row.version) for row in page.rows]
        assert found == [(row.execution.execution_id, row.execution.status, row.execution.version) for _, row in listed]
        for row in rows[-3:]:
            await self.compare_row(store, row)
        for name, asked in [*model.questions.items()][-3:]:
            assert await store.find_suspension(name) == asked
        for principal in PRINCIPALS:
            theirs = [model.header(row) for row in rows[::-1] if row.principal == principal]
            assert list(await store.executions(principal, 2)) == theirs[:2]
        orphaned = [r.execution.execution_id for r in rows if r.execution.status == "running" and not r.is_owned(now)]
        assert list(await store.orphans(1000)) == orphaned
        assert list(await store.orphans(2, after=orphaned[0] if orphaned else "")) == orphaned[1:3]
        soon = [r.execution.execution_id for r in rows if r.execution.status == "running" and not r.is_owned(now + 5)]
        assert list(await store.orphans(1000, ahead_s=5.0)) == soon
        assert {found.suspension_id for found in await store.due(1000)} == model.due()
        assert list((await store.suspensions(limit=1000)).rows) == model.listed()
        for principal, key in product(PRINCIPALS, KEYS):
            started = await store.find_start(principal, key)
            assert (started and started.execution_id) == model.started.get((principal, key))

    async def compare_row(self, store: Store, row: Row) -> None:
        execution, header = row.execution, self.model.header(row)
        name, thread, tail = execution.execution_id, execution.thread_id, len(row.log) - 1
        assert await store.header(name) == header and await store.headers(["nobody", name]) == (header,)
        log = await store.log(name)
        assert log is not None and (log.header, log.recorded) == (header, tuple(row.log))
        assert fold(new_execution(name, thread, row.principal), log.recorded) == execution
        assert await store.read(name) == tuple(row.log) and await store.read(name, tail) == tuple(row.log[tail:])
        of_thread = [self.model.header(other) for other in self.model.rows.values()]
        assert list(await store.thread(thread)) == [found for found in of_thread if found.thread_id == thread]


def _question(name: str, kind: ev.SuspensionKind, expires_at: float | None) -> ev.Question:
    return ev.Question(suspension_id=name, kind=kind, message="?", digest="digest 1", expires_at=expires_at)


LAWS = {"VersionConflict", "LeaseLost", "GuardFailed", "ThreadBusy", "KeyUsed", "PlanUnfinished"}
EVENTS = {"ExecutionExhausted", "ExecutionStarted", "SuspensionDecided", "SuspensionTimedOut", "SuspensionReminded"}


SEEDS = first_only(
    *(("sqlite", 0, 120), ("postgres", 0, 60)),
    *(("sqlite", seed, 400) for seed in range(10)),
    *(("postgres", seed, 400) for seed in range(6)),
    keep=2,
)


@requirement("store:model", "store:version", "store:thread-busy", "store:guard", "store:fence", "store:takeover")
@requirement("store:orphans", "store:starts", "store:deadlines", "store:alarms", "store:paging", "store:prune")
@requirement("state:fold")
@pytest.mark.parametrize(("kind", "seed", "steps"), SEEDS)
async def test_a_store_agrees_with_a_model_of_dictionaries(tmp_path: Path, kind: str, seed: int, steps: int) -> None:
    back_end = BACK_ENDS[kind](tmp_path)
    walk = Walk(seed, back_end)
    await walk.go(steps)
    # The walk came by nearly all laws and kinds of change.
    assert len(walk.refused.keys() & LAWS) >= 4 and len(walk.written.keys() & EVENTS) >= 4
    await back_end.close()
