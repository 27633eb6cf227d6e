"""Tools that this process does not know yet, because the server that has them was never asked here."""

from collections.abc import Iterable

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.state import new_execution
from planwarden.agent.core.tool import ToolDefinition
from planwarden.tools.base import Tool, define
from tests.requirements import requirement
from tests.support.wardens import YES, Ledger, calls, confirm, model_step, plan, says, tool_step, warden

pytestmark = pytest.mark.anyio


class LateListings:
    """One server whose listing comes when the test says so."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.answered = anyio.Event()

    def is_unlisted(self, name: str) -> bool:
        return name.startswith("late_") and not self.answered.is_set()

    async def wait_until_listed(self, names: Iterable[str]) -> None:
        assert list(names) == ["late_note"]
        self.asked.set()
        await self.answered.wait()


def list_tools(w: planwarden.Warden, ledger: Ledger) -> None:
    async def note(arguments: dict[str, JsonValue], _: object) -> object:
        ledger.lines.append(f"late {arguments}")
        return None

    definition = ToolDefinition(name="late_note", description="Write.", input_schema={}, effect="effect", risk="read")
    w.tools.replace_group("late", [Tool(define(definition), note)])


@requirement("downstream:adopted")
@pytest.mark.parametrize(
    ("by", "then", "status"),
    [
        ("plan", "listed", "completed"),
        ("model", "listed", "completed"),
        ("plan", "gone", "failed"),
        ("plan", "cancelled", "cancelled"),
    ],
)
async def test_a_call_and_a_prompt_wait_for_the_listing_of_their_tools(by: str, then: str, status: str) -> None:
    ledger, listings = Ledger(), LateListings()
    step = tool_step("a", "late_note") if by == "plan" else model_step("a", "late_note")
    script: list[JsonValue] | None = None if by == "plan" else [calls(("late_note", {})), says("done")]
    with anyio.fail_after(60):
        async with warden(ledger, script=script) as w:
            list_tools(w, ledger)
            asked = await w.execute_plan(plan(confirm("ask"), step))
            w.tools.replace_group("late", [])
            w.tools.listings = listings
            suspension_id = asked.suspensions[0].suspension_id
            await w.resume_execution(asked.thread_id, suspension_id, YES, wait_seconds=0)
            await listings.asked.wait()
            assert ledger.lines == []
            if then == "cancelled":
                await w.cancel_execution(asked.thread_id)
            else:
                if then == "listed":
                    list_tools(w, ledger)
                listings.answered.set()
            engine = w.service.engine
            await engine.wait(await engine.find(asked.execution_id), 60)
            ended = await w.get_execution(asked.thread_id)
    assert (ended.status, ledger.lines) == (status, ["late {}"] if then == "listed" else [])
    if then == "gone":
        error = ended.steps[1].error
        assert error is not None and "there is no tool 'late_note'" in error.message


async def test_a_change_is_not_missed_whether_it_comes_before_or_after_the_waiting_begins() -> None:
    async with warden(Ledger()) as w:
        asked = await w.execute_plan(plan(tool_step("erase", "erase", {"ids": [1]})), wait_seconds=60)
        engine = w.service.engine
        now = await engine.find(asked.execution_id)
        seen = new_execution(now.execution_id, now.thread_id, now.principal)
        with anyio.fail_after(60):
            assert await engine.wait_for_change(seen) == now
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(w.cancel_execution, asked.thread_id)
                assert (await engine.wait_for_change(now)).version > now.version
