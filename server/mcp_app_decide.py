"""`app_decide`: what the view of the MCP App calls when a person presses one of its buttons."""

from mcp.types import CallToolResult

from planwarden.agent.answers import Authority
from planwarden.agent.errors import InvalidArguments
from planwarden.server.facts import shown_digest
from planwarden.server.mcp_forms import decision_from
from planwarden.server.mcp_verbs import Request, answer, shown_when_settled


async def app_decide(request: Request) -> CallToolResult:
    """The execution after the decision.

    Raises:
        InvalidArguments: the nonce is not the one of this question, or the content decides nothing.
        RateLimited: it was tried without the nonce too often.
    """
    service, principal = request.service, request.caller.principal
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, _ = await service.question(thread_id, suspension_id, principal=principal)
    digest = request.nonces.redeem(
        principal, suspension_id, request.arguments["nonce"], service.engine.store.clock.now()
    )
    if digest is None:
        await service.awaiting(thread_id, suspension_id, principal=principal, attempt="approval")
        raise InvalidArguments(
            f"suspension {suspension_id!r} was not decided: only the view that shows it to a person can, once; "
            "call get_execution to show it again"
        )
    decision = decision_from(question, request.arguments["content"])
    if decision is None:
        raise InvalidArguments("the content has no 'decision'; the person says approve or reject")
    authority = Authority(
        assurance="client",
        channel="app",
        principal=principal,
        digest=digest,
        client_id=request.caller.client_id,
        rendered=shown_digest(question),
    )
    return await shown_when_settled(request, await answer(request, decision, authority))
