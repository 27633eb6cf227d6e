"""The laws of the `Store` port, over every store there is."""

from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from planwarden.agent.common.artifact import Artifact, make_artifact
from planwarden.agent.common.errors import (
    ExecutionConflict,
    GuardFailed,
    InvalidArguments,
    LeaseLost,
    ThreadBusy,
    VersionConflict,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import TASK_KINDS, AuditEntry, Kind
from planwarden.agent.core.fold import fold
from planwarden.agent.core.question import Addressee, Alarm
from planwarden.agent.core.state import new_execution
from planwarden.agent.ports.store import Append, FoundId, Guard, Lease, Store, SuspensionRow
from planwarden.storage.clock import ManualClock
from tests.requirements import requirement
from tests.storage.suite import LEASE_S, BackEnd, Scribe, decided, guard, mainly, question

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("back_end", mainly("memory", "sqlite", "sqlite, slow", "postgres"), indirect=True),
]


async def everything(store: Store, execution_id: str) -> tuple[object, ...]:
    """All that a store says about one execution, to compare before and after."""
    page = await store.suspensions()
    return await store.header(execution_id), await store.read(execution_id), page.rows, await store.due(100)


# --- logs ---


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


@requirement("store:round-trip")
async def test_a_tail_is_exactly_the_events_after_the_given_one(store: Store) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    await scribe.suspend("s1")
    for after in range(len(scribe.written) + 2):
        assert await store.read("e1", after) == tuple(scribe.written[after:])


@requirement("store:round-trip")
async def test_an_unknown_execution_thread_or_suspension_is_empty_not_an_error(store: Store) -> None:
    assert await store.read("nobody") == ()
    assert await store.header("nobody") is None
    assert await store.thread("nobody") == ()
    assert await store.find_suspension("nobody") is None
    assert await store.claim("nobody", "p1") is None


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


@requirement("store:round-trip")
async def test_logs_of_different_executions_do_not_mix(store: Store) -> None:
    scribes = [Scribe.on(store, f"e{number}") for number in range(3)]
    for scribe in scribes:
        await scribe.start()
    for scribe in reversed(scribes):
        await scribe.suspend(f"question of {scribe.execution.execution_id}")
    for scribe in scribes:
        assert await store.read(scribe.execution.execution_id) == tuple(scribe.written)


@requirement("state:fold")
async def test_the_header_and_the_fold_of_the_log_agree_with_what_the_writer_holds(store: Store) -> None:
    scribe = Scribe.on(store, "e1", thread_id="t1")
    for write in (scribe.start, lambda: scribe.suspend("s1")):
        execution = await write()
        header = await store.header("e1")
        assert header is not None
        assert (header.status, header.version) == (execution.status, execution.version)
        assert (header.thread_id, header.principal) == ("t1", "ann")
        assert fold(new_execution("e1", "t1", "ann"), await store.read("e1")) == execution
        log = await store.log("e1")
        assert log is not None and (log.header, log.recorded) == (header, tuple(scribe.written))
        assert await store.headers(["nobody", "e1"]) == (header,)
    assert await store.headers([]) == ()
    assert await store.log("nobody") is None


@requirement("store:round-trip")
async def test_headers_list_a_thread_oldest_first_and_a_principals_executions_newest_first(store: Store) -> None:
    for execution_id, thread_id, principal in (("e1", "t1", "ann"), ("e2", "t2", "bob"), ("e3", "t1", "ann")):
        await Scribe.on(store, execution_id, thread_id=thread_id, principal=principal).finish()
    assert [h.execution_id for h in await store.thread("t1")] == ["e1", "e3"]
    assert [h.execution_id for h in await store.executions("ann", 10)] == ["e3", "e1"]
    assert [h.execution_id for h in await store.executions(None, 2)] == ["e3", "e2"]


# --- conditions ---


@requirement("store:version", "store:atomic")
async def test_a_writer_with_an_old_version_changes_nothing(store: Store) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    stale = Scribe(store, scribe.execution, lease=scribe.lease)
    await scribe.write(ev.ToolCallIntended(call_id="a:1", arguments={}))
    before = await everything(store, "e1")
    with pytest.raises(VersionConflict):
        await stale.suspend("s1")
    assert await everything(store, "e1") == before


