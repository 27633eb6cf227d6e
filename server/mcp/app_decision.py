"""`app_decide`: what the view of the MCP App calls when a person presses one of its buttons."""

from dataclasses import replace

from mcp.types import CallToolResult

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.mcp.forms import decision_from
from planwarden.server.mcp.handlers import ToolRequest, answer, shown_when_settled
from planwarden.server.views.facts import shown_digest


async def app_decide(request: ToolRequest) -> CallToolResult:
    """The execution after the decision.

    Raises:
        InvalidArguments: the content decides nothing, or the nonce is not the one of this question.
        RateLimited: it was tried without the nonce too often.
    """
    service, principal = request.service, request.caller.principal
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, is_open = await service.question(thread_id, suspension_id, principal=principal)
    decision = decision_from(question, request.arguments["content"])
    if decision is None:
        raise InvalidArguments("the content has no 'decision'; the person says approve or reject")
    now = service.engine.store.clock.now()
    digest = request.nonces.redeem(principal, suspension_id, request.arguments["nonce"], now)
    if digest is None:
        return await _claimed(request, decision, is_open=is_open)
    authority = Authority(
        assurance="client",
        channel="app",
        principal=principal,
        digest=digest,
        client_id=request.caller.client_id,
        rendered=shown_digest(question),
    )
    return await shown_when_settled(request, await answer(request, decision, authority))


async def _claimed(request: ToolRequest, decision: Decision, *, is_open: bool) -> CallToolResult:
    """Without the nonce an approval is anybody's claim, recorded and counted as one; nothing else is done at all.

    A question that was decided before gives its recorded outcome, as everywhere.
    """
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    principal = request.caller.principal
    if decision.approved is False and is_open:
        await request.service.awaiting(thread_id, suspension_id, principal=principal, attempt="approval")
    else:
        authority = Authority(assurance="claimed", channel="app", principal=principal)
        view = await answer(request, replace(decision, modified_args=None), authority)
        if view.awaiting is None:
            return await shown_when_settled(request, view)
    raise InvalidArguments(
        f"suspension {suspension_id!r} was not decided: only the view that shows it to a person can, once; "
        "call get_execution to show it again"
    )
