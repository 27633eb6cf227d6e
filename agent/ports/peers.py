"""What the engine asks of the other processes that share its store."""

from typing import Protocol

from planwarden.agent.core.tool import ToolDefinition


class Peers(Protocol):
    """What is known of them; it may be some seconds old."""

    @property
    def generation(self) -> int:
        """Grows when anything said here changes."""
        ...

    @property
    def is_outdated(self) -> bool:
        """The process that started last runs under another policy than this one."""
        ...

    @property
    def knows_tools(self) -> bool:
        """A tool that is not here may be in another process, which then continues what needs it."""
        ...

    async def look_for(self, context: str | None) -> None:
        """Learn of a process that began a moment ago, if `context` of an execution may name it. Raises `StoreError`."""

    def is_current(self, name: str, definition: ToolDefinition | None, context: str | None) -> bool:
        """Return False when another process must make the calls of the tool of this name, because it has another
        definition than this process, or state that this process has not. `context` is that of the execution."""
        ...
