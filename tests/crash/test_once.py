"""A crash at every store call around a call with a business key and a budget: one effect, and nothing is given back.

After the crash a new process opens the same store, a person answers truthfully from the ledger what became of a call,
and other plans try the same payments once more.
"""

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Literal

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.rules import build_rule_book
from tests.crash.moments import MOMENTS
from tests.requirements import requirement
from tests.storage.suite import Memory, Postgres, Sqlite
from tests.support.fakes import Crash, CrashingStore
from tests.support.wardens import plan, tool_step, warden

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("only_turns_that_are_asked_for")]

RULE: dict[str, JsonValue] = {
    "tool": "pay",
    "then": "allow",
    "budget": [{"sum": "amount", "limit": 100, "per": "day"}],
}
BOOK, FACTS = build_rule_book([RULE])
SETTINGS = Settings(
    home=Path("/nonexistent"),
    policy=OperatorPolicy(rules=BOOK, once={"pay": OnceRule(("/payment_id",), 86_400.0)}, facts={"rules": FACTS}),
)


class Till:
    """`pay` passes by a rule while its budget has room; the first call of `flaky` fails and does nothing."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.has_failed = False

    def tools(self) -> list[object]:
        @planwarden.tool()
        async def pay(payment_id: str, amount: float) -> str:
            """Pay."""
            if payment_id == "flaky" and not self.has_failed:
                self.has_failed = True
                raise planwarden.ToolError("busy", retryable=True)
            self.ledger.append(payment_id)
            return payment_id

        return [pay]

    async def answer(self, made: planwarden.Warden, view: planwarden.Execution) -> None:
        """What a person says who looked at the ledger; of a spent budget, no."""
        [question] = view.suspensions
        assert question.tool_call is not None
        name = question.tool_call.arguments["payment_id"]
        decision = Decision(approved=False)
        if question.kind == "reconcile":
            content: JsonValue = {"happened": True, "result": name} if name in self.ledger else {"happened": False}
            decision = Decision(approved=True, content=content)
        await made.resume_execution(view.thread_id, question.suspension_id, decision)


def pay(payment_id: str, amount: float, **extra: JsonValue) -> dict[str, JsonValue]:
    return plan(tool_step("a", "pay", {"payment_id": payment_id, "amount": amount}, **extra))


FIRST = pay("p-7", 60)
FLAKY = pay("flaky", 30)


async def finish(till: Till, back_end: Memory | Sqlite | Postgres, made: planwarden.Warden, thread_id: str) -> str:
    """The code or the status when a process that is left in peace has brought it to its end."""
    while True:
        view = await made.get_execution(thread_id)
        if view.status == "running":
            back_end.clock.advance(30)
            engine = made.service.engine
            await engine.tick()
            await engine.wait(await engine.find(view.execution_id), 0.2)
        elif view.status == "suspended":
            await till.answer(made, view)
        else:
            return view.error.code if view.error is not None else view.status


@requirement("rules:once", "rules:budget", "crash:every-call")
@pytest.mark.parametrize(("when", "kind"), MOMENTS)
async def test_a_crash_at_any_store_call_doubles_no_effect_and_refills_no_budget(
    tmp_path: Path, when: Literal["before", "after"], kind: type[Memory | Sqlite | Postgres]
) -> None:
    for at in count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        back_end, till = kind(folder), Till()
        try:
            crashing = CrashingStore(back_end.connect(), at=at, when=when)
            try:
                async with warden(tools=till.tools(), store=crashing, settings=SETTINGS) as dying:
                    for document in (FIRST, FIRST, FLAKY):
                        await dying.execute_plan(document, wait_seconds=60)
            except* Crash:
                pass
            except* planwarden.PlanwardenError:
                assert crashing.is_dead
            with anyio.fail_after(120):
                store = back_end.connect()
                async with warden(tools=till.tools(), store=store, settings=SETTINGS) as made:
                    ends = Counter[str]()
                    for document in (None, FIRST, FIRST, FLAKY, FLAKY):
                        if document is not None:
                            view = await made.execute_plan(document, wait_seconds=60)
                            ends[await finish(till, back_end, made, view.thread_id)] += 1
                        # What the process that died had sent may be stored a moment later, and have the key then.
                        for header in await store.executions(None, 10):
                            await finish(till, back_end, made, header.thread_id)
                    # 60 and 30 of 100 are taken, whatever happened, and no more.
                    full = await made.execute_plan(pay("p-8", 11), wait_seconds=60)
                    assert full.status == "suspended", at
                    fits = await made.execute_plan(pay("p-9", 10), wait_seconds=60)
                    assert fits.status == "completed", at
            assert Counter(till.ledger) == {"p-7": 1, "flaky": 1, "p-9": 1}, at
            assert ends["duplicate_effect"] >= 1, at
        finally:
            await back_end.close()
        if not crashing.is_dead:
            assert at > 8
            return
