"""Who asks for an execution, and the name of the local user."""

from planwarden.agent.common.struct import FrozenStruct
from planwarden.agent.core.execution.events import Starter

LOCAL = "local"
"""The principal of every request without authentication, which comes from somebody who can use this machine."""


class Requester(FrozenStruct, frozen=True, kw_only=False):
    """Who asks for an execution, through which program, and which other executions led to it."""

    principal: str
    """The owner of the execution."""
    client_id: str | None = None
    """The OAuth client; None if the request came without OAuth, or if the issuer does not name the client."""
    host: str | None = None
    """The program, as it names itself, or planwarden's name for a hook, schedule or page; None if there is none."""
    chain: tuple[str, ...] = ()
    """The executions of other agents through which this one was delegated, outermost first, according to the caller."""
    starter: Starter | None = None
    """The person who asks, in a channel of the operator; None when a program asks."""
    is_operator: bool = False
    """Whether the operator sends a plan of their own from a terminal."""