@requirement("store:version", "store:atomic")
async def test_an_execution_is_created_once(store: Store) -> None:
    first = Scribe.on(store, "e1")
    await first.start()
    before = await everything(store, "e1")
    with pytest.raises(VersionConflict):
        await Scribe.on(store, "e1", thread_id="another").start()
    with pytest.raises(VersionConflict):
        await Scribe(store, msgspec.structs.replace(first.execution, execution_id="e2", thread_id="t2")).write(
            ev.CancelRequested()
        )
    assert await everything(store, "e1") == before
    assert await store.header("e2") is None


@requirement("store:thread-busy", "store:atomic")
async def test_a_thread_takes_one_unfinished_execution_at_a_time(store: Store) -> None:
    first = Scribe.on(store, "e1", thread_id="t")
    await first.suspend("s1")
    with pytest.raises(ThreadBusy):
        await Scribe.on(store, "e2", thread_id="t").start()
    assert await store.header("e2") is None and await store.read("e2") == ()
    await first.write(decided("s1"))
    await first.write(ev.ExecutionFailed(code="x", message="y"))
    await Scribe.on(store, "e2", thread_id="t").start()
    assert [h.execution_id for h in await store.thread("t")] == ["e1", "e2"]


@requirement("store:thread-busy", "store:atomic")
async def test_an_incomplete_execution_goes_on_only_while_its_thread_is_free(store: Store) -> None:
    first, second = (Scribe.on(store, name, thread_id="t") for name in ("e1", "e2"))
    await first.start()
    await first.write(ev.ExecutionExhausted(budget="toolCalls"))
    await second.suspend("s1")
    before = await everything(store, "e1")
    with pytest.raises(ThreadBusy):
        await first.write(ev.ExecutionStarted())
    assert await everything(store, "e1") == before
    await second.write(ev.CancelRequested(), ev.ExecutionCancelled())
    await first.write(ev.ExecutionStarted())
    assert first.lease is not None and first.execution.status == "running"
    with pytest.raises(ThreadBusy):
        await Scribe.on(store, "e3", thread_id="t").start()


@requirement("store:guard", "store:atomic")
@pytest.mark.parametrize(
    ("digest", "deadline", "at", "stored"),
    [
        ("digest of s1", "not passed", 99.0, True),
        ("digest of s1", "not passed", 100.0, False),
        ("digest of s1", "passed", 99.0, False),
        ("digest of s1", "passed", 100.0, True),
        ("digest of s1", "any", 100.0, True),
        ("another digest", "not passed", 0.0, False),
        ("another digest", "any", 0.0, False),
    ],
)
async def test_an_answer_is_stored_only_in_its_revision_and_its_time(
    store: Store, clock: ManualClock, digest: str, deadline: str, at: float, stored: bool
) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1", expires_at=clock.now() + 100)
    clock.advance(at)
    condition = Guard(suspension_id="s1", digest=digest)
    if deadline != "not passed":
        condition = replace(condition, deadline="passed" if deadline == "passed" else "any")
    before = await everything(store, "e1")
    if stored:
        await scribe.write(decided("s1"), guards=[condition])
        row = await store.find_suspension("s1")
        assert row is not None and row.status == "decided"
    else:
        with pytest.raises(GuardFailed):
            await scribe.write(decided("s1"), guards=[condition])
        assert await everything(store, "e1") == before


@requirement("store:guard")
async def test_a_question_without_a_deadline_never_passes_one(store: Store, clock: ManualClock) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1")
    clock.advance(1e9)
    with pytest.raises(GuardFailed):
        await scribe.write(decided("s1"), guards=[replace(guard("s1"), deadline="passed")])
    await scribe.write(decided("s1"), guards=[guard("s1")])


@requirement("store:guard")
async def test_a_question_that_is_answered_unknown_or_withdrawn_cannot_be_answered(store: Store) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1")
    await scribe.write(decided("s1"), guards=[guard("s1")])
    for name in ("s1", "never asked"):
        with pytest.raises(GuardFailed):
            await scribe.write(ev.CancelRequested(), guards=[guard(name)])
    other = Scribe.on(store, "e2")
    await other.suspend("s2")
    await other.write(ev.CancelRequested(), ev.ExecutionCancelled())
    row = await store.find_suspension("s2")
    assert row is not None and row.status == "withdrawn"
    assert (await store.suspensions()).rows == ()


