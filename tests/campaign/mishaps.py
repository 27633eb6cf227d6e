"""What goes wrong in a round, and when: drawn from the round's seed before it begins."""

import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread

from tests.harness.ledger import DIE_AFTER, DIE_BEFORE, STAND_STILL, Ledger, Manner, is_stopped, plan, take
from tests.harness.process import Lost, Process, poll
from tests.harness.seams import CALL_S, LEASE_S, SILENT_S
from tests.harness.stage import PAGES, Kind, Stage

SLOW_LIST_S = 1.5
PAUSES_S = (LEASE_S * 1.1, LEASE_S * 2, LEASE_S + CALL_S + 0.7)
"""Shorter than what a living owner is waited for, and, the last one, longer."""
CUT_PAUSES_S = (1.0, 3.0, 4.5)
"""Shorter and longer than a process is waited for whose sign of life is gone."""
TAKEOVER_S = LEASE_S + SILENT_S + CALL_S
"""Long enough that another process takes over, asks whether the call happened, and is told that it did not."""
START_S = 1.0
STAND_S = 2.0
"""For how long a process is awaited that begins something."""


@dataclass
class Chaos:
    stage: Stage
    chance: random.Random
    mishaps: "Mishaps"
    done: list[str] = field(default_factory=list[str])
    """The names of what happened."""
    latest_offset_s: float = 0.0
    _offset_s: float = 0.0
    _restarting: anyio.Lock = field(default_factory=anyio.Lock)
    _standing: anyio.Lock = field(default_factory=anyio.Lock)

    async def run(self, seconds: float) -> None:
        """Two to five mishaps within that time; returns when the last one is over."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self.chance.randrange(2, 6)):
                [mishap] = self.chance.choices(list(self.mishaps), list(self.mishaps.values()))
                tasks.start_soon(self._cause, mishap, self.chance.random() * seconds)

    async def _cause(self, mishap: Callable[["Chaos"], Awaitable[None]], after_s: float) -> None:
        await anyio.sleep(after_s)
        self.done.append(mishap.__name__)
        await mishap(self)

    def _victim(self) -> Process | None:
        running = [process for process in self.stage.launcher.started.values() if not process.has_ended]
        return self.chance.choice(running) if running else None

    async def kill(self) -> None:
        if (victim := self._victim()) is not None:
            victim.end(signal.SIGKILL)
            await self._replace(victim)

    async def end(self) -> None:
        if (victim := self._victim()) is not None:
            victim.end(signal.SIGTERM)
            await self._replace(victim)

    async def _replace(self, victim: Process) -> None:
        """Often a process of some kind starts instead, sometimes later."""
        await anyio.sleep(self.chance.random())
        kinds: list[Kind] = [server.kind for server in self.stage.servers if server.process is victim]
        if kinds and self.chance.random() < 0.8:
            others: tuple[Kind, ...] = ("http", "stdio", "program")
            if self.stage.database is not None:
                others = ("worker",) if kinds[0] == "worker" else PAGES
            with suppress(Lost):
                await self.stage.start(self.chance.choice(others))

    async def pause(self) -> None:
        """Stopped for longer than a lease, with or without its downstream servers; others take over in the meantime."""
        if (victim := self._victim()) is not None:
            desks = self.stage.launcher.desks_of(victim.pid) if self.chance.random() < 0.5 else []
            await victim.pause(self.chance.choice(PAUSES_S) * (1 + 0.4 * self.chance.random()), *desks)

    async def jump(self) -> None:
        seconds = self.chance.choice((60.0, 60.0, 5.0, -5.0, -60.0))
        self._offset_s += seconds
        self.latest_offset_s = max(self.latest_offset_s, self._offset_s)
        self.stage.clock.jump(seconds)

    async def slow_start(self) -> None:
        """Downstream servers start again and take long to list their tools; their caller is stopped meanwhile."""
        Manner(list_s=SLOW_LIST_S * (0.2 + 0.8 * self.chance.random()), call_s=0.1).write(self.stage.folder)
        before = len(Ledger.of(self.stage.folder).lines("desk"))
        await self.kill_desks()
        if self.chance.random() < 0.8 and (victim := await self._starter(before)) is not None:
            self.done.append("stop_in_start")
            await victim.pause(TAKEOVER_S * (1 + 0.4 * self.chance.random()))

    async def _starter(self, before: int) -> Process | None:
        """A process that starts a downstream server soon: its call is stored, and no tools are listed yet."""

        def find() -> list[Process]:
            lines = Ledger.of(self.stage.folder).lines("desk")[before:]
            parents = [self.stage.launcher.started.get(line.facts["parent"]) for line in lines]
            return [parent for parent in parents if parent is not None and not parent.has_ended]

        with anyio.move_on_after(START_S):
            return (await poll(find))[0]
        return None

    async def stand_still(self) -> None:
        """A process stops between its promise to call a tool and the call; it goes on when others have settled it."""
        if (victim := await self._stand_still()) is not None:
            await victim.pause(TAKEOVER_S * (1 + 0.4 * self.chance.random()))

    async def die_before_call(self) -> None:
        """A process ends between its promise to call a tool and the call."""
        if (victim := await self._stand_still()) is not None:
            victim.end(signal.SIGKILL)
            await self._replace(victim)

    async def _stand_still(self) -> Process | None:
        """The process that stopped itself before a call; None when no call came soon."""
        async with self._standing:
            before = len(Ledger.of(self.stage.folder).lines("stands"))
            plan(self.stage.folder, STAND_STILL)
            with anyio.move_on_after(STAND_S):
                await poll(lambda: self._list_standing(before))
            if take(self.stage.folder, STAND_STILL):
                return None
            # It was found, and what found it may be about to say so.
            with anyio.move_on_after(STAND_S):
                return (await poll(lambda: self._list_standing(before)))[0]
            return None

    def _list_standing(self, before: int) -> list[Process]:
        """Those that stand still already; who only says so would stop again after it was told to go on."""
        lines = Ledger.of(self.stage.folder).lines("stands")[before:]
        return [self.stage.launcher.started[line.pid] for line in lines if is_stopped(line.pid)]

    async def slow_calls(self) -> None:
        Manner(call_s=1.5 * self.chance.random()).write(self.stage.folder)

    async def kill_desks(self) -> None:
        for process in list(self.stage.launcher.started.values()):
            for desk in self.stage.launcher.desks_of(process.pid):
                if self.chance.random() < 0.7:
                    with suppress(ProcessLookupError):
                        os.kill(desk, signal.SIGKILL)

    async def die_in_call(self) -> None:
        plan(self.stage.folder, self.chance.choice((DIE_BEFORE, DIE_AFTER)))

    async def fill_disk(self) -> None:
        self.stage.fill_disk()
        try:
            await anyio.sleep(0.2 + self.chance.random())
        finally:
            self.stage.free_disk()

    async def cut(self) -> None:
        """The database ends connections of a process, often only the one that is its sign of life."""
        if self.stage.database is not None and (victim := self._victim()) is not None:
            only_control = self.chance.random() < 0.6
            await anyio.to_thread.run_sync(partial(self.stage.database.cut, victim.pid, only_control=only_control))

    async def cut_and_pause(self) -> None:
        """A machine stands still, and the database gives its connections up: its sign of life is gone."""
        if self.stage.database is not None and (victim := self._victim()) is not None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(victim.pause, self.chance.choice(CUT_PAUSES_S))
                await anyio.sleep(0.1)
                await anyio.to_thread.run_sync(partial(self.stage.database.cut, victim.pid, only_control=False))

    async def restart(self) -> None:
        if self.stage.database is not None:
            async with self._restarting:
                mode = self.chance.choice(("fast", "immediate"))
                await anyio.to_thread.run_sync(self.stage.database.restart, mode)

    def calm(self) -> None:
        """Everything works again, and the clock shows the latest time that it ever showed."""
        self.stage.free_disk()
        for mishap in (DIE_BEFORE, DIE_AFTER):
            take(self.stage.folder, mishap)
        for process in self.stage.launcher.started.values():
            # Two who stop the same one may both be too early.
            process.send_signal(signal.SIGCONT)
        Manner().write(self.stage.folder)
        self.stage.clock.jump(self.latest_offset_s - self._offset_s)
        self._offset_s = self.latest_offset_s


Mishaps = dict[Callable[[Chaos], Awaitable[None]], int]
"""How often each is drawn."""
KILLS: Mishaps = {Chaos.kill: 3, Chaos.die_before_call: 1}
MISHAPS: Mishaps = {
    Chaos.kill: 5,
    Chaos.pause: 5,
    Chaos.slow_start: 4,
    Chaos.stand_still: 3,
    Chaos.die_before_call: 2,
    Chaos.jump: 3,
    Chaos.slow_calls: 2,
    Chaos.kill_desks: 2,
    Chaos.die_in_call: 2,
    Chaos.fill_disk: 2,
    Chaos.end: 1,
}
DATABASE_MISHAPS: Mishaps = {
    **{mishap: weight for mishap, weight in MISHAPS.items() if mishap not in (Chaos.jump, Chaos.fill_disk)},
    Chaos.stand_still: 4,
    Chaos.die_before_call: 3,
    Chaos.cut: 4,
    Chaos.cut_and_pause: 3,
    Chaos.restart: 2,
}
