"""The processes that share a store: this one says what it can do, and sees what the others say."""

import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
from msgspec.structs import replace

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.tool import ToolDefinition
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.toolbox import Toolbox
from planwarden.server.settings.configuration import ProcessRole
from planwarden.storage.ports.processes import ProcessFacts, ProcessRegistry, merge_tools

logger = logging.getLogger(__name__)

REFRESH_S = 2.0
"""Seconds between two looks at what other processes say."""


class StorePeers:
    """Implements `Peers` by what processes publish in the store. Until `refresh` it knows of none."""

    def __init__(self, registry: ProcessRegistry, clock: Clock, tools: Toolbox, policy: str) -> None:
        """`policy` is the digest of the policy of this process."""
        self._registry = registry
        self._clock = clock
        self._tools = tools
        self._policy = policy
        self._current: dict[str, str] = {}
        """Digests of definitions, by the names of the tools that living processes have."""
        self.generation = 0
        self.is_outdated = False

    def is_current(self, definition: ToolDefinition) -> bool:
        return self._current.get(definition.name, definition.digest) == definition.digest

    async def refresh(self, owner: str | None = None) -> None:
        """Read what the living processes say. `owner` is this process, if it said something itself.

        Raises:
            StoreError: the store cannot be read.
        """
        living = await self._registry.living()
        if owner is not None and all(found.owner != owner for found in living):
            # The database has just started, or the sign of life broke for a moment: that says nothing of the others.
            return
        current = merge_tools(living)
        is_outdated = bool(living) and living[0].owner != owner and living[0].policy != self._policy
        if (current, is_outdated) != (self._current, self.is_outdated):
            if is_outdated and not self.is_outdated:
                logger.warning(
                    "%s:%d started later with another policy; this process ends what it has begun and begins nothing",
                    living[0].host,
                    living[0].pid,
                )
            self._current, self.is_outdated = current, is_outdated
            self.generation += 1

    @asynccontextmanager
    async def publish(self, owner: str, role: ProcessRole) -> AsyncGenerator[None]:
        """Says what this process can do, and looks at the others, while the block runs. Raises `StoreError`."""
        facts = ProcessFacts(
            owner=owner,
            role=role,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("planwarden"),
            started_at=self._clock.now(),
            policy=self._policy,
            tools={},
        )
        published = await self._publish(facts, None)
        await self.refresh(owner)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._repeat, published)
            yield
            tasks.cancel_scope.cancel()

    async def _publish(self, facts: ProcessFacts, before: ProcessFacts | None) -> ProcessFacts:
        """Say what has changed since `before`, and return what is said now."""
        tools = {found.name: found.digest for found in self._tools.definitions() if not found.unavailable}
        now = replace(facts, tools=tools)
        if now != before:
            await self._registry.publish(now)
        return now

    async def _repeat(self, published: ProcessFacts) -> None:
        while True:
            await anyio.sleep(REFRESH_S)
            try:
                published = await self._publish(published, published)
                await self.refresh(published.owner)
            except StoreError as error:
                logger.error("%s", error.message)
