"""How every store counts budgets and uses of standing grants, and keeps business keys, over executions."""

from typing import Literal

import pytest
from msgspec.structs import replace

from planwarden.agent.common.errors import BudgetExceeded, GrantUsedUp
from planwarden.agent.core.plan.plan import Plan, PlannedCall, PlanStep
from planwarden.agent.ports import budgets_and_keys
from planwarden.agent.ports.budgets_and_keys import DAY_S, Grant, GrantedStep, KeyHeld, count_uses_left, is_open
from tests.kit import AuditEntry, ManualClock, Store, ev, requirement
from tests.storage.suite import Scribe

ONCE = ev.OnceKey(key="k" * 32, values={"/payment_id": "Łódź \0 7"}, keep_s=90 * DAY_S)
TAKEN = AuditEntry(kind="once_taken", facts={"of": "a guard"})
PLAN = Plan(
    steps=(
        PlanStep(
            step_id="a",
            description="pay twice",
            step_type="tool",
            required_tools=("pay",),
            tool_calls=tuple(PlannedCall(tool_name="pay", arguments={"n": n}) for n in range(3)),
        ),
    )
)
"""A step with three calls."""
STEP = GrantedStep(plan_name="weekly", plan_digest="p" * 64, step_id="send")
MADE = AuditEntry(kind="grant_made", facts={"grant": "g1"})
USE = ev.ToolCallIntended(call_id="a:1", arguments={"city": "Łódź"}, grant_id="g1")
FAILED = ev.ToolFailed(call_id="a:1", code="tool_error", message="busy", nothing_happened=True)


def share(amount: float, limit: float = 500.0, *, budget: str = "b" * 32) -> ev.BudgetShare:
    return ev.BudgetShare(budget=budget, amount=amount, limit=limit, window_s=DAY_S)


def intend(*shares: ev.BudgetShare, call: int = 1, once: ev.OnceKey | None = None) -> ev.ToolCallIntended:
    return ev.ToolCallIntended(call_id=f"a:{call}", arguments={"n": call}, shares=shares, once=once)


async def begin(store: Store, name: str, principal: str = "ann") -> Scribe:
    scribe = Scribe.on(store, name, principal=principal)
    await scribe.write(ev.ExecutionCreated(goal="go"), ev.PlanAccepted(plan=PLAN), ev.StepStarted(step_id="a"))
    return scribe


async def attempt(store: Store, name: str, intent: ev.ToolCallIntended) -> Literal["stored", "spent", "duplicate"]:
    """What becomes of the intent of a new execution; a refused one has stored nothing."""
    scribe = await begin(store, name)
    try:
        await scribe.write(intent)
    except (BudgetExceeded, KeyHeld) as refusal:
        assert await store.read(name) == tuple(scribe.written)
        return "spent" if isinstance(refusal, BudgetExceeded) else "duplicate"
    return "stored"


@requirement("rules:budget")
async def test_a_call_passes_only_when_all_of_its_budgets_hold_it(store: Store) -> None:
    amounts = [300.0, 150.0, 80.0, 50.0, 0.01, 0.0]
    found = [await attempt(store, f"e{n}", intend(share(amount))) for n, amount in enumerate(amounts)]
    assert found == ["stored", "stored", "spent", "stored", "spent", "stored"]
    tenths = [await attempt(store, f"t{n}", intend(share(0.1, limit=0.3, budget="tenths"))) for n in range(4)]
    assert tenths == ["stored", "stored", "stored", "spent"]
    two = share(10.0, budget="sum"), share(1.0, limit=2.0, budget="count")
    assert [await attempt(store, f"both {n}", intend(*two)) for n in range(3)] == ["stored", "stored", "spent"]
    # The refused call took nothing of the other one.
    assert await attempt(store, "rest", intend(share(480.0, budget="sum"))) == "stored"