@requirement("store:guard")
async def test_a_revision_replaces_the_digest_that_an_answer_must_carry(store: Store) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1")
    edited = question("s1", digest="digest 2", revision=2, expires_at=5e9)
    await scribe.write(ev.SuspensionRevised(question=edited, reason="edited"), guards=[guard("s1")])
    with pytest.raises(GuardFailed):
        await scribe.write(decided("s1"), guards=[guard("s1")])
    row = await store.find_suspension("s1")
    assert row is not None and (row.digest, row.expires_at, row.status) == ("digest 2", 5e9, "pending")
    await scribe.write(decided("s1"), guards=[guard("s1", digest="digest 2")])


# --- leases ---


@requirement("store:fence", "store:takeover", "store:atomic")
async def test_an_expired_lease_is_taken_over_and_its_old_owner_is_shut_out(
    back_end: BackEnd, clock: ManualClock
) -> None:
    old, new = back_end.connect(), back_end.connect()
    scribe = Scribe.on(old, "e1")
    await scribe.start()
    assert await new.claim("e1", "p2") is None
    clock.advance(LEASE_S + 1)
    taken = await new.claim("e1", "p2")
    assert taken is not None and scribe.lease is not None and taken.fence > scribe.lease.fence
    before = await everything(new, "e1")
    with pytest.raises(LeaseLost):
        await scribe.write(ev.ToolCallIntended(call_id="a:1", arguments={}))
    assert await everything(new, "e1") == before
    await Scribe(new, scribe.execution, owner="p2", lease=taken).finish()
    with pytest.raises(LeaseLost):
        await scribe.write(ev.CancelRequested())


@requirement("store:fence")
async def test_the_same_owner_is_shut_out_by_its_own_newer_lease(store: Store, clock: ManualClock) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    clock.advance(LEASE_S + 1)
    assert await store.claim("e1", "p1") is not None
    with pytest.raises(LeaseLost):
        await scribe.write(ev.CancelRequested())


@requirement("store:takeover")
async def test_renewing_keeps_the_named_leases_of_an_owner_and_only_those(store: Store, clock: ManualClock) -> None:
    mine, also_mine = Scribe.on(store, "e1"), Scribe.on(store, "e2")
    theirs, unknown = Scribe.on(store, "e3", owner="p2"), Scribe.on(store, "e4")
    for scribe in (mine, also_mine, theirs, unknown):
        await scribe.start()
    clock.advance(LEASE_S - 1)
    await store.renew("p1", ["e1", "e2", "e3", "e9"])
    clock.advance(2)
    assert await store.orphans(10) == ("e3", "e4")
    assert await store.claim("e1", "p3") is None
    assert await store.claim("e3", "p3") is not None
    clock.advance(LEASE_S)
    assert set(await store.orphans(10)) == {"e1", "e2", "e3", "e4"}


@requirement("store:takeover")
async def test_leases_that_end_soon_are_listed_ahead(store: Store, clock: ManualClock) -> None:
    for execution_id, passed_s in (("e1", 5.0), ("e2", 0.0)):
        await Scribe.on(store, execution_id).start()
        clock.advance(passed_s)
    assert await store.orphans(10, ahead_s=LEASE_S - 5) == ("e1",)
    assert await store.orphans(10, ahead_s=LEASE_S) == ("e1", "e2")
    assert await store.orphans(1, ahead_s=LEASE_S) == ("e1",) and await store.orphans(10) == ()


@requirement("store:takeover")
async def test_every_write_of_the_owner_extends_its_lease(store: Store, clock: ManualClock) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    clock.advance(LEASE_S - 1)
    await scribe.write(ev.ToolCallIntended(call_id="a:1", arguments={}))
    clock.advance(LEASE_S - 1)
    assert await store.orphans(10) == ()


