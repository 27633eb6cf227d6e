"""A crash at every store call around a call with a business key and a budget: one effect, and nothing is given back.

After the crash a new process opens the same store, a person answers truthfully from the ledger what became of a call,
and other plans try the same payments once more.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.ports.policy import OnceRule
from planwarden.server.settings.rules import build_rule_book
from tests.harness.fault import MOMENTS, When, crash_at_every_call
from tests.harness.ledger import Ledger
from tests.harness.person import Person
from tests.kit import OperatorPolicy, Settings, plan, requirement, tool_step, warden
from tests.storage.suite import BackEnd
from tests.support.fakes import CrashingStore

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


def pay(payment_id: str, amount: float) -> dict[str, JsonValue]:
    return plan(tool_step("a", "pay", {"payment_id": payment_id, "amount": amount}))


FIRST, FLAKY = pay("p-7", 60), pay("flaky", 30)


class Till:
    """`pay` passes by a rule while its budget has room; the first call of `flaky` fails and does nothing."""

    def __init__(self, folder: Path) -> None:
        self.ledger = Ledger(folder / "effects")
        self.has_failed = False

    def tools(self) -> list[object]:
        @planwarden.tool()
        async def pay(payment_id: str, amount: float, context: planwarden.CallContext) -> str:
            """Pay."""
            if payment_id == "flaky" and not self.has_failed:
                self.has_failed = True
                raise planwarden.ToolError("busy", retryable=True)
            self.ledger.write("done", key=context.idempotency_key, tool=payment_id, value=payment_id)
            return payment_id

        return [pay]

    async def pay(self, back_end: BackEnd, store: CrashingStore) -> None:
        async with warden(tools=self.tools(), store=store, settings=SETTINGS) as dying:
            for document in (FIRST, FIRST, FLAKY):
                await dying.execute_plan(document, wait_seconds=60)

    async def pay_again(self, back_end: BackEnd) -> None:
        store, ends = back_end.connect(), list[str]()
        async with warden(tools=self.tools(), store=store, settings=SETTINGS) as made:
            engine = made.service.engine
            # Nobody lets a spent budget be exceeded.
            person = Person(engine, back_end.clock, self.ledger, approves=False, wait_s=0.2)
            for document in (None, FIRST, FIRST, FLAKY, FLAKY):
                if document is not None:
                    view = await made.execute_plan(document, wait_seconds=60)
                    done = await person.drive(await engine.find(view.execution_id))
                    ends.append(done.error_code or done.status)
                # What the process that died had sent may be stored a moment later, and have the key then.
                for header in await store.executions(None, 10):
                    await person.drive(await engine.find(header.execution_id))
            # 60 and 30 of 100 are taken, whatever happened, and no more.
            assert (await made.execute_plan(pay("p-8", 11), wait_seconds=60)).status == "suspended"
            assert (await made.execute_plan(pay("p-9", 10), wait_seconds=60)).status == "completed"
        assert Counter(self.ledger.tools_run()) == {"p-7": 1, "flaky": 1, "p-9": 1}
        assert "duplicate_effect" in ends


@requirement("rules:once", "rules:budget", "crash:every-call")
@pytest.mark.parametrize(("when", "kind"), MOMENTS)
async def test_a_crash_at_any_store_call_doubles_no_effect_and_refills_no_budget(
    tmp_path: Path, when: When, kind: Callable[[Path], BackEnd]
) -> None:
    await crash_at_every_call(tmp_path, kind, when, Till, Till.pay, Till.pay_again)
