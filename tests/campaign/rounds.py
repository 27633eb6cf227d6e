"""Rounds on one stage: start plans, let things go wrong, settle, and look at everything that was ever promised."""

import json
import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from tests.campaign.checks import Checker
from tests.campaign.mishaps import DATABASE_MISHAPS, MISHAPS, Chaos, Mishaps
from tests.campaign.plans import random_plan
from tests.harness.clients import Refused
from tests.harness.ledger import Ledger
from tests.harness.people import People
from tests.harness.process import Lost, Patience, poll
from tests.harness.records import Unreadable
from tests.harness.stage import PAGES, Cast, Kind, Server, SharedDatabase, Stage, open_stage

PATIENCE_OF_PLANTS: dict[str, Patience] = {
    "no-fence": "hasty",
    "shared-no-fence": "hasty",
    "shared-no-death": "product",
}
"""With which patience a planted bug shows."""
MAX_PROCESSES = 4
KILLED = Cast(("http", "program", "stdio"), "usual")
CHAOS_S = 2.0
SETTLE_S = 40.0
IDLE_LOOKS = 5
"""Looks in a row, a tenth of a second apart, at which nothing is left to do."""
ROUND_S = 120.0
GRANTED = 0.7
"""The share of rounds before which a person allows some calls."""
CANCELLED = 0.1
"""The share of plans that somebody cancels."""


@dataclass
class Outcome:
    """One round, as one line of the results."""

    seed: int
    round: int
    plant: str | None
    is_shared: bool = False
    """On PostgreSQL."""
    seconds: float = 0.0
    executions: int = 0
    effects: int = 0
    decisions: int = 0
    reconciles: int = 0
    mishaps: list[str] = field(default_factory=list[str])
    breaches: list[str] = field(default_factory=list[str])


async def run_stage(
    folder: Path,
    seed: int,
    rounds: int,
    deadline: float,
    plant: str | None = None,
    database: SharedDatabase | None = None,
    *,
    cast: Cast | None = None,
    mishaps: Mishaps | None = None,
) -> list[Outcome]:
    """Run at most `rounds` rounds on one home, drawn from the seed, until the deadline or the first breach."""
    chance, outcomes = random.Random(seed), list[Outcome]()
    cast = cast or draw_cast(chance, plant, is_shared=database is not None)
    mishaps = mishaps or (MISHAPS if database is None else DATABASE_MISHAPS)
    async with open_stage(folder, cast, plant, database) as stage:
        people, checker, chaos = People(stage, chance), Checker(stage), Chaos(stage, chance, mishaps)
        for number in range(rounds):
            outcomes.append(Outcome(seed, number, plant, database is not None))
            await Round(stage, people, chaos, checker, chance, outcomes[-1]).run()
            if outcomes[-1].breaches or time.monotonic() > deadline:
                break
        if database is not None and not outcomes[-1].breaches:
            outcomes[-1].breaches = await look_whether_woken_works(stage)
    return outcomes