@requirement("store:takeover")
async def test_a_released_execution_is_free_at_once_and_a_suspended_one_has_no_owner(store: Store) -> None:
    running, suspended = Scribe.on(store, "e1"), Scribe.on(store, "e2")
    await running.start()
    await suspended.suspend("s1")
    assert suspended.lease is None and await store.claim("e2", "p2") is None
    assert running.lease is not None
    await store.release(Lease("e1", "p1", running.lease.fence - 1))
    assert await store.claim("e1", "p2") is None
    await store.release(running.lease)
    assert await store.orphans(10) == ("e1",)
    assert await store.claim("e1", "p2") is not None
    await suspended.write(decided("s1"), guards=[guard("s1")])
    assert suspended.lease is not None and await store.claim("e2", "p2") is None


@requirement("store:takeover")
async def test_a_lease_says_how_long_ago_the_process_lived_that_it_was_taken_from(
    store: Store, clock: ManualClock
) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    clock.advance(2)
    await store.renew("p1", ["e1"])
    clock.advance(LEASE_S + 1)
    taken = await store.claim("e1", "p2")
    assert taken is not None and taken.left_s == pytest.approx(LEASE_S + 1) and taken.is_from_silent
    await store.release(taken)
    [again] = await store.claim_many("p3", 10)
    assert again.left_s is None and not again.is_from_silent


@requirement("store:takeover")
async def test_a_finished_execution_is_never_claimed(store: Store, clock: ManualClock) -> None:
    await Scribe.on(store, "e1").finish()
    clock.advance(1e6)
    assert await store.claim("e1", "p2") is None
    assert await store.orphans(10) == ()


@requirement("store:fence")
async def test_an_answer_takes_the_lease_with_it_only_when_nobody_has_it(store: Store, clock: ManualClock) -> None:
    owner = Scribe.on(store, "e1")
    await owner.start()
    other = Scribe(store, owner.execution, owner="p2")
    with pytest.raises(LeaseLost):
        await other.write(ev.CancelRequested())
    clock.advance(LEASE_S + 1)
    with pytest.raises(LeaseLost):
        await other.write(ev.CancelRequested())
    assert owner.lease is not None
    await store.release(owner.lease)
    await other.write(ev.CancelRequested())
    assert other.lease is not None and owner.lease is not None and other.lease.fence > owner.lease.fence
    with pytest.raises(LeaseLost):
        await owner.write(ev.CancelRequested())


@requirement("store:fence")
async def test_an_answer_to_an_execution_owned_elsewhere_leaves_the_lease_where_it_is(store: Store) -> None:
    owner = Scribe.on(store, "e1")
    await owner.start()
    visitor = Scribe(store, owner.execution, owner="p2")
    append = replace(visitor.append(ev.CancelRequested()), acquire=False, release=False)
    assert await store.append(append) is None
    header = await store.header("e1")
    assert header is not None and owner.lease is not None
    assert (header.owner, header.fence, header.version) == ("p1", owner.lease.fence, append.execution.version)
    with pytest.raises(VersionConflict):
        await owner.write(ev.ToolCallIntended(call_id="a:1", arguments={}))
    owner.execution = append.execution
    await owner.write(ev.ExecutionCancelled())


@requirement("store:orphans")
async def test_orphans_are_the_running_executions_that_nobody_valid_owns(store: Store, clock: ManualClock) -> None:
    for number in range(4):
        await Scribe.on(store, f"e{number}").start()
    await Scribe.on(store, "suspended").suspend("s1")
    await Scribe.on(store, "finished").finish()
    assert await store.orphans(10) == ()
    clock.advance(LEASE_S)
    assert await store.orphans(10) == ("e0", "e1", "e2", "e3")
    assert await store.orphans(2) == ("e0", "e1")
    assert await store.orphans(2, after="e1") == await store.orphans(9, after="e1") == ("e2", "e3")
    assert await store.orphans(2, after="e3") == () and await store.orphans(1, after="unknown") == ("e0",)


@requirement("store:orphans")
async def test_what_nobody_owns_is_taken_oldest_first_and_only_once(store: Store, clock: ManualClock) -> None:
    for number in range(5):
        scribe = Scribe.on(store, f"e{number}")
        await scribe.start()
        if number != 1:
            assert scribe.lease is not None
            await store.release(scribe.lease)
    await Scribe.on(store, "suspended").suspend("s1")
    first = await store.claim_many("p2", 2, skip=["e2"])
    assert [(lease.execution_id, lease.owner) for lease in first] == [("e0", "p2"), ("e3", "p2")]
    await store.confirm(first[0])
    assert [lease.execution_id for lease in await store.claim_many("p3", 10)] == ["e2", "e4"]
    # A lease that ran out may still have a living owner.
    clock.advance(LEASE_S)
    await store.expire_dead()
    assert await store.claim_many("p2", 10) == ()


