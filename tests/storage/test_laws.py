"""The laws of the `Store` port, over every store there is."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from planwarden.agent.common.artifact import make_artifact
from planwarden.agent.common.errors import GuardFailed, LeaseLost, PlanwardenError, StoreError, VersionConflict
from planwarden.agent.core.execution.audit import TASK_KINDS, AuditEntry, Kind
from planwarden.agent.ports.store import Append, FoundId, Lease, StartRequest, Store
from planwarden.storage.schedules import ScheduleStore
from tests.kit import ManualClock, ev, requirement
from tests.storage.suite import LEASE_S, PLAN, BackEnd, Scribe, decided, guard
from tests.storage.test_budgets_and_keys import MADE, USE, begin, intend, make_grant, share
from tests.storage.test_starts import ADDED, ENDED, KEYED, PAUSED, UNKEYED, create, schedule


async def everything(store: Store, execution_id: str) -> tuple[object, ...]:
    """All that a store says about one execution, to compare before and after."""
    page = await store.suspensions()
    return await store.header(execution_id), await store.read(execution_id), page.rows, await store.due(100)


@requirement("store:round-trip")
async def test_events_come_back_in_order_and_equal_to_what_was_written(store: Store) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1", arguments={"city": "Łódź", "nested": [1, None, {"a": 1.5}]}, expires_at=2e9)
    await scribe.write(decided("s1"), guards=[guard("s1")])
    await scribe.write(ev.ToolFailed(call_id="a:1", code="tool_error", message="\ud800 was not there"))
    assert await store.read("e1") == tuple(scribe.written)
    assert [entry.sequence for entry in scribe.written] == list(range(1, len(scribe.written) + 1))


@requirement("codec:readable")
async def test_what_could_not_be_read_back_is_not_written(store: Store) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    before = await everything(store, "e1")
    wrong: list[ev.Event] = [
        ev.ToolCallIntended(call_id="a:1", arguments={}, effect=cast("Any", "raed")),
        ev.ToolReturned(call_id=cast("Any", 5), value="x"),
        ev.ToolReturned(call_id="a:1", value=float("nan")),
    ]
    for event in wrong:
        append = scribe.append(ev.ToolCallIntended(call_id="a:1", arguments={}))
        with pytest.raises(ValueError, match=r"raed|got `int`|Out of range"):
            await store.append(replace(append, recorded=(replace(append.recorded[0], event=event),)))
    assert await everything(store, "e1") == before


async def test_ids_are_found_by_their_beginning_whatever_they_are(store: Store) -> None:
    scribes = [Scribe.on(store, f"ab{number}") for number in range(3)]
    for number, scribe in enumerate(scribes):
        await scribe.start()
        await scribe.suspend(f"a%{number}")
    thread = scribes[-1].execution.thread_id
    found = await store.find_ids("ab", 2)
    assert [(entry.kind, entry.id) for entry in found] == [("execution", "ab0"), ("execution", "ab1")]
    assert await store.find_ids("a%2", 2) == (FoundId("suspension", "a%2", thread),)
    assert await store.find_ids(thread, 2) == (FoundId("thread", thread, thread),)
    assert {entry.kind for entry in await store.find_ids("", 9)} == {"execution", "suspension", "thread"}
    assert await store.find_ids("a_", 2) == await store.find_ids("B", 2) == ()


@requirement("store:takeover")
async def test_a_lease_says_how_long_ago_its_last_process_lived(store: Store, clock: ManualClock) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    clock.advance(2)
    await store.renew("p1", ["e1"])
    clock.advance(LEASE_S + 1)
    taken = await store.claim("e1", "p2")
    assert taken is not None and taken.silent_s == pytest.approx(LEASE_S + 1) and taken.is_from_silent
    await store.release(taken)
    [again] = await store.claim_many("p3", 10)
    assert again.silent_s is None and not again.is_from_silent


@requirement("artifact:atomic", "store:atomic", "store:prune")
async def test_an_artifact_is_stored_with_its_transaction_found_in_its_thread_and_pruned_with_its_execution(
    store: Store, clock: ManualClock
) -> None:
    scribe = Scribe.on(store, "e1", thread_id="t1")
    await scribe.start()
    text, image, refused = make_artifact(b'["x"]'), make_artifact(bytes(range(256)), "image/png"), make_artifact(b"[1]")
    append = replace(scribe.append(ev.ToolCallIntended(call_id="a:1", arguments={})), artifacts=(text, image, text))
    scribe.lease, scribe.execution = await store.append(append), append.execution
    await Scribe.on(store, "e2", thread_id="t2").start()
    wrong = replace(scribe.append(ev.CancelRequested()), artifacts=(refused,))
    for change in ({"expected_version": 3}, {"lease": Lease("e1", "p1", 99)}, {"guards": [guard("nothing")]}):
        with pytest.raises((VersionConflict, LeaseLost, GuardFailed)):
            await store.append(replace(wrong, **change))
    for artifact in (text, image):
        assert await store.artifact("t1", artifact.artifact_id) == artifact
        assert await store.artifact("t2", artifact.artifact_id) is None
    assert await store.artifact("t1", refused.artifact_id) is None is await store.artifact("t1", "nope")
    await scribe.write(ev.ToolReturned(call_id="a:1"), ev.StepCompleted(step_id="a"), ev.ExecutionCompleted())
    clock.advance(10)
    assert await store.prune(clock.now()) == 1
    assert await store.artifact("t1", text.artifact_id) is None


@requirement("store:prune", "store:fence")
async def test_a_lease_of_a_pruned_execution_writes_to_no_other_in_its_place(store: Store, clock: ManualClock) -> None:
    gone, new = Scribe.on(store, "gone"), Scribe.on(store, "new")
    await gone.start()
    late, lease = gone.append(ev.CancelRequested()), gone.lease
    await gone.finish()
    clock.advance(100)
    assert await store.prune(clock.now()) == 1
    await new.start()
    assert new.lease is not None and lease is not None and new.lease.fence == lease.fence
    for append in (late, replace(late, release=True), replace(late, lease=None, acquire=True)):
        with pytest.raises((VersionConflict, LeaseLost)):
            await store.append(append)
    assert await store.header("gone") is None
    assert await store.read("new") == tuple(new.written)


Attempt = Callable[[Store, int], Awaitable[object]]
Stored = Callable[[Store], Awaitable[int]]
Race = Callable[[Store], Awaitable[tuple[Attempt, Stored]]]
"""Returns what the racers do, and how many of them are stored."""


async def race_to_answer(store: Store) -> tuple[Attempt, Stored]:
    asking = Scribe.on(store, "e1")
    await asking.suspend("s1")

    async def attempt(store: Store, number: int) -> None:
        scribe = Scribe(store, asking.execution, owner=f"p{number}")
        await scribe.write(decided("s1", approved=number % 3 == 0), guards=[guard("s1")])

    async def stored(store: Store) -> int:
        return len(await store.read("e1")) - asking.execution.version

    return attempt, stored


async def count_executions(store: Store) -> int:
    return len(await store.executions(None, 100))


def race_to_start(start: StartRequest) -> Race:
    async def prepare(store: Store) -> tuple[Attempt, Stored]:
        async def attempt(store: Store, number: int) -> None:
            await create(store, f"e{number}", start)

        return attempt, count_executions

    return prepare


async def race_for_a_thread(store: Store) -> tuple[Attempt, Stored]:
    async def attempt(store: Store, number: int) -> None:
        await Scribe.on(store, f"e{number}", thread_id="t").start()

    return attempt, count_executions


async def race_to_go_on(store: Store) -> tuple[Attempt, Stored]:
    """From an execution that has ended, with ones that end at once."""
    first = await create(store, "e1", StartRequest())
    await first.write(ENDED)
    request = StartRequest(after="e1", after_version=first.execution.version)

    async def attempt(store: Store, number: int) -> None:
        scribe = Scribe.on(store, f"n{number}", thread_id=first.execution.thread_id)
        append = scribe.append(ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN), ENDED)
        await store.append(replace(append, start=request))

    async def stored(store: Store) -> int:
        return len(await store.thread(first.execution.thread_id)) - 1

    return attempt, stored


async def race_for_a_grant(store: Store) -> tuple[Attempt, Stored]:
    await store.add_grant(make_grant(store, uses=5), MADE)

    async def attempt(store: Store, number: int) -> None:
        scribe = Scribe.on(store, f"e{number}")
        await scribe.start()
        await scribe.write(USE)

    async def stored(store: Store) -> int:
        [grant] = await store.grants(only_open=False)
        return grant.used

    return attempt, stored


async def race_for_a_budget(store: Store) -> tuple[Attempt, Stored]:
    """Of calls two of which share a business key."""
    stored_calls = list[int]()

    async def attempt(store: Store, number: int) -> None:
        scribe = await begin(store, f"e{number}")
        once = ev.OnceKey(key=f"key {number // 2}", values={}, keep_s=3600)
        await scribe.write(intend(share(100.0, limit=500.0), once=once))
        stored_calls.append(number // 2)

    async def stored(store: Store) -> int:
        assert len(set(stored_calls)) == len(stored_calls)
        return len(await store.find_once([f"key {number}" for number in range(8)]))

    return attempt, stored


async def race_to_change_a_schedule(store: Store) -> tuple[Attempt, Stored]:
    await ScheduleStore(store).add(schedule(), ADDED)

    async def attempt(store: Store, number: int) -> None:
        if not await ScheduleStore(store).change(replace(schedule(), starting_at=number), PAUSED):
            raise VersionConflict

    async def stored(store: Store) -> int:
        return [row.entry.kind for row in await store.audit_rows()].count("schedule_paused")

    return attempt, stored


RACES: dict[str, tuple[Race, int]] = {
    "answers": (race_to_answer, 1),
    "starts with a key": (race_to_start(KEYED), 1),
    "starts of one plan": (race_to_start(UNKEYED), 1),
    "starts in one thread": (race_for_a_thread, 1),
    "starts that go on": (race_to_go_on, 1),
    "uses of a grant": (race_for_a_grant, 5),
    "shares of a budget": (race_for_a_budget, 5),
    "changes of a schedule": (race_to_change_a_schedule, 1),
}
"""Each with the number of those that win."""


@requirement("store:one-winner", "store:atomic", "store:starts", "store:grants", "store:schedules")
@requirement("rules:once", "rules:budget")
@pytest.mark.parametrize("name", RACES)
async def test_of_racing_writers_through_two_connections_no_more_win_than_may(back_end: BackEnd, name: str) -> None:
    prepare, winners = RACES[name]
    connections = back_end.connect(), back_end.connect()
    attempt, stored = await prepare(connections[0])
    won = list[int]()

    async def compete(number: int) -> None:
        with suppress(PlanwardenError):
            await attempt(connections[number % 2], number)
            won.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(compete, number)
    assert len(won) == winners == await stored(connections[1])


@requirement("store:group-commit", "store:atomic")
async def test_a_write_that_fails_harms_none_of_those_that_are_committed_with_it(store: Store) -> None:
    bad, scribes = Scribe.on(store, "bad"), [Scribe.on(store, f"e{number}") for number in range(4)]
    await bad.start()
    append = bad.append(ev.ToolCallIntended(call_id="a:1", arguments={}))

    async def fail(wrong: Append) -> None:
        with pytest.raises((VersionConflict, GuardFailed, ValueError, StoreError)):
            await store.append(wrong)

    unwritable = replace(append.recorded[0], event=ev.ToolReturned(call_id="a:1", value=float("nan")))
    async with anyio.create_task_group() as tasks:
        for scribe in scribes:
            tasks.start_soon(scribe.start)
        tasks.start_soon(fail, replace(append, expected_version=append.expected_version - 1))
        tasks.start_soon(fail, replace(append, recorded=(unwritable,)))
        tasks.start_soon(fail, replace(append, guards=[guard("nothing")]))
        # A database refuses this text itself, which undoes the whole transaction.
        tasks.start_soon(fail, Scribe.on(store, "lost", thread_id="\udcff").append(ev.ExecutionCreated()))
    for scribe in (bad, *scribes):
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)


@requirement("store:cancelled-caller", "store:atomic")
async def test_a_cancelled_caller_locks_nobody_out_and_leaves_all_or_nothing(back_end: BackEnd) -> None:
    one, two = back_end.connect(), back_end.connect()
    for number in range(5):
        scribe = Scribe.on(one, f"e{number}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scribe.start)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await Scribe.on(two, f"other {number}").finish()
        assert len(await two.read(f"e{number}")) in (0, 3)


@requirement("store:tasks")
async def test_what_is_noted_of_a_task_is_found_among_all_other_rows(store: Store) -> None:
    kinds: tuple[Kind, ...] = ("asked", "form_closed", "decided", "link_answered", "task_ended", "policy")
    for execution_id in ("e1", "e2", None):
        await store.audit([AuditEntry(kind=kind, facts={"of": kind}, execution_id=execution_id) for kind in kinds])
    rows = await store.task_rows("e2")
    assert rows == tuple(row for row in await store.audit_rows(execution_id="e2") if row.entry.kind in TASK_KINDS)
    assert {row.entry.kind for row in rows} == TASK_KINDS
    assert await store.task_rows("e2", limit=1) == rows[:1]
    assert await store.task_rows("e2", after=rows[0].sequence) == rows[1:]
    assert await store.task_rows("e3") == ()


@requirement("store:round-trip")
@pytest.mark.parametrize("wrong", ["nobody", "e1\0", "\ud800"])
async def test_what_is_looked_up_by_an_id_that_no_row_has_does_not_exist(store: Store, wrong: str) -> None:
    assert await store.header(wrong) is None and await store.log(wrong) is None
    assert await store.read(wrong) == () == await store.headers(["nobody"])
    assert await store.thread(wrong) == ()
    assert await store.find_suspension(wrong) is None
    assert await store.find_start("ann", wrong) is None
    assert await store.find_ids(wrong, 5) == ()
    assert await store.artifact(wrong, wrong) is None
    assert await store.claim("nobody", "p1") is None
    assert (await store.suspensions(principal=wrong)).rows == ()
    assert (await store.suspensions(thread_id=wrong)).total == 0


@requirement("store:audit")
async def test_the_audit_of_an_execution_holds_no_rows_of_ids_that_begin_alike(store: Store) -> None:
    ids = ("e", "12345678", "123456789", "12345678a")
    await store.audit([AuditEntry(kind="refused", facts={"of": name}, execution_id=name) for name in (*ids, *ids)])
    for name in ids:
        rows = await store.audit_rows(execution_id=name)
        assert [row.entry.facts["of"] for row in rows] == [name, name] and rows[0].sequence < rows[1].sequence
