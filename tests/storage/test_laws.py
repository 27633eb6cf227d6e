"""The laws of the `Store` port, over every store there is."""

from contextlib import nullcontext
from typing import Any, Literal, cast

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from planwarden.agent.common.artifact import Artifact, make_artifact
from planwarden.agent.common.errors import (
    ExecutionConflict,
    GuardFailed,
    LeaseLost,
    ThreadBusy,
    VersionConflict,
)
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import TASK_KINDS, AuditEntry, Kind
from planwarden.agent.ports.store import Append, FoundId, Guard, Lease, Store
from tests.kit import ManualClock, requirement
from tests.storage.suite import LEASE_S, BackEnd, Scribe, decided, guard, mainly

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("back_end", mainly("memory", "sqlite", "sqlite, slow", "postgres"), indirect=True),
]


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


@requirement("store:guard", "store:atomic")
@pytest.mark.parametrize(
    ("digest", "deadline", "at", "is_stored"),
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
    store: Store,
    clock: ManualClock,
    digest: str,
    deadline: Literal["not passed", "passed", "any"],
    at: float,
    is_stored: bool,
) -> None:
    scribe = Scribe.on(store, "e1")
    await scribe.suspend("s1", expires_at=clock.now() + 100)
    clock.advance(at)
    before = await everything(store, "e1")
    condition = Guard(suspension_id="s1", digest=digest, deadline=deadline)
    with nullcontext() if is_stored else pytest.raises(GuardFailed):
        await scribe.write(decided("s1"), guards=[condition])
    row = await store.find_suspension("s1")
    assert row is not None and row.status == ("decided" if is_stored else "pending")
    assert is_stored or await everything(store, "e1") == before


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


@requirement("store:takeover")
async def test_leases_that_end_soon_are_listed_ahead(store: Store, clock: ManualClock) -> None:
    for execution_id, passed_s in (("e1", 5.0), ("e2", 0.0)):
        await Scribe.on(store, execution_id).start()
        clock.advance(passed_s)
    assert await store.orphans(10, ahead_s=LEASE_S - 5) == ("e1",)
    assert await store.orphans(10, ahead_s=LEASE_S) == ("e1", "e2")
    assert await store.orphans(1, ahead_s=LEASE_S) == ("e1",) and await store.orphans(10) == ()


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
    for append in (late, replace(late, release=True), replace(late, lease=None, acquire=True)):
        with pytest.raises((VersionConflict, LeaseLost)):
            await store.append(append)
    assert await store.header("gone") is None
    assert await store.read("new") == tuple(new.written)


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
@pytest.mark.parametrize("wrong", ["nobody", "e1\0"])
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


@requirement("scheduler:fair", "store:deadlines")
async def test_each_owner_is_served_in_turn_however_much_of_another_is_due(store: Store, clock: ManualClock) -> None:
    for number, principal in enumerate(["ann"] * 30 + ["bob", "eve", "bob"]):
        scribe = Scribe.on(store, f"e{number}", principal=principal)
        await scribe.suspend(f"s{number}", addressee="clock", expires_at=clock.now() + number)
    assert await store.due(5) == (await store.due(100))[:1]
    clock.advance(100)
    due = await store.due(100)
    assert [row.suspension_id for row in due[:6]] == ["s0", "s30", "s31", "s1", "s32", "s2"]
    assert len(due) == 33 and await store.due(3) == due[:3]


@requirement("store:audit")
async def test_the_audit_of_an_execution_holds_no_rows_of_ids_that_begin_alike(store: Store) -> None:
    ids = ("e", "12345678", "123456789", "12345678a")
    await store.audit([AuditEntry(kind="refused", facts={"of": name}, execution_id=name) for name in (*ids, *ids)])
    for name in ids:
        rows = await store.audit_rows(execution_id=name)
        assert [row.entry.facts["of"] for row in rows] == [name, name] and rows[0].sequence < rows[1].sequence
