"""The job on LangGraph with its PostgreSQL checkpointer: `benchmarks.langgraph_peer.step_nodes`, durability "sync".

A saver lets one statement run at a time, so each process has several savers, each with a connection of its own.
"""

# LangGraph ships no stubs for pyright; what is used of it is cast to `Program`.
# pyright: reportMissingTypeStubs=false

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from benchmarks.langgraph_peer import run_one, step_nodes
from benchmarks.scale.side import ScaleSide, run_closed

SAVERS = 4


class LangGraph:
    """Implements `ScaleSide`, as far as LangGraph has it: no process knows of another one's threads."""

    def __init__(self, savers: list[AsyncPostgresSaver]) -> None:
        self._programs = cycle([step_nodes(saver) for saver in savers])

    async def run(self, seconds: float, at_once: int) -> int:
        return await run_closed(lambda: run_one(*next(self._programs)), seconds, at_once)

    async def wait(self, name: str) -> str:
        raise NotImplementedError("a thread waits in no process")

    async def decide(self, waiting: str) -> None:
        raise NotImplementedError("a thread waits in no process")

    async def hold(self, name: str) -> None:
        raise NotImplementedError("nobody takes a thread over")


@asynccontextmanager
async def open_side(url: str) -> AsyncGenerator[ScaleSide]:
    """Graphs on savers of their own."""
    async with AsyncExitStack() as stack:
        savers = [await stack.enter_async_context(AsyncPostgresSaver.from_conn_string(url)) for _ in range(SAVERS)]
        await savers[0].setup()
        yield LangGraph(savers)
