"""Where the engine reads the saved plans that a plan can use."""

from typing import Protocol

from planwarden.agent.core.usable_plans import UsablePlans


class UsablePlanSource(Protocol):
    """The saved plans of a home. What was returned once never changes."""

    async def look(self) -> UsablePlans:
        """Returns what there is now. Raises nothing for what is in a file, and never blocks the event loop."""
        ...
