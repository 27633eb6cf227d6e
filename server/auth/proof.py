"""Decides which assurance an OAuth login has."""

from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority
from planwarden.agent.core.execution.state import ExecutionState

OAUTH_CHANNEL = "oauth"
"""Channel of decisions that only an OAuth login proves."""


def assess_authority(authority: Authority, execution: ExecutionState) -> Authority:
    """Return the authority with the assurance that its channel has for this execution.

    An OAuth login proves a person only if its client does not drive the execution: such a client holds a token of the
    same person and could decide with it. Without a client id, a login is not accepted: it could be such a client.
    """
    if authority.channel != OAUTH_CHANNEL or authority.assurance not in ("human", "signed", "second"):
        return authority
    if authority.client_id is not None and authority.client_id not in execution.client_ids:
        return authority
    return replace(authority, assurance="claimed")
