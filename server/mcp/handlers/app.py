"""The handler of `app_decide`, which the view of the MCP App calls when a person presses one of its buttons."""

from dataclasses import replace

from mcp.types import CallToolResult

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.mcp.elicitation.forms import read_decision
from planwarden.server.mcp.handlers.request import ToolRequest, wait_and_show_execution
from planwarden.server.mcp.handlers.suspensions import record_decision
from planwarden.server.views.facts import shown_digest


async def app_decide(request: ToolRequest) -> CallToolResult:
    """The execution after the decision.

    Raises:
        InvalidArguments: the content decides nothing, or the nonce was not issued for this question.
        RateLimited: too many calls came without the nonce.
    """
    question, is_open = await request.read_question()
    decision = read_decision(question, request.arguments["content"])
    if decision is None:
        raise InvalidArguments("the content has no 'decision'; the person says approve or reject")
    now = request.service.engine.store.clock.now()
    nonce = request.arguments["nonce"]
    digest = request.nonces.redeem(request.principal, request.suspension_id, nonce, now)
    if digest is None:
        return await _record_claim(request, decision, is_open=is_open)
    authority = Authority(
        assurance="client",
        channel="app",
        principal=request.principal,
        digest=digest,
        client_id=request.caller.client_id,
        rendered=shown_digest(question),
    )
    return await wait_and_show_execution(request, await record_decision(request, decision, authority))


async def _record_claim(request: ToolRequest, decision: Decision, *, is_open: bool) -> CallToolResult:
    """Refuses a call without the nonce, which the model could have made; counts it, and records an approval.

    For a question that is already decided, returns the recorded outcome, as every other channel does.
    """
    if decision.approved is False and is_open:
        await request.service.awaiting(
            request.thread_id, request.suspension_id, principal=request.principal, attempt="approval"
        )
    else:
        claimed = Authority(assurance="claimed", channel="app", principal=request.principal)
        view = await record_decision(request, replace(decision, modified_args=None), claimed)
        if view.awaiting is None:
            return await wait_and_show_execution(request, view)
    raise InvalidArguments(
        f"suspension {request.suspension_id!r} was not decided: only the view that shows it to a person can decide it, "
        "and only once; call get_execution to show it again"
    )
