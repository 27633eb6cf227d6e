"""What the servers need of the tool that hands goals to those of them that are agents; `tools/delegate` implements it."""

from collections.abc import Callable
from typing import Protocol

from pydantic import JsonValue

from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import Store
from planwarden.tools.downstream.connection import ServerConnection


class DelegatingEngine(Protocol):
    """The part of the engine that closing questions of agents needs."""

    store: Store

    async def find(self, execution_id: str) -> ExecutionState: ...

    async def withdraw(self, execution: ExecutionState, suspension_id: str, reason: str) -> ExecutionState: ...


class Agents(Protocol):
    def over(
        self, link: Callable[[str], ServerConnection], schema: Callable[[str, str], dict[str, JsonValue] | None]
    ) -> None:
        """Where the agents are reached, and the input schema of a server's tool."""
        ...

    def has_children(self, execution: ExecutionState) -> bool:
        """True when an agent was given a goal of this execution."""
        ...

    async def cancel(self, execution: ExecutionState) -> None:
        """Tell every agent that works for this execution to stop."""
        ...

    async def watch(self, executions: DelegatingEngine) -> None:
        """Close each open question that its agent does not ask any more. Runs until it is cancelled."""
        ...
