"""What an OAuth login proves about the person who decides."""

from dataclasses import replace

from planwarden.agent.approval.answers import Authority
from planwarden.agent.core.state import ExecutionState

BY_OAUTH = "oauth"
"""Channel of decisions whose only proof of a person is an OAuth login."""


def authority_for(authority: Authority, execution: ExecutionState) -> Authority:
    """The authority with the assurance that its channel really gives for this execution.

    An OAuth login shows a person only when it was not made by a client that drives the execution: that client holds a
    token of the same person and could decide with it. Without a client id nobody can tell, so it is not accepted either.
    """
    if authority.channel != BY_OAUTH or authority.assurance not in ("human", "signed", "second"):
        return authority
    if authority.client_id is not None and authority.client_id not in execution.client_ids:
        return authority
    return replace(authority, assurance="claimed")
