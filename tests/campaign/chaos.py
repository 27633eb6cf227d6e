"""What goes wrong in a round, and when: drawn from the round's seed before it begins."""

import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import anyio

from tests.campaign.ledger import Ledger
from tests.campaign.manner import Manner, forgive, plan_death
from tests.campaign.processes import Lost, Process
from tests.campaign.seams import CALL_S, LEASE_S, SILENT_S
from tests.campaign.stage import Kind, Stage

SLOW_LIST_S = 1.5
PAUSES_S = (LEASE_S * 1.1, LEASE_S * 2, LEASE_S + CALL_S + 0.7)
"""Shorter than what a living owner is waited for, and, the last one, longer."""
TAKEOVER_S = LEASE_S + SILENT_S + CALL_S
"""Long enough that another process takes over, asks whether the call happened, and is told that it did not."""
START_S = 1.0


@dataclass
class Chaos:
    """Hurts the processes of a stage at random moments."""

    stage: Stage
    chance: random.Random
    done: list[str] = field(default_factory=list[str])
    """The names of what happened."""
    latest_offset_s: float = 0.0
    _offset_s: float = 0.0

    async def run(self, seconds: float) -> None:
        """Two to five mishaps within that time; returns when the last one is over."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self.chance.randrange(2, 6)):
                mishap = self.chance.choices([act for act, _ in MISHAPS], [weight for _, weight in MISHAPS])[0]
                tasks.start_soon(self._cause, mishap, self.chance.random() * seconds)

    async def _cause(self, mishap: Callable[["Chaos"], Awaitable[None]], after_s: float) -> None:
        await anyio.sleep(after_s)
        self.done.append(mishap.__name__)
        await mishap(self)

    def _victim(self) -> Process | None:
        """Any planwarden process that runs now, commands included."""
        running = [process for process in self.stage.launcher.started.values() if not process.has_ended]
        return self.chance.choice(running) if running else None

    async def kill(self) -> None:
        if (victim := self._victim()) is not None:
            victim.kill()
            await self._replace(victim)

    async def end(self) -> None:
        if (victim := self._victim()) is not None:
            victim.terminate()
            await self._replace(victim)

    async def _replace(self, victim: Process) -> None:
        """Often a process of some kind starts instead, sometimes later."""
        await anyio.sleep(self.chance.random())
        if any(server.process is victim for server in self.stage.servers) and self.chance.random() < 0.8:
            kinds: tuple[Kind, ...] = ("http", "stdio", "program")
            with suppress(Lost):
                await self.stage.start(self.chance.choice(kinds))

    async def pause(self) -> None:
        """Stopped for longer than a lease, with or without its downstream servers; others take over in the meantime."""
        if (victim := self._victim()) is not None:
            desks = self.stage.launcher.desks_of(victim.pid) if self.chance.random() < 0.5 else []
            await victim.pause(self.chance.choice(PAUSES_S) * (1 + 0.4 * self.chance.random()), desks)

    async def jump(self) -> None:
        seconds = self.chance.choice((60.0, 60.0, 5.0, -5.0, -60.0))
        self._offset_s += seconds
        self.latest_offset_s = max(self.latest_offset_s, self._offset_s)
        self.stage.clock.jump(seconds)

    async def slow_start(self) -> None:
        """Downstream servers start again and take long to list their tools; their caller is stopped meanwhile."""
        Manner(list_s=SLOW_LIST_S * (0.2 + 0.8 * self.chance.random()), call_s=0.1).write(self.stage.folder)
        before = len(Ledger(self.stage.folder).lines("desk"))
        await self.kill_desks()
        if self.chance.random() < 0.8 and (victim := await self._starter(before)) is not None:
            self.done.append("stop_in_start")
            await victim.pause(TAKEOVER_S * (1 + 0.4 * self.chance.random()), [])

    async def _starter(self, before: int) -> Process | None:
        """A process that starts a downstream server soon: its call is stored, and no tools are listed yet."""
        with anyio.move_on_after(START_S):
            while True:
                for line in Ledger(self.stage.folder).lines("desk")[before:]:
                    parent = self.stage.launcher.started.get(line.facts["parent"])
                    if parent is not None and not parent.has_ended:
                        return parent
                await anyio.sleep(0.02)
        return None

    async def slow_calls(self) -> None:
        Manner(call_s=1.5 * self.chance.random()).write(self.stage.folder)

    async def kill_desks(self) -> None:
        for process in list(self.stage.launcher.started.values()):
            for desk in self.stage.launcher.desks_of(process.pid):
                if self.chance.random() < 0.7:
                    with suppress(ProcessLookupError):
                        os.kill(desk, signal.SIGKILL)

    async def die_in_call(self) -> None:
        plan_death(self.stage.folder, self.chance.choice(("before", "after")))

    async def fill_disk(self) -> None:
        self.stage.fill_disk()
        try:
            await anyio.sleep(0.2 + self.chance.random())
        finally:
            self.stage.free_disk()

    def calm(self) -> None:
        """Everything works again, and the clock shows the latest time that it ever showed."""
        self.stage.free_disk()
        forgive(self.stage.folder)
        Manner().write(self.stage.folder)
        self.stage.clock.jump(self.latest_offset_s - self._offset_s)
        self._offset_s = self.latest_offset_s


MISHAPS: tuple[tuple[Callable[[Chaos], Awaitable[None]], int], ...] = (
    (Chaos.kill, 5),
    (Chaos.pause, 5),
    (Chaos.slow_start, 4),
    (Chaos.jump, 3),
    (Chaos.slow_calls, 2),
    (Chaos.kill_desks, 2),
    (Chaos.die_in_call, 2),
    (Chaos.fill_disk, 2),
    (Chaos.end, 1),
)
