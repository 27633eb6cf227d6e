"""One of the processes that race for decisions: `python -m tests.race.worker FOLDER`.

It reads one JSON command a line and answers each with one line. The clock is a file that all processes share, so that a
deadline passes for all of them at the moment when one of them says so.
"""

import json
import random
import struct
import sys
from mmap import mmap
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import JsonValue

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import UsageError
from planwarden.agent.core import events as ev
from planwarden.agent.core.plan_parser import parse_plan
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.registry import Registry
from tests.crash.scenario import PERSON, PRINCIPAL, engine_on, scenario_tools
from tests.crash.worker import say
from tests.support.fakes import EffectLedger

TASKS = 16
DEADLINE_S = 10.0
PLAN: JsonValue = {
    "todoList": [
        {
            "id": "ask",
            "description": "Ask",
            "toolCalls": [
                {"toolName": "displayConfirmation", "arguments": {"action": "Book?", "timeoutSeconds": DEADLINE_S}}
            ],
            "confirms": ["book"],
        },
        {"id": "book", "description": "Book", "toolCalls": [{"toolName": "book", "arguments": {}}]},
    ]
}


class SharedClock:
    """Unix seconds in a file of eight bytes that every process maps."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap(file.fileno(), 8)

    @staticmethod
    def create(path: Path, now: float = 1_800_000_000.0) -> None:
        path.write_bytes(struct.pack("d", now))

    def now(self) -> float:
        return struct.unpack("d", self._memory[:8])[0]

    def steady(self) -> float:
        return self.now()

    def set(self, now: float) -> None:
        self._memory[:8] = struct.pack("d", now)


class Racer:
    def __init__(self, engine: Engine, clock: SharedClock) -> None:
        self._engine = engine
        self._clock = clock

    async def create(self) -> JsonValue:
        """A suspended execution: its id, the question and the deadline."""
        plan, _ = parse_plan(PLAN, author="caller", tools=self._engine.tool_facts())
        execution = await self._engine.create(
            thread_id=self._engine.ids.new(), requester=Requester(PRINCIPAL), goal=None, plan=plan, options=ev.Options()
        )
        execution = await self._engine.wait(execution, 60)
        [asked] = execution.open_suspensions
        return [execution.execution_id, asked.question.suspension_id, asked.question.expires_at]

    async def race(self, execution_id: str, suspension_id: str, deadline: float, seed: int) -> JsonValue:
        """What each task that answered was told: `approved`, `rejected`, or the code of the refusal."""
        chance, told = random.Random(seed), list[JsonValue]()
        execution = await self._engine.find(execution_id)
        verdicts = [chance.choice([True, False]) for _ in range(TASKS - 1)]
        async with anyio.create_task_group() as tasks:
            for place in chance.sample(range(TASKS), TASKS):
                if place < len(verdicts):
                    tasks.start_soon(self._answer, execution, suspension_id, verdicts[place], told)
                else:
                    tasks.start_soon(self._let_time_pass, deadline, chance.random() < 0.25)
        return told

    async def _answer(
        self, execution: ExecutionState, suspension_id: str, approved: bool, told: list[JsonValue]
    ) -> None:
        decision = Decision(approved=approved)
        try:
            await self._engine.answer(execution, suspension_id, decision, PERSON)
        except UsageError as refusal:
            told.append(refusal.code)
        else:
            told.append("approved" if approved else "rejected")

    async def _let_time_pass(self, deadline: float, really: bool) -> None:
        """The time-out takes part in a quarter of the races of each process, because it wins most of those."""
        if really:
            self._clock.set(deadline)
            await self._engine.tick()

    async def look(self, execution_id: str, suspension_id: str) -> JsonValue:
        """How it ended: the execution's status, the question's, and how many answers the log holds."""
        execution = await self._engine.find(execution_id)
        execution = await self._engine.wait(execution, 60)
        asked = execution.suspensions[suspension_id]
        verdict = asked.status
        if asked.status == "decided" and asked.decision is not None:
            verdict = "approved" if asked.decision.approved else "rejected"
        recorded = [entry.event for entry in await self._engine.store.read(execution_id)]
        answers = [event for event in recorded if isinstance(event, ev.SuspensionDecided | ev.SuspensionTimedOut)]
        return [execution.status, verdict, len(answers)]


async def serve(folder: Path) -> None:
    clock = SharedClock(folder / "clock")
    # Time jumps in these races, and an owner that is alive must not look dead for that.
    store = SqliteStore.open(folder / "planwarden.db", clock=clock, lease_s=1e9)
    tools = Registry(scenario_tools(EffectLedger(folder / "effects")))
    async with engine_on(store, tools, CallerModel()) as engine:
        racer = Racer(engine, clock)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            match json.loads(line):
                case ["create"]:
                    say(await racer.create())
                case ["race", str(execution_id), str(suspension_id), float(deadline), int(seed)]:
                    say(await racer.race(execution_id, suspension_id, deadline, seed))
                case ["look", str(execution_id), str(suspension_id)]:
                    say(await racer.look(execution_id, suspension_id))
                case other:
                    raise AssertionError(other)
    await store.close()


if __name__ == "__main__":
    anyio.run(serve, Path(sys.argv[1]))
