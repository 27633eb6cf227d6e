"""The processes of a store that several machines share: what each can do, and which of them live."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from planwarden.agent.common.errors import StoreError
from planwarden.agent.ports.store import Lookups
from planwarden.storage.sql.database import Database


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says about itself."""

    owner: str
    """As in leases."""
    role: str
    host: str
    pid: int
    version: str
    started_at: float
    """Unix seconds by the store's clock."""
    policy: str
    """Digest of the policy under which it decides."""
    tools: dict[str, str]
    """Digests of the definitions of its tools, by name."""


def merge_tools(living: Sequence[ProcessFacts]) -> dict[str, str]:
    """Return each tool's name with the digest of the definition that counts: that of the process which has the tool and
    started last. `living` is as `ProcessRegistry.living` returns it."""
    merged: dict[str, str] = {}
    for process in reversed(living):
        merged |= process.tools
    return merged


FORGOTTEN_S = 60.0
"""A dead process is forgotten if it announced itself more than this many seconds ago."""


class ProcessRegistry:
    """The processes of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, facts: ProcessFacts) -> None:
        """Store what this process can do, in place of what it stored before; forget dead processes."""
        await self._database.liveness.announce(facts.owner)
        await self._database.execute("publish", (facts.owner, msgspec.json.encode(facts).decode()))
        await self._database.execute("forget_dead", (FORGOTTEN_S,))

    async def living(self) -> tuple[ProcessFacts, ...]:
        """Return the facts of the living processes; the process that started last comes first."""
        rows = await self._database.fetch("processes")
        try:
            processes = [msgspec.json.decode(row[0], type=ProcessFacts) for row in rows]
        except msgspec.MsgspecError as error:
            raise StoreError(f"what a process said about itself is damaged: {error}; restart the processes") from error
        return tuple(sorted(processes, key=lambda facts: (facts.started_at, facts.owner), reverse=True))


@runtime_checkable
class HasProcesses(Protocol):
    """A store that several machines may share."""

    @property
    def processes(self) -> ProcessRegistry: ...


def registry_of(store: Lookups) -> ProcessRegistry | None:
    """Return the registry of a shared store; None for a store of one machine."""
    return store.processes if isinstance(store, HasProcesses) else None
