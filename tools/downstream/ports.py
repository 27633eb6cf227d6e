"""The parts of the delegation tool (`tools/delegate`) and of the engine that `DownstreamServers` needs."""

from collections.abc import Callable
from typing import Protocol

from pydantic import JsonValue

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Store
from planwarden.tools.downstream.connection import ServerConnection


class DelegatingEngine(Protocol):
    """The part of the engine that closing agents' suspensions needs."""

    store: Store

    async def find(self, execution_id: str) -> ExecutionState: ...

    async def withdraw(self, execution: ExecutionState, suspension_id: str, reason: str) -> ExecutionState: ...


class Agents(Protocol):
    """The tool that hands goals to the servers that are agents."""

    def connect(
        self,
        connection: Callable[[str], ServerConnection],
        input_schema: Callable[[str, str], dict[str, JsonValue] | None],
    ) -> None:
        """Set how to find a server's connection by its name, and a tool's input schema by server and tool."""
        ...

    def has_children(self, execution: ExecutionState) -> bool:
        """True when an agent may still be working on a goal of this execution."""
        ...

    async def cancel(self, execution: ExecutionState) -> None:
        """Tell every agent that works for this execution to stop."""
        ...

    async def watch(self, executions: DelegatingEngine) -> None:
        """Close each open suspension whose agent no longer asks it. Runs until cancelled."""
        ...
