"""Replay over every store: what is read, what is named, and in how much memory."""

import tracemalloc
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.ports.store import Header
from planwarden.server.cli.checks.replay import MAX_FAULTS, PAGE, replay_logs
from planwarden.storage.codec import encode_events
from planwarden.storage.postgres import connection as postgres
from planwarden.storage.sql.rows import checksum_of
from tests.kit import ManualClock, MemoryStore, requirement
from tests.storage.suite import BackEnd, Postgres, Scribe, Sqlite
from tests.storage.test_sqlite import edit

pytestmark = pytest.mark.anyio


async def write_logs(back_end: BackEnd) -> None:
    """Three executions that end well, two that wait, and one of each kind with a step that nothing proves."""
    store = back_end.connect()
    for number in range(3):
        await Scribe.on(store, f"done {number}").finish()
    for number in range(2):
        await Scribe.on(store, f"waits {number}").suspend(f"s{number}")
    for name, is_over in (("wrong", False), ("wrong and over", True)):
        scribe = Scribe.on(store, name)
        await scribe.start()
        last = (ev.ExecutionCompleted(),) if is_over else ()
        await scribe.write(ev.StepCompleted(step_id="a", validation="passed"), *last)


@requirement("replay:store")
async def test_what_can_go_on_is_replayed_and_all_of_it_if_asked_for(back_end: BackEnd) -> None:
    await write_logs(back_end)
    store = back_end.connect()
    report = await replay_logs(store, has_finished=False)
    assert (report.executions, report.fault_count, [found.execution_id for found in report.faults]) == (3, 1, ["wrong"])
    everything = await replay_logs(store, has_finished=True)
    assert everything.executions == 7 and everything.events > report.events
    found = {log.execution_id: (log.thread_id, log.fault.sequence, log.fault.event) for log in everything.faults}
    assert found == {name: (f"thread of {name}", 4, "StepCompleted") for name in ("wrong", "wrong and over")}


@requirement("replay:store")
async def test_an_event_that_cannot_be_read_is_named_by_its_number(tmp_path: Path) -> None:
    back_end = Sqlite(tmp_path)
    store = back_end.connect()
    scribe = Scribe.on(store, "e")
    await scribe.suspend("s")
    [first] = [entry.sequence for entry in scribe.written if isinstance(entry.event, ev.Suspended)]
    at = scribe.written[-1].at
    body = encode_events([entry.event for entry in scribe.written[first - 1 :]])
    changed = body.removesuffix("]") + ',["ZZ"]]'
    checksum = checksum_of("e", first, at, changed)
    edit(
        tmp_path / "planwarden.db", "UPDATE events SET body = ?, checksum = ? WHERE first = ?", changed, checksum, first
    )
    report = await replay_logs(back_end.connect(), has_finished=False)
    await back_end.close()
    [log] = report.faults
    assert log.fault.sequence == first + 2 and "newer planwarden" in log.fault.reason


class ManyLogs(MemoryStore):
    """As many executions as are asked for, made when they are looked at, each with the log of the stored one."""

    count = 0
    largest = 0

    async def walk(self, after: str, limit: int) -> tuple[Header, ...]:
        start = int(after or "-1") + 1
        [header] = await super().walk("", 1)
        page = [f"{number:05}" for number in range(start, min(start + limit, self.count))]
        self.largest = max(self.largest, len(page))
        return tuple(
            Header(
                execution_id=name,
                thread_id=name,
                principal="ann",
                status=header.status,
                version=header.version,
                created_at=0.0,
                updated_at=0.0,
            )
            for name in page
        )

    async def read(self, execution_id: str, after: int = 0) -> tuple[ev.Recorded, ...]:
        return await super().read("wrong", after)


@requirement("replay:store")
async def test_many_logs_are_replayed_a_page_at_a_time() -> None:
    store, logs = ManyLogs(ManualClock()), 1_000
    store.count = logs
    scribe = Scribe.on(store, "wrong")
    await scribe.start()
    await scribe.write(ev.StepCompleted(step_id="a", validation="passed"))
    await replay_logs(store, has_finished=False)
    tracemalloc.start()
    try:
        report = await replay_logs(store, has_finished=False)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.executions, report.fault_count, len(report.faults)) == (logs, logs, MAX_FAULTS)
    assert store.largest == PAGE and peak_bytes < 1_000_000


@requirement("replay:upgrade")
async def test_an_upgrade_of_postgresql_is_rolled_back_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back_end = Postgres(tmp_path)
    await write_logs(back_end)
    for store in back_end.opened:
        await store.close()
    back_end.opened.clear()
    known = postgres.read_migrations()
    newer = [*known, "ALTER TABLE executions ADD COLUMN region text;"]
    with monkeypatch.context() as changed:
        changed.setattr(postgres, "read_migrations", lambda: newer)
        with pytest.raises(StoreError, match=r"cannot continue execution 'wrong' .* from event 4 \(StepCompleted\)"):
            back_end.connect()
    with closing(psycopg.connect(back_end.url)) as connection:
        assert connection.execute("SELECT max(version) FROM schema_versions").fetchone() == (len(known),)
        columns = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'region'"
        assert connection.execute(columns).fetchone() == (0,)
    await back_end.close()
