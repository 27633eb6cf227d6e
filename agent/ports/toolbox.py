"""How the engine looks up and calls the tools that exist now."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from planwarden.agent.common.artifact import ResultWithArtifacts
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Path
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition


class Definitions(Protocol):
    """The definitions of the tools that exist now."""

    def get(self, name: str) -> ToolDefinition | None: ...


class Toolbox(Definitions, Protocol):
    """The tools that exist now."""

    def is_awaited(self, name: str) -> bool:
        """Return True while the tool is unknown and may still appear; `wait_for_tools` waits for that."""
        ...

    async def wait_for_tools(self, names: Iterable[str]) -> None:
        """Wait, for a limited time, until `is_awaited` is False for all of these tools."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """Return all tools, even unavailable ones, sorted by name: the same sequence object until something changes."""
        ...

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, which must not raise, after each change, until the returned function is called."""
        ...

    def find_former(self, digest: str) -> ToolDefinition | None:
        """Return a definition from before a tool changed, found by the beginning of its digest; None when this process
        does not know it."""
        ...

    def search(self, query: str, limit: int) -> Sequence[ToolDefinition]:
        """Return the tools that match, best first; without a query the first by name."""
        ...

    def complete(self, name: str, arguments: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
        """Return the arguments with schema defaults filled in, and every fault that the schema finds in them."""
        ...

    def check(
        self, name: str, arguments: dict[str, JsonValue], unknown: Collection[Path], limit: int
    ) -> tuple[tuple[str, ...], int]:
        """Return the faults that remain whatever values come to the `unknown` paths (null for now), and the work spent.
        A check that takes more work than `limit` returns no faults; see `Schema.find_certain_faults`."""
        ...

    def question(self, name: str, arguments: Mapping[str, JsonValue]) -> Suspend | None:
        """Return the question of a tool that only asks; None for any other tool."""
        ...

    def resumes(self, name: str) -> bool:
        """Return True when the tool has its own function, `on_resume`, that turns the decision into the result."""
        ...

    async def call(
        self, name: str, arguments: dict[str, JsonValue], context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        """Run the tool. Every failure of the tool is a `ToolError`; the result is JSON of at most `INLINE_BYTES`.

        Raises:
            StaleDefinition: the tool no longer has the definition `context.definition_digest`; nothing was run.
        """
        ...

    async def resume(
        self, name: str, payload: JsonValue, decision: JsonValue, context: CallContext
    ) -> JsonValue | ResultWithArtifacts | Suspend:
        """Give the tool the decision on its call's question; return the call's result or its next question."""
        ...
