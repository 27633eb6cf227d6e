"""Budgets of rules: calls pass until a budget is spent, then they ask; over all executions, and never twice for one."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition, ToolError
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.rules import build_rule_book
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.memory import MemoryStore
from tests.kit import Decision, decide, governed, plan, requirement, tool_step, warden

pytestmark = pytest.mark.anyio

DAY_S = 86_400


def limited(*budgets: dict[str, JsonValue], tool: str = "pay", before: Sequence[JsonValue] = ()) -> Settings:
    """Calls of the tool pass within these budgets, if no rule before says something else."""
    rule: JsonValue = {"tool": tool, "then": "allow", "budget": [*budgets], "because": "small ones"}
    book, facts = build_rule_book([*before, rule])
    return governed(rules=book, facts={"rules": facts})


SUM: dict[str, JsonValue] = {"sum": "amount", "limit": 500, "per": "day"}
COUNT: dict[str, JsonValue] = {"count": 2, "per": "hour"}


class Till:
    """`pay` is dangerous, `look` only reads."""

    def __init__(self, *faults: Exception | None) -> None:
        self.ledger: list[float] = []
        self.faults = list(faults)

    def tools(self) -> list[object]:
        @planwarden.tool()
        async def pay(amount: float) -> float:
            """Pay."""
            fault = self.faults.pop(0) if self.faults else None
            if fault is not None:
                raise fault
            self.ledger.append(amount)
            return amount

        @planwarden.tool(risk="read", effect="read")
        async def look(amount: float = 0) -> float:
            """Look."""
            self.ledger.append(amount)
            return amount

        return [pay, look]


def pay(amount: float, tool: str = "pay") -> dict[str, JsonValue]:
    return plan(tool_step("a", tool, {"amount": amount}))


async def run(w: planwarden.Warden, *amounts: float, tool: str = "pay") -> list[str]:
    """How plans end that pay one amount each."""
    return [(await w.execute_plan(pay(amount, tool))).status for amount in amounts]


@requirement("rules:budget")
async def test_calls_pass_until_the_budget_is_spent_and_then_ask() -> None:
    till, clock = Till(), ManualClock()
    async with warden(tools=till.tools(), store=MemoryStore(clock), settings=limited(SUM)) as w:
        assert await run(w, 400, 200, 100) == ["completed", "suspended", "completed"]
        asked = await w.execute_plan(pay(1))
        [question] = asked.suspensions
        [found] = [sentence for sentence in question.found if "operator's rule" in sentence]
        assert question.needs == "human"
        assert "500 in 24 hours, of which 0 is left; this call takes 1. There is room again at 20" in found
        # What a person approves takes nothing of it.
        assert (await decide(w, asked)).status == "completed"
        clock.advance(DAY_S)
        assert await run(w, 500, 0.5) == ["completed", "suspended"]
    assert till.ledger == [400, 100, 1, 500]


@requirement("rules:budget")
async def test_each_of_several_budgets_is_kept_also_of_what_only_reads() -> None:
    till, clock = Till(), ManualClock()
    async with warden(tools=till.tools(), store=MemoryStore(clock), settings=limited(SUM, COUNT)) as w:
        assert await run(w, 1, 2, 3) == ["completed", "completed", "suspended"]
        clock.advance(3600)
        assert await run(w, 498, 497, 1) == ["suspended", "completed", "suspended"]
    async with warden(tools=till.tools(), settings=limited(COUNT, tool="look")) as w:
        assert await run(w, 1, 2, 3, tool="look") == ["completed", "completed", "suspended"]


@requirement("rules:budget")
async def test_a_loop_pays_what_there_is_room_for_and_asks_about_the_rest() -> None:
    till = Till()
    amounts: JsonValue = [200, 200, 200, 90, 50]
    item: JsonValue = {"amount": {"$from": "item"}}
    async with warden(tools=till.tools(), settings=limited(SUM)) as w:
        asked = await w.execute_plan(plan(tool_step("a", "pay", item, forEach=amounts, maxConcurrent=5)))
        [question] = asked.suspensions
        assert [(row.arguments or {})["amount"] for row in question.calls] == [200, 50] and till.ledger == [200, 200]
        await decide(w, asked, Decision(approved=True, content={"items": [1]}))
    assert sorted(till.ledger) == [50, 90, 200, 200]


@requirement("rules:budget")
@pytest.mark.parametrize(
    ("fault", "then"),
    [
        (ToolError("busy", retryable=True), "completed"),
        (ToolError("refused"), "suspended"),
        (OutcomeUnknown("lost"), "suspended"),
    ],
    ids=["nothing happened", "failed", "unknown"],
)
async def test_a_failed_call_gives_back_only_if_nothing_happened(fault: Exception, then: str) -> None:
    till = Till(fault)
    async with warden(tools=till.tools(), settings=limited(SUM)) as w:
        assert await run(w, 500) == ["suspended" if isinstance(fault, OutcomeUnknown) else "failed"]
        assert await run(w, 500) == [then]


@requirement("rules:budget")
async def test_a_lost_call_that_did_not_happen_and_must_not_run_gives_its_share_back() -> None:
    till, store = Till(OutcomeUnknown("lost")), MemoryStore()
    async with warden(tools=till.tools(), store=store, settings=limited(SUM)) as w:
        lost = await w.execute_plan(pay(500))
    deny: JsonValue = {"tool": "pay", "when": {"amount": {"min": 500}}, "then": "deny", "because": "too much"}
    async with warden(tools=till.tools(), store=store, settings=limited(SUM, before=[deny])) as w:
        for _ in range(2):
            # The first answer was given under a policy that did not know the call yet.
            open_now = await w.get_execution(lost.thread_id)
            with suppress(StaleDefinition):
                await decide(w, open_now, Decision(approved=True, content={"happened": False}))
        ended = await w.get_execution(lost.thread_id)
        assert ended.error is not None and ended.error.code == "denied"
        assert await run(w, 499) == ["completed"]
    assert till.ledger == [499]
