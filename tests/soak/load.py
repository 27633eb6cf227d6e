"""Plays the scenes side by side, each again and again, until the time is over."""

import random
from collections.abc import Iterable
from itertools import count

import anyio

from tests.server.inbox.support import Browser
from tests.soak.book import Book
from tests.soak.scenes import PAUSES_S, Scene, Visit
from tests.soak.stage import CALLERS, Stage

STUCK_S = 300.0
"""A scene that takes so long will never end."""
SETTLE_S = 180.0


class Load:
    """The load on one stage. What goes wrong is in the book; nothing is raised."""

    def __init__(self, stage: Stage, book: Book, browser: Browser, seed: int) -> None:
        self._stage = stage
        self._book = book
        self._browser = browser
        self._chance = random.Random(seed)
        self._numbers = count()

    async def play_until(self, over: anyio.Event) -> None:
        """Returns when the event was set and the scenes that were being played have ended."""
        async with anyio.create_task_group() as tasks:
            for scene, pause_s in PAUSES_S.items():
                tasks.start_soon(self._repeat, scene, pause_s, over)

    async def play_once(self, scenes: Iterable[Scene]) -> None:
        async with anyio.create_task_group() as tasks:
            for scene in scenes:
                tasks.start_soon(self._play, scene)

    async def settle(self) -> list[str]:
        """Waits until every execution that should end has ended. Returns the goals of those that did not."""
        unfinished = list[str]()
        with anyio.move_on_after(SETTLE_S):
            # Other processes end them, so there is no event to wait for.
            while unfinished := self._book.find_unfinished(await self._stage.read_statuses()):  # noqa: ASYNC110
                await anyio.sleep(1)
        return unfinished

    async def _repeat(self, scene: Scene, pause_s: float, over: anyio.Event) -> None:
        while not over.is_set():
            with anyio.move_on_after(pause_s * self._chance.uniform(0.5, 1.5)):
                await over.wait()
                return
            await self._play(scene)

    async def _play(self, scene: Scene) -> None:
        name = scene.__name__
        goal = f"{name} {next(self._numbers)}"
        caller = self._chance.choice([*CALLERS, None])
        visit = Visit(self._stage, self._book, self._chance, goal, caller, self._browser)
        try:
            with anyio.fail_after(STUCK_S):
                await scene(visit)
            self._book.visits[name] += 1
        # Whatever it is, it is a finding, and the load goes on.
        except Exception as error:  # noqa: BLE001
            self._book.record_failure(goal, error)