# --- questions ---


@requirement("store:paging")
async def test_open_questions_page_oldest_first_without_gaps_or_repetitions(store: Store) -> None:
    asked = [f"s{number}" for number in range(7)]
    for name in asked:
        await Scribe.on(store, f"execution of {name}").suspend(name)
    seen: list[str] = []
    cursor, pages = None, 0
    while True:
        page = await store.suspensions(limit=3, cursor=cursor)
        assert page.total == 7
        seen.extend(row.suspension_id for row in page.rows)
        pages, cursor = pages + 1, page.next_cursor
        if cursor is None:
            break
    assert (seen, pages) == (asked, 3)


@requirement("store:paging")
async def test_a_page_goes_on_where_the_last_one_ended_although_its_last_question_was_answered(store: Store) -> None:
    scribes = [Scribe.on(store, f"e{number}") for number in range(4)]
    for number, scribe in enumerate(scribes):
        await scribe.suspend(f"s{number}")
    first = await store.suspensions(limit=2)
    assert first.next_cursor is not None
    await scribes[1].write(decided("s1"))
    rest = await store.suspensions(limit=2, cursor=first.next_cursor)
    assert [row.suspension_id for row in rest.rows] == ["s2", "s3"] and rest.next_cursor is None


@requirement("store:paging")
async def test_a_cursor_that_was_never_given_out_is_refused(store: Store) -> None:
    await Scribe.on(store, "e1").suspend("s1")
    for cursor in ("s2", "", "1", "' OR 1=1 --"):
        with pytest.raises(InvalidArguments):
            await store.suspensions(cursor=cursor)


@requirement("store:paging")
async def test_questions_are_filtered_by_principal_thread_and_addressee_and_the_clock_is_never_listed(
    store: Store,
) -> None:
    await Scribe.on(store, "e1", thread_id="t1", principal="ann").suspend("s1")
    await Scribe.on(store, "e2", thread_id="t2", principal="bob").suspend("s2", addressee="caller")
    await Scribe.on(store, "e3", thread_id="t3", principal="ann").suspend("s3", addressee="clock", expires_at=9e9)

    def ids(rows: tuple[SuspensionRow, ...]) -> list[str]:
        return [row.suspension_id for row in rows]

    assert ids((await store.suspensions()).rows) == ["s1", "s2"]
    assert ids((await store.suspensions(principal="ann")).rows) == ["s1"]
    assert ids((await store.suspensions(thread_id="t2")).rows) == ["s2"]
    assert ids((await store.suspensions(addressee="caller")).rows) == ["s2"]
    assert (await store.suspensions(principal="ann", addressee="caller")).total == 0
    row = await store.find_suspension("s3")
    assert row is not None and (row.execution_id, row.principal, row.expires_at) == ("e3", "ann", 9e9)


@requirement("store:paging")
async def test_what_waits_for_people_pages_the_most_dangerous_first_and_then_the_oldest(store: Store) -> None:
    risks = ["read", "dangerous", None, "critical", "confirm", "dangerous"]
    scribes = [Scribe.on(store, f"e{number}") for number in range(len(risks))]
    for number, (scribe, risk) in enumerate(zip(scribes, risks, strict=True)):
        await scribe.suspend(f"s{number}", risk=risk)
    await Scribe.on(store, "caller").suspend("to the model", addressee="caller", risk="critical")
    first = await store.waiting(limit=2)
    assert [row.suspension_id for row in first.rows] == ["s3", "s1"] and first.total == 6
    # The question at which the page ended is answered, and a later one turns out to be worse than all others.
    await scribes[1].write(decided("s1"))
    worse = question("s4", risk="critical", revision=2, digest="digest of worse")
    await scribes[4].write(ev.SuspensionRevised(question=worse, reason="edited"))
    rest = await store.waiting(limit=3, cursor=first.next_cursor)
    assert [row.suspension_id for row in rest.rows] == ["s5", "s0", "s2"] and rest.next_cursor is None
    assert [row.suspension_id for row in (await store.waiting(limit=2)).rows] == ["s3", "s4"]
    for cursor in ("never given out", ""):
        with pytest.raises(InvalidArguments):
            await store.waiting(cursor=cursor)


