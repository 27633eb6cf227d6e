"""Two processes with sixteen tasks each race to approve, reject and time out one question, round after round.

The program of each is `tests.race.racer:serve FOLDER`. It reads one JSON command a line and answers each with one line.
The clock is shared, so that a deadline passes for all processes at the moment when one of them says so. The tool writes
its effects into one ledger.
"""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import anyio
from pydantic import JsonValue

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import UsageError
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.environment import new_id
from planwarden.agent.runtime.engine import Engine
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.builtin.human import DISPLAY_CONFIRMATION
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger, SharedClock
from tests.harness.process import Worker, say
from tests.harness.team import PERSON, engine_on, find_question, start, step
from tests.harness.worker import read_commands
from tests.support.fakes import recording_tool

TASKS = 16
DEADLINE_S = 10.0
ASK: dict[str, JsonValue] = {
    **step("ask", "displayConfirmation", arguments={"action": "Book?", "timeoutSeconds": DEADLINE_S}),
    "confirms": ["book"],
}


class Racer:
    def __init__(self, engine: Engine, clock: SharedClock) -> None:
        self._engine, self._clock = engine, clock

    async def ask(self) -> JsonValue:
        """Return a suspended execution: its id, the question and the deadline."""
        execution = await start(self._engine, ASK, step("book", "book", "ask"), thread_id=new_id())
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


async def serve(folder: Path) -> None:
    clock, book = SharedClock(folder / "clock"), recording_tool(Ledger(folder / "effects"), "book", risk="dangerous")
    # Time jumps in these races, and an owner that is alive must not look dead for that.
    store = SqliteStore.open(folder / "planwarden.db", clock=clock, lease_s=1e9)
    async with engine_on(store, Registry([book, DISPLAY_CONFIRMATION])) as engine:
        racer = Racer(engine, clock)
        commands = {"ask": racer.ask, "decide": racer.decide, "look": racer.look}
        say("ready")
        async for name, *arguments in read_commands():
            say(await commands[name](*arguments))
    await store.close()


ENDS = {"approved": "completed", "rejected": "rejected", "timed_out": "rejected"}


@dataclass(frozen=True, slots=True)
class Report:
    won: Counter[str]
    """How many questions were approved, rejected and timed out."""
    effects: int
    broken: list[str]


def race_again_and_again(folder: Path, rounds: int, seed: int) -> Report:
    """Ask one new question each round, let both processes decide, and look who won and what everybody was told."""
    won, broken, verdicts = Counter[str](), list[str](), dict[str, str]()
    racers = list[Worker]()
    try:
        # One after the other, because the first one makes the tables.
        for _ in range(2):
            racers.append(Worker("tests.race.racer:serve", str(folder)))
            assert racers[-1].read() == "ready"
        for number in range(rounds):
            execution_id, *asked = racers[number % 2].ask(["ask"])
            for index, racer in enumerate(racers):
                racer.send(["decide", execution_id, *asked, seed + 2 * number + index])
            told = {word for racer in racers for word in racer.read()}
            status, verdict, answers = racers[(number + 1) % 2].ask(["look", execution_id, asked[0]])
            won[verdict] += 1
            verdicts[f"{execution_id}:book:1"] = verdict
            if (answers, status) != (1, ENDS.get(verdict)):
                broken.append(f"round {number}: the log holds {answers} answers, {verdict} led to {status}")
            for word in told & ({"approved", "rejected"} - {verdict}):
                broken.append(f"round {number}: somebody was told {word} although it was {verdict}")
        for racer in racers:
            racer.close()
    finally:
        for racer in racers:
            racer.kill()
    effects = Ledger(folder / "effects").effects()
    for key in effects.keys() | verdicts.keys():
        if effects[key] != (verdicts.get(key) == "approved"):
            broken.append(f"{key} happened {effects[key]} times although it was {verdicts.get(key)}")
    return Report(won, effects.total(), broken)
