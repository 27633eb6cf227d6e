"""The program of a process that races another one: `tests.race.racer:serve FOLDER URL`.

It reads one JSON command a line and answers each with one line. On a file the clock is shared, so that a deadline
passes for all processes at the moment when one of them says so. Tools write their effects into one ledger.
"""

import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import UsageError
from planwarden.agent.core import events as ev
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.ports.policy import OnceRule
from planwarden.agent.ports.store import Store
from planwarden.server.settings.configuration import Settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.settings.rules import build_rule_book
from planwarden.storage.location import read_location
from planwarden.storage.opening import open_store
from planwarden.storage.sqlite.store import SqliteStore
from tests.harness.clock import SharedClock
from tests.harness.ledger import Ledger
from tests.harness.person import PERSON
from tests.harness.process import say
from tests.harness.team import find_question, start, step
from tests.harness.worker import read_commands
from tests.support.fakes import recording_tool
from tests.support.wardens import plan, tool_step

TASKS = 16
LIMIT = 500
BUDGET: dict[str, JsonValue] = {"sum": "amount", "limit": LIMIT, "per": "day"}
DEADLINE_S = 10.0
ASK: dict[str, JsonValue] = {
    **step("ask", "displayConfirmation", arguments={"action": "Book?", "timeoutSeconds": DEADLINE_S}),
    "confirms": ["book"],
}


def build_settings(home: Path) -> Settings:
    """`refund` happens once per payment; `spend` passes by a rule with a budget, one for each round."""
    rules = [
        {"tool": "spend", "when": {"round": {"in": [number]}}, "then": "allow", "budget": [BUDGET]}
        for number in range(50)
    ]
    book, facts = build_rule_book(rules)
    once = {"refund": OnceRule(("/payment_id",), 86_400.0)}
    return Settings(home=home, policy=OperatorPolicy(rules=book, once=once, facts={"rules": facts}))


class Racer:
    def __init__(self, warden: planwarden.Warden, clock: SharedClock) -> None:
        self._warden, self._engine, self._clock = warden, warden.service.engine, clock

    async def ask(self) -> JsonValue:
        """Return a suspended execution: its id, the question and the deadline."""
        execution = await start(self._engine, ASK, step("book", "book", "ask"), thread_id=self._engine.ids.new())
        question = await find_question(self._engine, execution)
        return [execution.execution_id, question.suspension_id, question.expires_at]

    async def decide(self, execution_id: str, suspension_id: str, deadline: float, seed: int) -> JsonValue:
        """Return what each task that answered was told: `approved`, `rejected`, or the code of the refusal."""
        chance, told = random.Random(seed), list[JsonValue]()
        execution = await self._engine.find(execution_id)
        verdicts = [chance.choice([True, False]) for _ in range(TASKS - 1)]
        async with anyio.create_task_group() as tasks:
            for place in chance.sample(range(TASKS), TASKS):
                if place < len(verdicts):
                    tasks.start_soon(self._answer, execution, suspension_id, verdicts[place], told)
                elif chance.random() < 0.25:
                    # The time-out takes part in a quarter of the races of each process, because it wins most of those.
                    tasks.start_soon(self._let_time_pass, deadline)
        return told

    async def _answer(
        self, execution: ExecutionState, suspension_id: str, approved: bool, told: list[JsonValue]
    ) -> None:
        try:
            await self._engine.answer(execution, suspension_id, Decision(approved=approved), PERSON)
        except UsageError as refusal:
            told.append(refusal.code)
        else:
            told.append("approved" if approved else "rejected")

    async def _let_time_pass(self, deadline: float) -> None:
        self._clock.set(deadline)
        await self._engine.tick()

    async def look(self, execution_id: str, suspension_id: str) -> JsonValue:
        """Return how it ended: the execution's status, the question's, and how many answers the log holds."""
        execution = await self._engine.wait(await self._engine.find(execution_id), 60)
        asked = execution.suspensions[suspension_id]
        verdict = asked.status
        if asked.status == "decided" and asked.decision is not None:
            verdict = "approved" if asked.decision.approved else "rejected"
        recorded = [entry.event for entry in await self._engine.store.read(execution_id)]
        answers = [event for event in recorded if isinstance(event, ev.SuspensionDecided | ev.SuspensionTimedOut)]
        return [execution.status, verdict, len(answers)]

    async def pay(self, number: int) -> JsonValue:
        """Return how often each status was the end of plans that race for the keys and the budget of a round."""
        ended = Counter[str]()
        async with anyio.create_task_group() as tasks:
            for task in range(TASKS):
                once = tool_step("a", "refund", {"payment_id": f"p-{number}-{task % 2}"})
                paid = tool_step("a", "spend", {"round": number, "amount": 100})
                tasks.start_soon(self._run, ended, *((once, paid) if task % 3 else (paid, once)))
        return dict(ended)

    async def _run(self, ended: Counter[str], *steps: dict[str, JsonValue]) -> None:
        for one in steps:
            done = await self._warden.execute_plan(plan(one), wait_seconds=300)
            ended[f"{done.error.code if done.error else done.status}"] += 1


@asynccontextmanager
async def open_race(folder: Path, url: str, clock: SharedClock) -> AsyncGenerator[Store]:
    if url:
        async with open_store(read_location(url)) as store:
            yield store
    else:
        # Time jumps in these races, and an owner that is alive must not look dead for that.
        store = SqliteStore.open(folder / "planwarden.db", clock=clock, lease_s=1e9)
        yield store
        await store.close()


async def serve(folder: Path, url: str = "") -> None:
    ledger, clock = Ledger(folder / "effects"), SharedClock(folder / "clock")

    @planwarden.tool(risk="read", effect="effect")
    async def refund(payment_id: str) -> str:
        """Pay money back."""
        ledger.write("done", key=payment_id, tool="refund")
        return payment_id

    @planwarden.tool()
    async def spend(round: int, amount: float) -> float:
        """Pay."""
        ledger.write("done", key=str(round), tool="spend", value=amount)
        return amount

    tools = [refund, spend, recording_tool(ledger, "book", risk="dangerous")]
    async with (
        open_race(folder, url, clock) as store,
        planwarden.Warden(settings=build_settings(folder), model=CallerModel(), tools=tools, store=store) as warden,
    ):
        racer = Racer(warden, clock)
        commands = {"ask": racer.ask, "decide": racer.decide, "look": racer.look, "pay": racer.pay}
        say("ready")
        async for name, *arguments in read_commands():
            say(await commands[name](*arguments))
