"""The processes of a store that several machines share: what each can do, and which of them live."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from planwarden.agent.ports.store import Lookups


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself."""

    owner: str
    """As in leases."""
    role: str
    host: str
    pid: int
    version: str
    started_at: float
    """Unix seconds by the store's clock."""
    policy: str
    """Digest of the policy that it decides under."""
    tools: dict[str, str]
    """Digests of the definitions of its tools, by name."""


def merge_tools(living: Sequence[ProcessFacts]) -> dict[str, str]:
    """Return the digest of the definition that counts, by each tool's name: that of the process that started last with
    it. `living` as `ProcessRegistry.living` returns it."""
    merged: dict[str, str] = {}
    for process in reversed(living):
        merged |= process.tools
    return merged


class ProcessRegistry(Protocol):
    async def publish(self, facts: ProcessFacts) -> None:
        """Say, or say again, what this process can do."""
        ...

    async def living(self) -> tuple[ProcessFacts, ...]:
        """Return what the living processes said, the one that started last first."""
        ...


@runtime_checkable
class HasProcesses(Protocol):
    """A store that several machines may share."""

    @property
    def processes(self) -> ProcessRegistry: ...


def registry_of(store: Lookups) -> ProcessRegistry | None:
    """Return the registry of a shared store; None for a store of one machine."""
    return store.processes if isinstance(store, HasProcesses) else None
