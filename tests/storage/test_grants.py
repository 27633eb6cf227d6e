"""How every store counts the uses of standing grants: in all, or by calendar days for a step of a saved plan."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

import anyio
import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import GrantUsedUp, StoreError
from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.ports.grant import DAY_S, Grant, GrantedStep, count_uses_left, day_of, is_open
from planwarden.agent.ports.store import Store
from planwarden.storage.sqlite.store import SqliteStore
from tests.kit import ManualClock, requirement
from tests.storage.suite import BackEnd, Scribe

pytestmark = pytest.mark.anyio

STEP = GrantedStep(plan_name="weekly", plan_digest="p" * 64, step_id="send")
MADE = AuditEntry(kind="grant_made", facts={"grant": "g1"})
USE = ev.ToolCallIntended(call_id="a:1", arguments={"city": "Łódź"}, grant_id="g1")


def make_grant(store: Store, *, uses: int = 2, step: GrantedStep | None = STEP, days: float = 90) -> Grant:
    now = store.clock.now()
    return Grant(
        grant_id="g1",
        tool_name="book",
        definition_digest="d",
        arguments={"city": "Łódź"},
        step=step,
        uses=uses,
        expires_at=now + days * DAY_S,
        owner=None,
        created_by="ann",
        assurance="human",
        channel="test",
        created_at=now,
    )


async def use(store: Store, name: str) -> Literal["used", "refused"]:
    """Whether an execution of that name may use the grant once."""
    scribe = Scribe.on(store, name)
    await scribe.start()
    try:
        await scribe.write(USE)
    except GrantUsedUp:
        assert (await store.read(name)) == tuple(scribe.written)
        return "refused"
    return "used"


async def read(store: Store) -> Grant:
    [grant] = await store.grants(only_open=False)
    return grant


def to_midnight(clock: ManualClock) -> float:
    """Seconds until the next day begins in UTC."""
    return DAY_S - clock.now() % DAY_S


@requirement("store:grants")
async def test_a_grant_for_a_step_counts_by_calendar_days_in_utc(store: Store, clock: ManualClock) -> None:
    clock.advance(to_midnight(clock) + 60)
    grant = make_grant(store)
    await store.add_grant(grant, MADE)
    assert await store.grants(only_open=True) == (grant,)
    assert [await use(store, f"monday {n}") for n in range(3)] == ["used", "used", "refused"]
    clock.advance(to_midnight(clock) - 1)
    assert await use(store, "a second before midnight") == "refused"
    assert count_uses_left(await read(store), clock.now()) == 0
    clock.advance(1)
    # A grant that is spent for a day has not ended.
    assert len(await store.grants(only_open=True)) == 1
    assert count_uses_left(await read(store), clock.now()) == 2
    assert [await use(store, f"tuesday {n}") for n in range(3)] == ["used", "used", "refused"]
    found = await read(store)
    assert (found.used, found.used_before, found.used_on) == (4, 2, day_of(clock.now()))


@requirement("store:grants")
async def test_a_clock_that_went_back_gives_no_uses_back(store: Store, clock: ManualClock) -> None:
    await store.add_grant(make_grant(store, uses=1), MADE)
    clock.advance(to_midnight(clock))
    assert await use(store, "today") == "used"
    clock.jump(-DAY_S / 2)
    assert await use(store, "yesterday again") == "refused"
    assert count_uses_left(await read(store), clock.now()) == 0
    clock.jump(DAY_S / 2 + 60)
    assert await use(store, "still today") == "refused"


@requirement("store:grants")
async def test_a_grant_for_a_step_ends_by_its_time_and_when_it_is_revoked(store: Store, clock: ManualClock) -> None:
    await store.add_grant(make_grant(store, days=90), MADE)
    clock.advance(90 * DAY_S - 1)
    assert await use(store, "on the last day") == "used"
    clock.advance(1)
    assert await use(store, "after it") == "refused" and await store.grants(only_open=True) == ()
    assert not is_open(await read(store), clock.now())
    await store.add_grant(replace(make_grant(store), grant_id="g2"), MADE)
    assert await store.revoke_grant("g2", AuditEntry(kind="grant_revoked", facts={}))
    assert await store.grants(only_open=True) == ()


@requirement("store:grants")
async def test_any_other_grant_counts_once_for_all_days(store: Store, clock: ManualClock) -> None:
    await store.add_grant(make_grant(store, step=None), MADE)
    assert await use(store, "monday") == "used"
    clock.advance(DAY_S)
    assert [await use(store, f"tuesday {n}") for n in range(2)] == ["used", "refused"]
    assert await store.grants(only_open=True) == () and count_uses_left(await read(store), clock.now()) == 0


@requirement("store:grants")
async def test_racing_uses_through_two_connections_never_exceed_those_of_a_day(back_end: BackEnd) -> None:
    stores = [back_end.connect() for _ in range(2)]
    await stores[0].add_grant(make_grant(stores[0], uses=5), MADE)
    answers: list[str] = []

    async def compete(number: int) -> None:
        answers.append(await use(stores[number % 2], f"e{number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(16):
            tasks.start_soon(compete, number)
    assert sorted(answers) == ["refused"] * 11 + ["used"] * 5
    found = await read(stores[1])
    assert (found.used, count_uses_left(found, back_end.clock.now())) == (5, 0)


@pytest.mark.parametrize(
    "text", ["[1", "7", '{"plan_name": "weekly"}', '{"plan_name": 1, "plan_digest": "", "step_id": ""}']
)
async def test_a_damaged_step_of_a_grant_is_named(tmp_path: Path, text: str) -> None:
    store = SqliteStore.open(tmp_path / "planwarden.db")
    await store.add_grant(make_grant(store), MADE)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("UPDATE grants SET step = ?", (text,))
    with pytest.raises(StoreError, match="grant 'g1' is damaged"):
        await store.grants(only_open=True)
    await store.close()
