"""How one downstream server is doing, as `tools` and `doctor` show it."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from planwarden.tools.downstream.connection import ServerConnection

Health = Literal["ready", "starting", "idle", "down", "disabled"]


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is doing."""

    name: str
    health: Health
    """`idle` means not started, which is no fault: the first call starts it."""
    tools: int
    """Number of its tools in the catalogue."""
    trusted: bool
    reason: str | None = None
    """Why it is down, or what was left out of its listing."""
    log: str | None = None
    """The file with what it wrote to its standard error."""


def describe_health(connection: ServerConnection, notes: Sequence[str], tools: int) -> ServerHealth:
    """`notes` say what was left out of the server's listing; `tools` is the number of its tools in the catalogue."""
    config, state = connection.config, connection.state
    health: Health = "idle" if state == "closed" else state
    if not config.can_start:
        health = "disabled" if config.is_disabled else "down"
    reason = connection.reason if health == "down" else config.problem
    if notes and reason is None:
        reason = notes[0] if len(notes) == 1 else f"{notes[0]} (and {len(notes) - 1} more)"
    path = connection.log.path
    return ServerHealth(
        name=config.name,
        health=health,
        tools=tools,
        trusted=config.settings.trusted,
        reason=reason,
        log=str(path) if path is not None and path.exists() else None,
    )
