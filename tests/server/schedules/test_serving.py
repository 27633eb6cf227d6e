"""Every process that serves starts what is due: through a whole warden, with a saved plan from a file."""

import json
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import planwarden
from planwarden.agent.core import events as ev
from planwarden.server.schedules import ticker as ticker_module
from planwarden.server.settings.configuration import load_settings
from planwarden.server.settings.roles import ProcessRole
from tests.kit import Ledger, ManualClock, MemoryStore, plan, requirement, tool_step
from tests.server.schedules.support import add_schedule, read_outcomes

pytestmark = pytest.mark.anyio


@requirement("schedule:once")
@pytest.mark.parametrize("role", ["both", "front", "worker"])
async def test_a_process_of_any_role_starts_what_is_due(
    tmp_path: Path, role: ProcessRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker_module, "LOOK_S", 0.0)
    (tmp_path / "plans").mkdir()
    document = plan(tool_step("a", "note", {"text": {"$from": "inputs", "pointer": "/month"}}))
    inputs = {"inputs": {"type": "object", "properties": {"month": {"type": "string"}}}}
    (tmp_path / "plans" / "remind.json").write_text(json.dumps({**document, **inputs}))
    store, ledger = MemoryStore(ManualClock()), Ledger()
    settings = load_settings(home=tmp_path, environment={})
    made = await add_schedule(store, inputs={"month": "May"}, owner="ann")
    clock = store.clock
    assert isinstance(clock, ManualClock)
    async with planwarden.Warden(settings=settings, tools=ledger.tools(), store=store, role=role):
        clock.advance(made.next_at - clock.now() + 0.5)
        with anyio.fail_after(60):
            while not await read_outcomes(store):
                await anyio.lowlevel.checkpoint()
            while role != "front" and not ledger.lines:
                await anyio.lowlevel.checkpoint()
    [header] = await store.executions(None, 10)
    assert header.principal == "ann"
    created = (await store.read(header.execution_id))[0].event
    assert isinstance(created, ev.ExecutionCreated) and created.host == "schedule s1"
    assert await read_outcomes(store) == [(made.next_at, "started")]
    assert ledger.lines == ([] if role == "front" else ["note May"])
