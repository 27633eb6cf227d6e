"""Attempts: what failed by its tool's own word is called again after a durable wait, never what may have run."""

from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.tool import Effect, Risk
from tests.kit import ManualClock, MemoryStore, requirement
from tests.support.wardens import decide, pass_time, plan, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]
STEPS = plan(tool_step("a", "flaky", retry={"attempts": 3, "delayS": 10, "factor": 3}))


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


@requirement("attempts:wait")
async def test_a_call_that_failed_is_made_again_after_longer_and_longer_waits() -> None:
    clock, flaky = ManualClock(), Flaky(failures=2)
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock)) as w:
        now = await w.execute_plan(STEPS)
        assert now.suspensions == () and now.next_action.startswith("Waiting until")
        for seconds, made in ((9, 1), (1, 2), (29, 2), (1, 3)):
            assert now.status == "suspended"
            now = await pass_time(w, clock, now, seconds)
            assert len(flaky.keys) == made
        seen = await w.get_execution(now.thread_id, observations_after=0)
    assert (now.status, now.usage.tool_calls) == ("completed", 3)
    # The tool sees the same key, so that a server can tell an attempt from another call.
    assert len({*flaky.keys}) == 1
    failed = [found.data for found in seen.observations or () if found.data.get("status") == "attempt_failed"]
    assert [found["message"] for found in failed] == ["come back later"] * 2


@requirement("attempts:wait", "attempts:harmless")
@pytest.mark.parametrize(
    ("flaky", "calls"),
    [
        (Flaky(9), 3),
        (Flaky(9, effect="effect"), 1),
        (Flaky(9, effect="effect", retryable=True), 3),
        (Flaky(9, effect="idempotent"), 3),
        (Flaky(9, error=RuntimeError("bug")), 3),
        (Flaky(9, effect="effect", error=RuntimeError("bug")), 1),
    ],
    ids=["read", "effect", "nothing happened", "idempotent", "any error of a read", "any error of an effect"],
)
async def test_an_effect_is_tried_again_only_if_the_tool_says_that_nothing_happened(flaky: Flaky, calls: int) -> None:
    clock = ManualClock()
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock)) as w:
        now = await w.execute_plan(STEPS)
        for _ in range(3):
            now = await pass_time(w, clock, now, 100)
    assert (now.status, len(flaky.keys)) == ("failed", calls)


@requirement("attempts:covered")
async def test_an_approval_shows_and_covers_the_attempts() -> None:
    clock, flaky = ManualClock(), Flaky(failures=2, effect="effect", risk="dangerous", retryable=True)
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock)) as w:
        now = await w.execute_plan(STEPS)
        assert any("3 times at most in all" in sentence for sentence in now.suspensions[0].found)
        now = await decide(w, now)
        for _ in range(2):
            now = await pass_time(w, clock, now, 100)
    assert (now.status, len(flaky.keys)) == ("completed", 3)


@requirement("attempts:wait")
async def test_items_of_a_loop_go_on_while_one_waits_for_its_next_attempt() -> None:
    clock, flaky = ManualClock(), Flaky(failures=1)
    each: Json = {"forEach": [1, 2, 3, 4], "maxConcurrent": 2, "retry": {"attempts": 2, "delayS": 10}}
    async with warden(tools=[flaky.tool()], store=MemoryStore(clock)) as w:
        now = await w.execute_plan(plan(tool_step("a", "flaky", {"number": {"$from": "item"}}, **each)))
        assert (now.status, len(flaky.keys)) == ("suspended", 4)
        done = await pass_time(w, clock, now, 10)
    assert (done.status, done.steps[0].result) == ("completed", [1, 2, 3, 4])
