"""What the runner asks of every side, and how it runs executions at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

IN_FLIGHT = 100
"""Executions at once when they are concurrent."""


class Side(Protocol):
    """One system under measurement."""

    async def run(self, count: int, *, concurrent: bool) -> None:
        """Runs whole executions, suspension and approval included."""
        ...

    async def suspend(self, count: int) -> list[tuple[str, str]]:
        """Runs executions up to the question; returns their thread and suspension ids."""
        ...


class Executions:
    """A side made of two coroutine functions, one execution each."""

    def __init__(
        self, run_one: Callable[[], Awaitable[object]], suspend_one: Callable[[], Awaitable[tuple[str, str]]]
    ) -> None:
        self._run_one = run_one
        self._suspend_one = suspend_one

    async def run(self, count: int, *, concurrent: bool) -> None:
        if concurrent:
            await together(self._run_one, count)
            return
        for _ in range(count):
            await self._run_one()

    async def suspend(self, count: int) -> list[tuple[str, str]]:
        return await together(self._suspend_one, count)


async def together(make: Callable[[], Awaitable[Result]], count: int) -> list[Result]:
    """Runs `count` of them, `IN_FLIGHT` at a time."""
    found: list[Result] = []
    for start in range(0, count, IN_FLIGHT):
        found.extend(await asyncio.gather(*(make() for _ in range(min(IN_FLIGHT, count - start)))))
    return found