@requirement("rules:budget")
async def test_a_refused_budget_says_how_much_is_left_and_when_there_is_room(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    await attempt(store, "first", intend(share(100.0)))
    clock.advance(3600)
    await attempt(store, "second", intend(share(370.0)))
    third = await begin(store, "third")
    for amount, room_at in ((120.0, now + DAY_S), (150.0, now + 3600 + DAY_S), (501.0, None)):
        with pytest.raises(BudgetExceeded) as refused:
            await third.write(intend(share(amount)))
        assert (refused.value.budget, refused.value.left, refused.value.room_at) == ("b" * 32, 30.0, room_at)


@requirement("rules:budget")
async def test_a_budget_rolls_and_a_clock_that_goes_back_does_not_refill_it(store: Store, clock: ManualClock) -> None:
    assert await attempt(store, "first", intend(share(500.0))) == "stored"
    for number, seconds in enumerate([-2 * DAY_S, 2 * DAY_S, DAY_S - 1]):
        clock.jump(seconds)
        assert await attempt(store, f"spent {number}", intend(share(1.0))) == "spent"
    clock.jump(1)
    assert await attempt(store, "a day later", intend(share(500.0))) == "stored"
    clock.jump(-DAY_S / 2)
    # Both count now: the first one was only over while the clock was ahead.
    assert await attempt(store, "back again", intend(share(0.5, limit=1000.0))) == "spent"


@requirement("rules:once")
async def test_a_key_ends_with_its_time_also_when_the_clock_goes_back(store: Store, clock: ManualClock) -> None:
    assert await attempt(store, "first", intend(once=ONCE)) == "stored"
    clock.jump(-30 * DAY_S)
    assert await attempt(store, "back", intend(once=ONCE)) == "duplicate"
    clock.jump(120 * DAY_S - 1)
    assert await attempt(store, "too early", intend(once=ONCE)) == "duplicate"
    clock.jump(1)
    assert await store.find_once([ONCE.key]) == () == await store.list_once(None, 10)
    assert await attempt(store, "over", intend(once=ONCE)) == "stored"
    assert await attempt(store, "another", intend(once=ONCE)) == "duplicate"


@requirement("rules:once", "rules:budget")
async def test_two_calls_of_one_transaction_have_a_key_once_and_share_a_budget(store: Store) -> None:
    scribe = await begin(store, "loop")
    with pytest.raises(KeyHeld) as refused:
        await scribe.write(intend(once=ONCE, call=1), intend(once=ONCE, call=2))
    assert refused.value.held_key.holder == "loop:a:1"
    with pytest.raises(BudgetExceeded):
        await scribe.write(*(intend(share(200.0), call=call) for call in (1, 2, 3)))
    # What is given back in the same transaction is free in it.
    await scribe.write(intend(once=ONCE, call=1))
    await scribe.write(FAILED, intend(once=ONCE, call=2))
    [held] = await store.find_once([ONCE.key, "other"])
    assert (held.holder, held.values, held.principal) == ("loop:a:2", ONCE.values, "ann")
    assert await store.list_once("pay", 10) == (held,) and await store.list_once("other", 10) == ()


@requirement("rules:once")
async def test_what_is_no_call_takes_a_key_once_within_its_time(store: Store, clock: ManualClock) -> None:
    once = ev.OnceKey(key="guard", values={"tool": "Bash"}, keep_s=3600)
    taken = [await store.take_once_key(once, holder, TAKEN) for holder in ("guard 1", "guard 1", "guard 2")]
    assert taken == [True, False, False]
    clock.advance(3600)
    assert await store.take_once_key(once, "guard 2", TAKEN)
    assert [held.holder for held in await store.find_once(["guard"])] == ["guard 2"]
    # It is not among the keys of calls, and a person can free it.
    assert await store.list_once(None, 10) == ()
    forgotten = AuditEntry(kind="once_forgotten", facts={})
    assert [await store.forget_once_key("guard", forgotten) for _ in range(2)] == [True, False]
    assert await store.take_once_key(once, "guard 3", TAKEN)
    assert [row.entry for row in await store.audit_rows()] == [TAKEN, TAKEN, forgotten, TAKEN]


@requirement("rules:once", "rules:budget")
async def test_keys_and_budgets_outlive_the_execution_and_go_when_long_over(store: Store, clock: ManualClock) -> None:
    scribe = await begin(store, "first")
    await scribe.write(intend(share(500.0), once=ONCE))
    ending = ev.StepFailed(step_id="a", code="x", message="x"), ev.ExecutionFailed(code="x", message="x")
    await scribe.write(ev.ToolReturned(call_id="a:1", value=1), *ending)
    clock.advance(60)
    assert await store.prune(clock.now()) == 1
    assert await attempt(store, "second", intend(once=ONCE)) == "duplicate"
    assert await attempt(store, "third", intend(share(1.0))) == "spent"
    clock.advance(ONCE.keep_s + budgets_and_keys.SWEEP_AFTER_S)
    later = ev.OnceKey(key="later", values={}, keep_s=60)
    assert await attempt(store, "sweeps", intend(share(1.0), once=later)) == "stored"
    clock.jump(-ONCE.keep_s - budgets_and_keys.SWEEP_AFTER_S)
    assert [held.key for held in await store.find_once([ONCE.key, later.key])] == [later.key]


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
    return DAY_S - clock.now() % DAY_S


@requirement("store:grants")
async def test_a_grant_for_a_step_counts_by_calendar_days_in_utc_and_a_clock_that_went_back_gives_none_back(
    store: Store, clock: ManualClock
) -> None:
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
    assert (found.used, found.used_before, found.used_on) == (4, 2, budgets_and_keys.day_of(clock.now()))
    clock.jump(-DAY_S / 2)
    assert await use(store, "monday again") == "refused" and count_uses_left(await read(store), clock.now()) == 0
    clock.jump(DAY_S / 2 + 60)
    assert await use(store, "still tuesday") == "refused"


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
