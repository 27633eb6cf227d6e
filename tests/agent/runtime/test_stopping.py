"""How a call is stopped that goes on although it was cancelled, or that must not be cancelled now."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.lowlevel
import pytest

import planwarden
from tests.support.wardens import PausingTool, end_at_once, plan, tool_step, warden

pytestmark = pytest.mark.anyio


@dataclass
class StubbornTool:
    """A tool that survives three cancellations, then waits on, or waits for what nobody will finish."""

    end: Literal["waits on", "cancels itself"]
    has_begun: anyio.Event = field(default_factory=anyio.Event)
    survived: int = 0

    def tool(self, timeout_s: float | None) -> object:
        @planwarden.tool(risk="read", effect="read", timeout_s=timeout_s)
        async def go_on() -> str:
            """Go on although it is cancelled."""
            self.has_begun.set()
            while self.survived < 3:
                with suppress(anyio.get_cancelled_exc_class()):
                    await anyio.sleep_forever()
                self.survived += 1
            abandoned: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            if self.end == "cancels itself":
                abandoned.cancel()
            return await abandoned

        return go_on


@pytest.mark.parametrize("end", ["waits on", "cancels itself"])
@pytest.mark.parametrize("reason", ["timeout", "cancelled", "closed"])
async def test_a_tool_that_goes_on_although_it_was_cancelled_holds_up_neither_its_execution_nor_the_close(
    reason: str, end: Literal["waits on", "cancels itself"]
) -> None:
    stubborn = StubbornTool(end)
    with anyio.fail_after(60):
        async with warden(tools=[stubborn.tool(0.001 if reason == "timeout" else None)]) as w:
            execution = await w.execute_plan(plan(tool_step("a", "go_on")), wait_seconds=0)
            await stubborn.has_begun.wait()
            if reason == "closed":
                end_at_once(w)
            else:
                if reason == "cancelled":
                    await w.cancel_execution(execution.thread_id)
                await w.service.engine.wait(await w.service.engine.find(execution.execution_id), 60)
                execution = await w.get_execution(execution.thread_id)
                error = execution.steps[0].error
                assert execution.status == {"timeout": "failed", "cancelled": "cancelled"}[reason]
                assert error is None or error.code == reason
    assert stubborn.survived == 3


@pytest.mark.parametrize(
    ("waits_on", "status"), [(False, "completed"), (True, "failed")], ids=["and its result is kept", "before it stops"]
)
async def test_what_a_tool_shields_ends_although_the_time_limit_of_its_call_has_passed(
    waits_on: bool, status: str
) -> None:
    ended: list[str] = []

    @planwarden.tool(risk="read", effect="read", timeout_s=0.001)
    async def keep() -> str:
        """Finish what it has begun."""
        limit = anyio.current_effective_deadline()
        with anyio.CancelScope(shield=True), anyio.CancelScope():
            await anyio.sleep_until(limit)
            await anyio.lowlevel.checkpoint()
            ended.append("kept")
        if waits_on:
            await anyio.sleep_forever()
        return "kept"

    async with warden(tools=[keep]) as w:
        done = await w.execute_plan(plan(tool_step("a", "keep")), wait_seconds=60)
    assert (done.status, ended) == (status, ["kept"])


async def test_closing_in_a_cancelled_scope_still_gives_a_running_call_time_to_end() -> None:
    pausing, recorded = PausingTool(), list[str]()
    with anyio.CancelScope() as outer:
        async with warden(tools=[pausing.tool()]) as w:
            await w.execute_plan(plan(tool_step("a", "gate")), wait_seconds=0)
            await pausing.started.wait()
            w.service.engine.listen(
                lambda commit: recorded.append(commit.execution.steps["a"].calls[0].status) if commit else None
            )
            outer.cancel()
            # The cancellation is delivered before.
            asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, pausing.opened.set)
            await anyio.sleep_forever()
    assert recorded[-1] == "succeeded"
