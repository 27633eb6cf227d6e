"""Whose turn it is when many questions are due at once, over every store there is."""

import pytest

from planwarden.agent.ports.store import Store
from planwarden.storage.clock import ManualClock
from tests.requirements import requirement
from tests.storage.suite import Scribe

pytestmark = pytest.mark.anyio


@requirement("scheduler:fair")
async def test_each_owner_is_served_in_turn_however_much_of_another_is_due(store: Store, clock: ManualClock) -> None:
    for number, principal in enumerate(["ann"] * 30 + ["bob", "eve", "bob"]):
        scribe = Scribe.on(store, f"e{number}", principal=principal)
        await scribe.suspend(f"s{number}", addressee="clock", expires_at=clock.now() + number)
    assert await store.due(5) == (await store.due(100))[:1]
    clock.advance(100)
    due = await store.due(100)
    assert [row.suspension_id for row in due[:6]] == ["s0", "s30", "s31", "s1", "s32", "s2"]
    assert len(due) == 33 and await store.due(3) == due[:3]
