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

    def is_current(self, definition: ToolDefinition) -> bool:
        """Return False when the process that started last with a tool of this name has another definition of it."""
        ...
