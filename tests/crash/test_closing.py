"""How an engine ends when something in it has failed for good."""

from pathlib import Path

import anyio
import pytest

from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.settings.catalogue import build_registry
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.storage.memory.store import MemoryStore
from tests.support.fakes import Crash, CrashingStore
from tests.support.wardens import PausingTool, plan, tool_step

pytestmark = pytest.mark.anyio


async def test_an_engine_that_was_brought_down_waits_for_no_call() -> None:
    gate = PausingTool()
    store = CrashingStore(MemoryStore(), at=1_000_000, when="before")
    tools = build_registry(Settings(home=Path("/nonexistent")), [gate.tool()])
    with anyio.fail_after(60), pytest.raises(Crash):
        async with Engine(store, tools, CallerModel(), OperatorPolicy(), grace_s=3_600.0) as engine:
            steps, _ = parse_plan(plan(tool_step("a", "gate")), author="caller", tools=engine.tool_facts())
            await engine.create(
                thread_id="t", requester=Requester("local"), goal=None, plan=steps, options=ev.Options()
            )
            await gate.started.wait()
            store.is_dead = True
            await anyio.sleep_forever()
