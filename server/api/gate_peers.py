"""What a process of one machine knows of gates: while one lives, the calls of its server are made by that gate.

The server of a gate may hold state that no other process of it has, such as a browser or a login.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from planwarden.agent.common.errors import StoreError
from planwarden.agent.common.task_groups import run_beside
from planwarden.agent.core.tool import ToolDefinition
from planwarden.storage.gates import RunningGate, RunningGates
from planwarden.tools.downstream.gated_servers import FOLDER

REFRESH_S = 1.0


class GatePeers:
    """Implements `Peers` for a store of one machine. Until `refresh` it knows of no gate."""

    def __init__(self, store: object, home: Path, read_tools: Callable[[Collection[str]], Awaitable[None]]) -> None:
        """`read_tools` reads what the home knows of the tools of such servers."""
        self._gates = RunningGates(store)
        self._folder = home / FOLDER
        self._lock = anyio.Lock()
        self._read_tools = read_tools
        self._living: tuple[RunningGate, ...] = ()
        self._owner: str | None = None
        self.generation = 0
        self.is_outdated = False
        self.knows_tools = False

    async def look_for(self, context: str | None) -> None:
        if context is not None and context not in {gate.owner for gate in self._living}:
            await self.refresh(self._owner)

    def is_current(self, name: str, definition: ToolDefinition | None, context: str | None) -> bool:
        gates = {
            gate.owner
            for gate in self._living
            if (name.startswith(f"{gate.server}_") if gate.server else gate.owner == context)
        }
        # The gate whose host asked makes the call; when it is gone, any other gate of the server.
        return not gates or (self._owner in gates and (context == self._owner or context not in gates))

    async def refresh(self, owner: str | None = None) -> None:
        """Look which gates live; `owner` is this process. Raises `StoreError`."""
        self._owner = owner
        async with self._lock:
            # A home that never had a gate does not ask its store.
            living = await self._gates.list_living() if self._living or self._folder.exists() else ()
            if living != self._living:
                await self._read_tools({gate.server for gate in living if gate.owner != owner})
                self._living = living
                self.generation += 1

    @asynccontextmanager
    async def watch(self, owner: str) -> AsyncGenerator[None]:
        """Look again and again while the block runs; a gate says itself that it runs."""
        await self.refresh(owner)

        async def repeat() -> None:
            while True:
                await anyio.sleep(REFRESH_S)
                try:
                    await self.refresh(owner)
                except StoreError:
                    # The scheduler reports it.
                    continue

        async with run_beside(repeat):
            yield