@dataclass
class Round:
    stage: Stage
    people: People
    chaos: Chaos
    checker: Checker
    chance: random.Random
    outcome: Outcome

    async def run(self) -> None:
        began, before = time.monotonic(), self._totals()
        self.people.is_hasty, self.chaos.done = False, self.outcome.mishaps
        try:
            with anyio.fail_after(ROUND_S):
                if self.chance.random() < GRANTED:
                    await self.people.grant()
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
        await anyio.sleep(self.chance.random() * CHAOS_S / 2)
        living = [server for server in self.stage.living() if server.kind != "worker"]
        if not living:
            return
        key = str(self.chance.randrange(1 << 60)) if self.chance.random() < 0.5 else None
        async with anyio.create_task_group() as tasks:
            for server in self.chance.sample(living, min(len(living), 1 if key is None else 2)):
                tasks.start_soon(self._start_at, server, plan, key)

    async def _start_at(self, server: Server, plan: dict[str, Any], key: str | None) -> None:
        """With a key, other servers are asked for the same as well, and asked again where no answer came."""
        host = server.http or server.stdio
        if host is None:
            with suppress(OSError):
                os.write(server.process.inlet, f"{json.dumps(plan)}\n".encode())
            return
        given = {"plan": plan, "options": {"waitSeconds": 0}, **({} if key is None else {"key": key})}
        with suppress(Lost, Refused, OSError):
            started = await host.call("execute_plan", given)
            self.stage.testimony.started.append(started["executionId"])
            self.stage.testimony.keys.setdefault(key or started["executionId"], set()).add(started["executionId"])
            if self.chance.random() < CANCELLED:
                await self._cancel(started["executionId"], started["threadId"])

    async def _cancel(self, execution_id: str, thread_id: str) -> None:
        await anyio.sleep(self.chance.random())
        servers = [server.http for server in self.stage.living() if server.http is not None]
        if servers:
            found = await self.chance.choice(servers).call("cancel_execution", {"threadId": thread_id})
            if found["status"] in ("running", "suspended", "cancelled"):
                self.stage.testimony.cancelled.append(execution_id)

    async def _settle(self) -> None:
        self.people.is_hasty = True
        self.chaos.calm()
        end_some(self.stage)
        records = self.stage.records
        with anyio.move_on_after(SETTLE_S):
            idle_looks = 0
            # A plan that was handed to a program which stood still begins only now.
            while idle_looks < IDLE_LOOKS:
                with suppress(Unreadable):
                    idle_looks = 0 if records.unfinished() else idle_looks + 1
                # A server that was ending when the mishaps stopped may be gone only now.
                with suppress(Lost):
                    for kind in list_missing(self.stage, self.chance):
                        await self.stage.start(kind)
                await anyio.sleep(0.1)

    def _totals(self) -> tuple[int, int, int, int]:
        effects, verdicts = len(Ledger.of(self.stage.folder).lines("done")), len(self.stage.testimony.verdicts)
        return len(self.stage.records.headers()), effects, verdicts, self.stage.testimony.reconciled


def draw_cast(chance: random.Random, plant: str | None, *, is_shared: bool) -> Cast:
    """Return two to four processes; on a shared database one or two servers, and two or three workers."""
    drawn = chance.random()
    patience: Patience = "hasty" if drawn < 0.5 else "usual"
    if is_shared and drawn < 0.3:
        patience = "product"
    if plant is not None:
        patience = PATIENCE_OF_PLANTS.get(plant, "usual")
    if is_shared:
        return Cast((chance.choice(PAGES), "worker", "worker", chance.choice((*PAGES, "worker"))), patience)
    others: tuple[Kind, ...] = ("stdio", "program", "http")
    return Cast(("http", *chance.sample(others, chance.randrange(1, 4))), patience, has_own_disk=True)


def list_missing(stage: Stage, chance: random.Random) -> list[Kind]:
    """Return what has to start so that everything can be decided and carried out."""
    if stage.database is not None:
        has_page, has_worker = stage.living("http", "front"), stage.living("worker")
        return [*([] if has_page else [chance.choice(PAGES)]), *([] if has_worker else ["worker"])]
    if not stage.living("http"):
        return ["http"]
    return [] if len(stage.living()) >= 2 else [chance.choice(("stdio", "program"))]


def end_some(stage: Stage) -> None:
    """End so many that no more than `MAX_PROCESSES` are left, of each kind that is needed at least one."""
    ordered = sorted(stage.living(), key=lambda server: server.kind != "http")
    if stage.database is not None:
        pages, workers = stage.living("http", "front"), stage.living("worker")
        ordered = [*pages[:1], *workers[:2], *pages[1:], *workers[2:]]
    for server in ordered[MAX_PROCESSES:]:
        server.process.end(signal.SIGTERM)


async def look_whether_woken_works(stage: Stage) -> list[str]:
    """A worker that was stopped and lives has to carry out a plan when it is the only one left."""
    woken = [server for server in stage.living("worker") if server.process.hurts and not server.process.was_ended]
    if not woken:
        return []
    front = await stage.start("front")
    assert front.http is not None
    for server in stage.living():
        if server not in (front, woken[0]):
            server.process.end(signal.SIGTERM)
            with suppress(Lost):
                await server.process.wait(SETTLE_S)
    call = {"toolName": "jot", "arguments": {"amount": 1, "to": "Ada"}}
    plan = {"todoList": [{"id": "s0", "description": "use jot", "toolCalls": [call]}]}
    started = await front.http.call("execute_plan", {"plan": plan, "options": {"waitSeconds": 0}})
    with anyio.move_on_after(SETTLE_S):
        await poll(lambda: not stage.records.unfinished())
        return []
    return [f"idle: worker {woken[0].process.pid} was stopped, and leaves {started['executionId']} undone"]
