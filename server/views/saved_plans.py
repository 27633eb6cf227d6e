"""The view of a saved plan: a line of the list of plans."""

import msgspec

from planwarden.agent.common.struct import JsonValue


class SavedPlanLine(msgspec.Struct, frozen=True, kw_only=True):
    """A saved plan, without its steps."""

    name: str
    """What `run_plan` takes."""
    title: str | None
    """For people, or null."""
    description: str | None
    """What it does and when to use it, or null."""
    inputs: dict[str, JsonValue] | None
    """JSON Schema of what a run is given; null for a plan that takes nothing."""
    version: str
    """Digest of its content."""
    source: str
    """`home`, or the folder as `[plans] folders` names it."""
