"""Tools that this process does not know yet, because the server that has them was never asked here."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.tool import ToolDefinition
from planwarden.tools.base import Tool, define
from tests.requirements import requirement
from tests.support.wardens import Ledger, calls, confirm, model_step, plan, says, tool_step, warden

pytestmark = [pytest.mark.anyio, requirement("downstream:adopted")]


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


class Late:
    """An execution that was asked to go on, in a process that lost its listing since."""

    def __init__(self, warden: planwarden.Warden, listings: LateListings, ledger: Ledger) -> None:
        self.warden = warden
        self.listings = listings
        self._ledger = ledger

    def list_tools(self) -> None:
        async def note(arguments: dict[str, JsonValue], _: object) -> object:
            self._ledger.lines.append(f"late {arguments}")
            return None

        definition = ToolDefinition(
            name="late_note", description="Write.", input_schema={"type": "object"}, effect="effect", risk="read"
        )
        self.warden.tools.replace_group("late", [Tool(define(definition), note)])

    async def go_on(self, *steps: dict[str, JsonValue]) -> planwarden.Execution:
        """Runs the steps after a question, and answers it when the tool is not known any more."""
        self.list_tools()
        asked = await self.warden.execute_plan(plan(confirm("ask"), *steps))
        self.warden.tools.replace_group("late", [])
        self.warden.tools.listings = self.listings
        yes = planwarden.Decision(approved=True)
        execution = await self.warden.resume_execution(
            asked.thread_id, asked.suspensions[0].suspension_id, yes, wait_seconds=0
        )
        await self.listings.asked.wait()
        return execution

    async def wait(self, execution: planwarden.Execution) -> planwarden.Execution:
        engine = self.warden.service.engine
        await engine.wait(await engine.find(execution.execution_id), 60)
        return await self.warden.get_execution(execution.thread_id)


@asynccontextmanager
async def open_late(ledger: Ledger, script: list[JsonValue] | None = None) -> AsyncGenerator[Late]:
    with anyio.fail_after(60):
        async with warden(ledger, script=script) as made:
            yield Late(made, LateListings(), ledger)


@pytest.mark.parametrize("by", ["plan", "model"])
async def test_a_call_and_a_prompt_wait_for_the_listing_of_their_tools(by: str) -> None:
    ledger = Ledger()
    script: list[JsonValue] = [calls(("late_note", {})), says("done")]
    step = tool_step("a", "late_note") if by == "plan" else model_step("a", "late_note")
    async with open_late(ledger, None if by == "plan" else script) as late:
        execution = await late.go_on(step)
        assert ledger.lines == []
        late.list_tools()
        late.listings.answered.set()
        ended = await late.wait(execution)
        assert ended.status == "completed", ended
    assert ledger.lines == ["late {}"]


async def test_a_call_fails_when_the_listing_came_without_its_tool() -> None:
    async with open_late(Ledger()) as late:
        execution = await late.go_on(tool_step("a", "late_note"))
        late.listings.answered.set()
        ended = await late.wait(execution)
        assert ended.status == "failed" and ended.steps[1].error is not None
        assert "there is no tool 'late_note'" in ended.steps[1].error.message


async def test_an_execution_that_waits_for_a_listing_can_be_cancelled() -> None:
    ledger = Ledger()
    async with open_late(ledger) as late:
        execution = await late.go_on(tool_step("a", "late_note"))
        cancelled = await late.warden.cancel_execution(execution.thread_id)
        assert cancelled.status == "cancelled"
    assert ledger.lines == []
