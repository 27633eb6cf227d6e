"""Who waits for a change of an execution learns of each one, also of one that came before the waiting began."""

import anyio
import pytest

from planwarden.agent.core.state import new_execution
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio


async def test_a_change_between_two_looks_is_not_missed() -> None:
    async with warden(Ledger()) as w:
        view = await w.execute_plan(plan(tool_step("find", "find", {"topic": "x"})), wait_seconds=60)
        engine = w.service.engine
        ended = await engine.find(view.execution_id)
        seen = new_execution(ended.execution_id, ended.thread_id, ended.principal)
        with anyio.fail_after(60):
            assert await engine.wait_for_change(seen) == ended


async def test_a_change_after_the_look_is_waited_for() -> None:
    may_pass = anyio.Event()
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(tool_step("erase", "erase", {"ids": [1]})), wait_seconds=60)
        engine = w.service.engine
        seen = await engine.find(asked.execution_id)

        async def cancel() -> None:
            await may_pass.wait()
            await w.cancel_execution(asked.thread_id)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel)
                may_pass.set()
                assert (await engine.wait_for_change(seen)).version > seen.version
