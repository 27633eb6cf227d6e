"""Who asks for an execution, and the name of the local user."""

from planwarden.agent.common.struct import FrozenStruct
from planwarden.agent.core.execution.events import Starter

LOCAL = "local"
"""The principal of every request without authentication: somebody who can use this machine."""


class Requester(FrozenStruct, frozen=True, kw_only=False):
    """Who asks for an execution, through which program, and for which other executions."""

    principal: str
    """Owns the execution."""
    client_id: str | None = None
    """The OAuth client; None for another channel, or if the issuer does not name it."""
    host: str | None = None
    """The program, as it names itself; None for another channel."""
    chain: tuple[str, ...] = ()
    """The executions of other agents that delegate this one, outermost first, as the caller says."""
    starter: Starter | None = None
    """The person who asks, in a channel of the operator; None when a program asks."""
    is_operator: bool = False
    """The operator sends a plan of their own, at a terminal."""