@requirement("store:paging")
async def test_questions_to_people_that_are_over_page_in_the_order_of_decision(
    store: Store, clock: ManualClock
) -> None:
    scribes = [Scribe.on(store, f"e{number}") for number in range(6)]
    for number, scribe in enumerate(scribes):
        await scribe.suspend(f"s{number}")
    await Scribe.on(store, "caller").suspend("to the model", addressee="caller")
    for number in (3, 0, 4):
        clock.advance(1)
        await scribes[number].write(decided(f"s{number}"))
    clock.advance(1)
    await scribes[1].write(ev.CancelRequested(), ev.ExecutionCancelled())
    # At the same moment, what was asked last comes first.
    await scribes[5].write(decided("s5"))
    pages: list[str] = []
    cursor = None
    for _ in range(3):
        page = await store.decided(limit=2, cursor=cursor)
        pages += [row.suspension_id for row in page.rows]
        cursor = page.next_cursor
    assert pages == ["s5", "s1", "s4", "s0", "s3"] and cursor is None
    with pytest.raises(InvalidArguments):
        await store.decided(cursor="never given out")
    with pytest.raises(InvalidArguments):
        await store.decided(cursor="s2")


@requirement("store:deadlines")
async def test_passed_deadlines_are_found_earliest_first_by_the_stores_clock(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    assert await store.next_deadline() is None
    for name, after in (("late", 30.0), ("soon", 10.0), ("clock", 20.0), ("never", None)):
        addressee: Addressee = "clock" if name == "clock" else "human"
        expires_at = None if after is None else now + after
        await Scribe.on(store, f"execution {name}").suspend(name, addressee=addressee, expires_at=expires_at)
    assert await store.next_deadline() == now + 10
    assert await store.due(10) == ()
    clock.advance(20)
    assert [row.suspension_id for row in await store.due(10)] == ["soon", "clock"]
    assert [row.suspension_id for row in await store.due(1)] == ["soon"]
    soon = await store.find_suspension("soon")
    assert soon is not None
    empty = new_execution(soon.execution_id, soon.thread_id, soon.principal)
    waiting = Scribe(store, fold(empty, await store.read(soon.execution_id)))
    await waiting.write(
        ev.SuspensionTimedOut(suspension_id="soon", outcome="reject"),
        guards=[replace(guard("soon"), deadline="passed")],
    )
    assert [row.suspension_id for row in await store.due(10)] == ["clock"]
    assert await store.next_deadline() == now + 20
    row = await store.find_suspension("soon")
    assert row is not None and row.status == "timed_out"


@requirement("store:alarms")
async def test_an_alarm_wakes_before_its_question_ends_and_once_it_fired_the_next_one_does(
    store: Store, clock: ManualClock
) -> None:
    now = clock.now()
    alarms = tuple(Alarm(kind="remind", at=now + after) for after in (5.0, 15.0))
    reminded = Scribe.on(store, "e1")
    await reminded.suspend("alarmed", expires_at=now + 30, alarms=alarms)
    await Scribe.on(store, "e2").suspend("ends", expires_at=now + 10)
    assert await store.next_deadline() == now + 5
    clock.advance(10)
    assert [row.suspension_id for row in await store.due(10)] == ["alarmed", "ends"]
    fired = ev.SuspensionReminded(suspension_id="alarmed", number=1, kind="remind")
    await reminded.write(fired, guards=[guard("alarmed")])
    row = await store.find_suspension("alarmed")
    assert row is not None and (row.status, row.alarm_at, row.expires_at) == ("pending", now + 15, now + 30)
    assert [row.suspension_id for row in await store.due(10)] == ["ends"]
    clock.advance(5)
    assert [row.suspension_id for row in await store.due(10)] == ["ends", "alarmed"]
    await reminded.write(msgspec.structs.replace(fired, number=2), guards=[guard("alarmed")])
    clock.advance(14)
    assert [row.suspension_id for row in await store.due(10)] == ["ends"]
    clock.advance(1)
    assert [row.suspension_id for row in await store.due(10)] == ["ends", "alarmed"]


@requirement("store:alarms")
async def test_a_revision_keeps_the_alarm_that_is_still_to_come_and_an_answer_ends_them(
    store: Store, clock: ManualClock
) -> None:
    now = clock.now()
    alarms = tuple(Alarm(kind="remind", at=now + after) for after in (5.0, 15.0))
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1", alarms=alarms)
    await scribe.write(ev.SuspensionReminded(suspension_id="s1", number=1, kind="remind"), guards=[guard("s1")])
    again = msgspec.structs.replace(question("s1", alarms=alarms), revision=2, digest="digest 2")
    await scribe.write(ev.SuspensionRevised(question=again, reason="edited"), guards=[guard("s1")])
    assert await store.next_deadline() == now + 15
    await scribe.write(decided("s1"), guards=[guard("s1", digest="digest 2")])
    clock.advance(60)
    assert await store.due(10) == () and await store.next_deadline() is None


# --- retention ---


# --- artifacts ---


def with_artifacts(append: Append, *artifacts: Artifact) -> Append:
    return replace(append, artifacts=artifacts)


@requirement("artifact:atomic")
async def test_an_artifact_is_found_in_its_thread_and_nowhere_else(store: Store) -> None:
    scribe = Scribe.on(store, "e1", thread_id="t1")
    await scribe.start()
    text, image = make_artifact(b'["x"]'), make_artifact(bytes(range(256)), "image/png")
    intent = ev.ToolCallIntended(call_id="a:1", arguments={})
    await store.append(with_artifacts(scribe.append(intent), text, image, text))
    await Scribe.on(store, "e2", thread_id="t2").start()
    assert await store.artifact("t1", text.artifact_id) == text
    assert await store.artifact("t1", image.artifact_id) == image
    assert await store.artifact("t2", text.artifact_id) is None
    assert await store.artifact("t1", "nope") is None
    assert await store.artifact("nope", text.artifact_id) is None


@requirement("artifact:atomic")
async def test_the_same_content_again_is_no_conflict(store: Store) -> None:
    scribe, same = Scribe.on(store, "e1", thread_id="t1"), make_artifact(b"[]")
    await scribe.start()
    for event in (
        ev.ToolCallIntended(call_id="a:1", arguments={}),
        ev.ToolReturned(call_id="a:1", artifact=same.artifact_id),
    ):
        append = with_artifacts(scribe.append(event), same)
        scribe.lease = await store.append(append)
        scribe.execution = append.execution
    assert await store.artifact("t1", same.artifact_id) == same


@requirement("artifact:atomic", "store:atomic")
async def test_an_artifact_of_a_refused_transaction_is_not_stored(store: Store) -> None:
    scribe = Scribe.on(store, "e1", thread_id="t1")
    await scribe.suspend("s1")
    refused, event = make_artifact(b"[1]"), ev.CancelRequested()
    append = with_artifacts(scribe.append(event), refused)
    with pytest.raises(VersionConflict):
        await store.append(replace(append, expected_version=append.expected_version - 1))
    with pytest.raises(LeaseLost):
        await store.append(replace(append, lease=Lease("e1", "p1", 99)))
    with pytest.raises(GuardFailed):
        await store.append(replace(append, guards=[guard("s1", digest="another")]))
    assert await store.artifact("t1", refused.artifact_id) is None


@requirement("artifact:atomic", "store:prune")
async def test_pruning_deletes_the_artifacts_of_what_it_deletes(store: Store, clock: ManualClock) -> None:
    kept, gone = make_artifact(b"[1]"), make_artifact(b"[2]")
    for name, artifact in (("running", kept), ("finished", gone)):
        scribe = Scribe.on(store, name, thread_id=name)
        await scribe.start()
        append = with_artifacts(scribe.append(ev.ToolCallIntended(call_id="a:1", arguments={})), artifact)
        scribe.lease, scribe.execution = await store.append(append), append.execution
        if name == "finished":
            await scribe.write(ev.ToolReturned(call_id="a:1"), ev.StepCompleted(step_id="a"), ev.ExecutionCompleted())
    clock.advance(10)
    assert await store.prune(clock.now()) == 1
    assert await store.artifact("finished", gone.artifact_id) is None
    assert await store.artifact("running", kept.artifact_id) == kept


@requirement("store:prune")
async def test_pruning_deletes_finished_and_old_executions_and_nothing_else(store: Store, clock: ManualClock) -> None:
    old_and_finished = Scribe.on(store, "old", thread_id="t")
    await old_and_finished.suspend("s0")
    await old_and_finished.write(decided("s0"), ev.ExecutionFailed(code="x", message="y"))
    await Scribe.on(store, "suspended").suspend("s1")
    await Scribe.on(store, "running").start()
    clock.advance(100)
    await Scribe.on(store, "new", thread_id="t").finish()
    kept = {name: await everything(store, name) for name in ("suspended", "running", "new")}
    assert await store.prune(clock.now()) == 1
    assert await store.header("old") is None and await store.read("old") == ()
    assert await store.find_suspension("s0") is None
    assert {name: await everything(store, name) for name in kept} == kept
    assert [h.execution_id for h in await store.thread("t")] == ["new"]
    assert await store.prune(clock.now()) == 0


@requirement("store:prune", "store:fence")
async def test_a_lease_of_a_pruned_execution_writes_to_no_other_that_has_its_place(
    store: Store, clock: ManualClock
) -> None:
    gone, new = Scribe.on(store, "gone"), Scribe.on(store, "new")
    await gone.start()
    late, lease = gone.append(ev.CancelRequested()), gone.lease
    await gone.finish()
    clock.advance(100)
    assert await store.prune(clock.now()) == 1
    await new.start()
    assert new.lease is not None and lease is not None and new.lease.fence == lease.fence
    for append in (late, replace(late, release=True)):
        with pytest.raises((VersionConflict, LeaseLost)):
            await store.append(append)
    assert await store.header("gone") is None
    assert await store.read("new") == tuple(new.written)


# --- several connections ---


@requirement("store:round-trip")
async def test_what_one_connection_wrote_another_reads_at_once(back_end: BackEnd) -> None:
    one, two = back_end.connect(), back_end.connect()
    scribe = Scribe.on(one, "e1")
    before = await two.changes(0)
    await scribe.suspend("s1")
    assert await two.read("e1") == tuple(scribe.written)
    assert [row.suspension_id for row in (await two.suspensions()).rows] == ["s1"]
    after = await two.changes(before.number)
    assert after.number != before.number
    assert after.executions is None or "e1" in after.executions


async def _answer(store: Store, asking: Scribe, name: str, suspension_id: str, won: list[Scribe]) -> None:
    scribe = Scribe(store, asking.execution, owner=name, written=[*asking.written])
    try:
        await scribe.write(decided(suspension_id, approved=name < "p4"), guards=[guard(suspension_id)])
    except ExecutionConflict:
        return
    won.append(scribe)


@requirement("store:one-winner", "store:atomic")
async def test_of_racing_answers_through_two_connections_one_is_stored(back_end: BackEnd) -> None:
    connections = back_end.connect(), back_end.connect()
    for number in range(10):
        asking, suspension_id = Scribe.on(connections[0], f"e{number}"), f"s{number}"
        await asking.suspend(suspension_id)
        won: list[Scribe] = []
        async with anyio.create_task_group() as tasks:
            for task in range(8):
                tasks.start_soon(_answer, connections[task % 2], asking, f"p{task}", suspension_id, won)
        [winner] = won
        assert await connections[1].read(f"e{number}") == tuple(winner.written)
        assert winner.execution.version == asking.execution.version + 1


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


# --- the audit ---


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


async def test_what_is_looked_up_by_a_text_that_no_row_can_have_does_not_exist(store: Store) -> None:
    wrong = "e1\0"
    assert await store.header(wrong) is None
    assert await store.read(wrong) == ()
    assert await store.thread(wrong) == ()
    assert await store.find_suspension(wrong) is None
    assert await store.find_start("ann", wrong) is None
    assert await store.find_ids(wrong, 5) == ()
    assert await store.artifact(wrong, wrong) is None
    assert (await store.suspensions(principal=wrong)).rows == ()
    assert (await store.suspensions(thread_id=wrong)).total == 0
    for page in (store.suspensions, store.decided):
        with pytest.raises(InvalidArguments):
            await page(cursor=wrong)
