"""Attempts: what failed by its tool's own word is called again after a durable wait, never what may have run."""

from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidPlan, ToolError
from planwarden.agent.core.tool import Effect, Risk
from planwarden.server.views.execution import Execution
from planwarden.storage.clock import ManualClock
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.support.wardens import plan, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
RETRY: Json = {"attempts": 3, "delayS": 10, "factor": 3}
HUMAN = Authority(assurance="human", channel="inbox", principal="local")


@dataclass
class Flaky:
    """A tool that fails for its first calls."""

    failures: int
    effect: Effect = "read"
    risk: Risk = "read"
    retryable: bool = False
    error: Exception | None = None
    keys: list[str] = field(default_factory=list[str])

    def tool(self) -> object:
        @planwarden.tool(name="flaky", risk=self.risk, effect=self.effect)
        async def flaky(context: planwarden.CallContext, number: int = 0) -> int:
            """Fails for a while."""
            self.keys.append(context.idempotency_key)
            if len(self.keys) <= self.failures:
                raise self.error or ToolError("come back later", retryable=self.retryable)
            return number

        return flaky


async def pass_time(w: planwarden.Warden, clock: ManualClock, execution: Execution, seconds: float) -> Execution:
    clock.advance(seconds)
    await w.service.engine.tick()
    engine = w.service.engine
    await engine.wait(await engine.find(execution.execution_id), 60)
    return await w.get_execution(execution.thread_id)


@requirement("attempts:wait")
async def test_a_call_that_failed_is_made_again_after_longer_and_longer_waits() -> None:
    clock, flaky = ManualClock(), Flaky(failures=2)
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock=clock)) as w:
        first = await w.execute_plan(plan(tool_step("a", "flaky", retry=RETRY)))
        assert (first.status, first.suspensions, len(flaky.keys)) == ("suspended", (), 1)
        assert first.next_action.startswith("Waiting until")
        early = await pass_time(w, clock, first, 9)
        assert (early.status, len(flaky.keys)) == ("suspended", 1)
        second = await pass_time(w, clock, first, 1)
        assert (second.status, len(flaky.keys)) == ("suspended", 2)
        assert (await pass_time(w, clock, first, 29)).status == "suspended"
        done = await pass_time(w, clock, first, 1)
        seen = await w.get_execution(first.thread_id, observations_after=0)
    assert (done.status, done.usage.tool_calls) == ("completed", 3)
    # The tool sees the same key, so that a server can tell an attempt from another call.
    assert len({*flaky.keys}) == 1
    failed = [found.data for found in seen.observations or () if found.data.get("status") == "attempt_failed"]
    assert [found["message"] for found in failed] == ["come back later"] * 2


@requirement("attempts:wait")
async def test_after_the_last_attempt_the_step_has_failed() -> None:
    clock, flaky = ManualClock(), Flaky(failures=9)
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock=clock)) as w:
        execution = await w.execute_plan(plan(tool_step("a", "flaky", retry=RETRY)))
        for _ in range(3):
            execution = await pass_time(w, clock, execution, 100)
    assert (execution.status, len(flaky.keys)) == ("failed", 3)


@requirement("attempts:harmless")
@pytest.mark.parametrize(
    ("flaky", "calls"),
    [
        (Flaky(9, effect="effect"), 1),
        (Flaky(9, effect="effect", retryable=True), 2),
        (Flaky(9, effect="idempotent"), 2),
        (Flaky(9, error=RuntimeError("bug")), 2),
        (Flaky(9, effect="effect", error=RuntimeError("bug")), 1),
    ],
    ids=["effect", "nothing happened", "idempotent", "any error of a read", "any error of an effect"],
)
async def test_an_effect_is_tried_again_only_if_the_tool_says_that_nothing_happened(flaky: Flaky, calls: int) -> None:
    clock = ManualClock()
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock=clock)) as w:
        execution = await w.execute_plan(plan(tool_step("a", "flaky", retry=RETRY)))
        if execution.status == "suspended":
            await pass_time(w, clock, execution, 10)
    assert len(flaky.keys) == calls


@requirement("attempts:covered")
async def test_an_approval_shows_and_covers_the_attempts() -> None:
    clock, flaky = ManualClock(), Flaky(failures=2, effect="effect", risk="dangerous", retryable=True)
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock=clock)) as w:
        asked = await w.execute_plan(plan(tool_step("a", "flaky", retry=RETRY)))
        [question] = asked.suspensions
        assert any("3 times at most in all" in sentence for sentence in question.found)
        await w.service.answer(
            asked.thread_id, question.suspension_id, Decision(approved=True), HUMAN, wait_seconds=60, principal="local"
        )
        for _ in range(2):
            asked = await pass_time(w, clock, asked, 100)
    assert (asked.status, len(flaky.keys)) == ("completed", 3)


@requirement("attempts:wait")
async def test_items_of_a_loop_go_on_while_one_waits_for_its_next_attempt() -> None:
    clock, flaky = ManualClock(), Flaky(failures=1)
    step = tool_step("a", "flaky", {"number": {"$from": "item"}}, retry=RETRY, forEach=[1, 2, 3, 4], maxConcurrent=2)
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock=clock)) as w:
        execution = await w.execute_plan(plan(step))
        assert (execution.status, len(flaky.keys)) == ("suspended", 4)
        done = await pass_time(w, clock, execution, 10)
    assert (done.status, done.steps[0].result) == ("completed", [1, 2, 3, 4])


@requirement("attempts:wait")
@pytest.mark.parametrize(
    "retry", [{"attempts": 1}, {"attempts": 21}, {"attempts": 2, "delayS": -1}, {"attempts": 2, "factor": 0}, 3, {}]
)
async def test_attempts_that_make_no_sense_are_a_fault_of_the_plan(retry: JsonValue) -> None:
    async with warden(tools=[Flaky(0).tool()]) as w:
        with pytest.raises(InvalidPlan, match="retry"):
            await w.execute_plan(plan(tool_step("a", "flaky", retry=retry)))
