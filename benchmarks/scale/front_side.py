"""planwarden's front: it takes commands, and other processes do the work."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchmarks.scale.planwarden_side import Planwarden, ask, make_call, open_warden
from benchmarks.scale.side import ScaleSide
from planwarden.agent.common.struct import JsonValue


class Front(Planwarden):
    """An execution that waits belongs to nobody until a worker takes it after the decision."""

    async def wait(self, name: str) -> str:
        act: dict[str, JsonValue] = {"id": "s1", "description": "Act", "toolCalls": [make_call("act", name)]}
        return await ask(self.warden, {"todoList": [act]})


@asynccontextmanager
async def open_side(url: str) -> AsyncGenerator[ScaleSide]:
    """A process that works on nothing."""
    async with open_warden(url, "front") as warden:
        yield Front(warden)
