"""Rounds on one stage: start plans, let things go wrong, settle, and look at everything that was ever promised."""

import json
import os
import random
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from tests.campaign.chaos import Chaos
from tests.campaign.checks import Checker
from tests.campaign.clients import Refused
from tests.campaign.ledger import Ledger
from tests.campaign.nursery import Nursery
from tests.campaign.people import People
from tests.campaign.plans import random_plan
from tests.campaign.processes import Lost
from tests.campaign.records import Records
from tests.campaign.stage import Server, Stage, open_stage
from tests.campaign.testimony import Testimony

CHAOS_S = 2.0
SETTLE_S = 40.0
IDLE_LOOKS = 5
"""Looks in a row, a tenth of a second apart, at which nothing is left to do."""
ROUND_S = 120.0
MAX_PROCESSES = 4


@dataclass
class Outcome:
    """One round, as one line of the results."""

    seed: int
    round: int
    plant: str | None
    seconds: float = 0.0
    executions: int = 0
    effects: int = 0
    decisions: int = 0
    reconciles: int = 0
    mishaps: list[str] = field(default_factory=list[str])
    breaches: list[str] = field(default_factory=list[str])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def run_stage(
    folder: Path, nursery: Nursery, seed: int, rounds: int, deadline: float, plant: str | None
) -> list[Outcome]:
    """At most `rounds` rounds on one home, drawn from the seed; ends early at the deadline or at the first breach."""
    chance, testimony = random.Random(seed), Testimony()
    outcomes: list[Outcome] = []
    people: People | None = None

    async def answer_form(params: dict[str, Any]) -> dict[str, Any]:
        assert people is not None
        return await people.answer_form(params)

    async with open_stage(folder, nursery, testimony, answer_form, chance, plant) as stage:
        people = People(stage, testimony, chance)
        checker, chaos = Checker(stage, testimony), Chaos(stage, chance)
        for number in range(rounds):
            outcome = Outcome(seed, number, plant)
            outcomes.append(outcome)
            await Round(stage, people, chaos, checker, testimony, chance, outcome).run()
            if outcome.breaches or time.monotonic() > deadline:
                break
    return outcomes


@dataclass
class Round:
    stage: Stage
    people: People
    chaos: Chaos
    checker: Checker
    testimony: Testimony
    chance: random.Random
    outcome: Outcome

    async def run(self) -> None:
        """Fills in the outcome."""
        began, before = time.monotonic(), self._totals()
        self.people.is_hasty, self.chaos.done = False, self.outcome.mishaps
        try:
            with anyio.fail_after(ROUND_S):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.people.answer_all)
                    async with anyio.create_task_group() as acts:
                        acts.start_soon(self.chaos.run, CHAOS_S)
                        for _ in range(self.chance.randrange(2, 5)):
                            acts.start_soon(self._start_plan, random_plan(self.chance))
                    await self._settle()
                    tasks.cancel_scope.cancel()
                self.outcome.breaches = await self.checker.breaches()
        except TimeoutError:
            self.outcome.breaches = ["stuck: the round did not end"]
        after = self._totals()
        self.outcome.executions, self.outcome.effects, self.outcome.decisions, self.outcome.reconciles = (
            late - early for late, early in zip(after, before, strict=True)
        )
        self.outcome.seconds = round(time.monotonic() - began, 2)

    async def _start_plan(self, plan: dict[str, Any]) -> None:
        """Through any server, at any moment of the round."""
        await anyio.sleep(self.chance.random() * CHAOS_S / 2)
        living = self.stage.living()
        if not living:
            return
        with suppress(Lost, Refused, OSError):
            await self._start_at(self.chance.choice(living), plan)

    async def _start_at(self, server: Server, plan: dict[str, Any]) -> None:
        host = server.http or server.stdio
        if host is not None:
            started = await host.call("execute_plan", {"plan": plan, "options": {"waitSeconds": 0}})
            self.testimony.started.append(started["executionId"])
            return
        os.write(server.process.inlet, f"{json.dumps(['', plan])}\n".encode())

    async def _settle(self) -> None:
        """Everything works again, until nothing is left to do or the patience ends."""
        self.people.is_hasty = True
        self.chaos.calm()
        inboxes_first = sorted(self.stage.living(), key=lambda server: server.kind != "http")
        for server in inboxes_first[MAX_PROCESSES:]:
            server.process.terminate()
        records = Records(self.stage.home)
        with anyio.move_on_after(SETTLE_S):
            idle_looks = 0
            # A plan that was handed to a program which stood still begins only now.
            while idle_looks < IDLE_LOOKS:
                idle_looks = 0 if records.unfinished() else idle_looks + 1
                # A server that was ending when the mishaps stopped may be gone only now.
                with suppress(Lost):
                    if not self.stage.living("http"):
                        await self.stage.start("http")
                    elif len(self.stage.living()) < 2:
                        await self.stage.start(self.chance.choice(("stdio", "program")))
                await anyio.sleep(0.1)

    def _totals(self) -> tuple[int, int, int, int]:
        effects, verdicts = len(Ledger(self.stage.folder).lines("done")), len(self.testimony.verdicts)
        return len(Records(self.stage.home).headers()), effects, verdicts, self.testimony.reconciled
