"""Decides whose request runs next: a caller that sends many requests delays its own, not those of other callers.

Only a few tool calls of each caller run at a time; the caller's other calls wait in a line. Calls that become tasks,
and reads of resources, take no turn. A call that runs longer than `WORK_S` probably waits for a person, a tool or a
model, so the caller's next call begins. A caller that is alone never waits.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import msgspec

MAX_AT_ONCE = 2
"""The most requests of one caller that run at a time while another caller sends requests too."""
WORK_S = 1.0
SEEN_S = 2.0
"""How long a caller counts as sending after its last request."""


class _Line(msgspec.Struct):
    """The requests of one caller."""

    at_work: int = 0
    waiting: deque[anyio.Event] = msgspec.field(default_factory=deque[anyio.Event])
    seen_at: float = 0.0


class Turns:
    """The lines of all callers of one server."""

    def __init__(self, work_s: float = WORK_S) -> None:
        self._work_s = work_s
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def take(self, principal: str) -> AsyncGenerator[None]:
        """Wait for the caller's turn, then run the block; the turn ends with the block, or after `work_s` seconds."""
        loop = asyncio.get_running_loop()
        line = self._find_line(principal, loop.time())
        if line.at_work >= MAX_AT_ONCE and len(self._lines) > 1:
            await _wait(line)
        else:
            line.at_work += 1
        # Whichever ends first, the block or the timer, ends the turn. The list makes sure that it ends only once.
        turn = [line]
        timer = loop.call_later(self._work_s, _end, turn)
        try:
            yield
        finally:
            timer.cancel()
            _end(turn)
            line.seen_at = loop.time()

    def _find_line(self, principal: str, now: float) -> _Line:
        """Return the caller's line; forget the lines of callers that no longer send requests."""
        idle = [
            name
            for name, line in self._lines.items()
            if not line.at_work and not line.waiting and now - line.seen_at > SEEN_S
        ]
        for name in idle:
            del self._lines[name]
        line = self._lines.setdefault(principal, _Line())
        line.seen_at = now
        return line


async def _wait(line: _Line) -> None:
    """Wait for a turn, which `at_work` already counts when this function returns."""
    turn = anyio.Event()
    line.waiting.append(turn)
    try:
        await turn.wait()
    except BaseException:
        if turn.is_set():
            _end([line])
        else:
            line.waiting.remove(turn)
        raise


def _end(turn: list[_Line]) -> None:
    if turn:
        line = turn.pop()
        line.at_work -= 1
        if line.waiting and line.at_work < MAX_AT_ONCE:
            line.at_work += 1
            line.waiting.popleft().set()
