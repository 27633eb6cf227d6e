"""What each MCP tool does with arguments that fit its schema: one function a tool, from arguments to a result.

Approval never comes from arguments: what the calling model sends is worth the assurance `claimed`. A person's answer to
a form is worth `client`; both go to the same service, and the store decides which answer counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp.types import CallToolResult, InputRequiredResult

from planwarden.agent.answers import Authority, Decision
from planwarden.server import views
from planwarden.server.mcp_forms import decision_from, form_for
from planwarden.server.mcp_questions import Answered, answered_before, ask, can_be_asked
from planwarden.server.mcp_results import view_result
from planwarden.server.mcp_text import execution_text, schemas_text, suspensions_text, tools_text
from planwarden.server.mcp_watch import AnyContext, watched
from planwarden.server.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of a tool."""

    service: Service
    principal: str
    arguments: Mapping[str, Any]
    """They fit the tool's input schema."""
    context: AnyContext


async def search_tools(request: Request) -> CallToolResult:
    given = request.arguments
    await request.service.catalogue_known()
    page = request.service.search_tools(
        given.get("query"), limit=int(given.get("limit", 20)), cursor=given.get("cursor")
    )
    return view_result(page, tools_text)


async def get_tool_schemas(request: Request) -> CallToolResult:
    await request.service.tools_known(request.arguments["names"])
    return view_result(request.service.get_tool_schemas(request.arguments["names"]), schemas_text)


async def create_plan(request: Request) -> CallToolResult:
    return await _run_goal(request, plan_only=True)


async def run_goal(request: Request) -> CallToolResult:
    return await _run_goal(request, plan_only=False)


async def execute_plan(request: Request) -> CallToolResult:
    given = request.arguments
    view = await request.service.execute_plan(
        given.get("plan"),
        goal=given.get("goal"),
        thread_id=given.get("threadId"),
        options=given.get("options"),
        wait_seconds=0,
        principal=request.principal,
    )
    return await _watched(request, view)


async def get_execution(request: Request) -> CallToolResult:
    after = request.arguments.get("observationsAfter")
    view = await request.service.get_execution(
        request.arguments["threadId"],
        observations_after=None if after is None else int(after),
        principal=request.principal,
    )
    return view_result(view, execution_text)


async def list_suspensions(request: Request) -> CallToolResult:
    given = request.arguments
    page = await request.service.list_suspensions(
        thread_id=given.get("threadId"),
        addressee=given.get("addressee"),
        limit=int(given.get("limit", 20)),
        cursor=given.get("cursor"),
        principal=request.principal,
    )
    return view_result(page, suspensions_text)


async def submit_answer(request: Request) -> CallToolResult:
    view = await request.service.answer(
        request.arguments["threadId"],
        request.arguments["suspensionId"],
        Decision(content=request.arguments["content"]),
        Authority(assurance="caller", channel="mcp", principal=request.principal),
        wait_seconds=0,
        principal=request.principal,
        caller_only=True,
    )
    return await _watched(request, view)


async def resume_execution(request: Request) -> CallToolResult | InputRequiredResult:
    """A rejection is taken as it is; an approval of a person's question is a proposal that the person is asked about."""
    answered = answered_before(request.context)
    if answered is not None and answered.suspension_id == request.arguments["suspensionId"]:
        return await _person_answered(request, answered)
    view = await _proposed(request, _decision(request.arguments["decision"]))
    waiting = next((s for s in view.suspensions if s.suspension_id == request.arguments["suspensionId"]), None)
    if waiting is None:
        return await _watched(request, view)
    form = form_for(waiting) if can_be_asked(request.context) else None
    if form is None:
        return view_result(view, execution_text)
    asked = await ask(request.service, waiting, form, request.context)
    if isinstance(asked, InputRequiredResult):
        return asked
    return await _person_answered(request, asked)


async def cancel_execution(request: Request) -> CallToolResult:
    view = await request.service.cancel_execution(
        request.arguments["threadId"], reason=request.arguments.get("reason"), principal=request.principal
    )
    return view_result(view, execution_text)


async def _run_goal(request: Request, *, plan_only: bool) -> CallToolResult:
    given = request.arguments
    view = await request.service.run_goal(
        given["goal"],
        thread_id=given.get("threadId"),
        options=given.get("options"),
        wait_seconds=0,
        principal=request.principal,
        plan_only=plan_only,
    )
    return await _watched(request, view)


async def _proposed(request: Request, decision: Decision) -> views.Execution:
    """The execution after what the model sent. A question to a person stays open unless the model rejects it."""
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, is_open = await request.service.question(thread_id, suspension_id, principal=request.principal)
    is_unfilled = question.answer_schema is not None and decision.content is None and decision.approved is True
    if is_open and question.addressee == "human" and is_unfilled:
        return await request.service.awaiting(thread_id, suspension_id, principal=request.principal, attempt=True)
    claimed = Authority(assurance="claimed", channel="mcp", principal=request.principal)
    return await _answer(request, decision, claimed)


async def _person_answered(request: Request, answered: Answered | None) -> CallToolResult:
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, _ = await request.service.question(thread_id, suspension_id, principal=request.principal)
    decision: Decision | None = None
    if answered is not None and answered.action == "accept":
        decision = decision_from(question, answered.content)
    if answered is None or decision is None:
        how = "could not be asked" if answered is None else "did not decide in the form"
        return await _undecided(request, how)
    authority = Authority(
        assurance="client", channel="elicitation", principal=request.principal, digest=answered.digest
    )
    return await _watched(request, await _answer(request, decision, authority))


async def _undecided(request: Request, how: str) -> CallToolResult:
    """The execution as it is; when the question is still open, with the sentence that nobody has decided."""
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    view = await request.service.awaiting(thread_id, suspension_id, principal=request.principal)
    if any(found.suspension_id == suspension_id for found in view.suspensions):
        view = replace(view, next_action=f"The person {how}, so nothing was approved or rejected. {view.next_action}")
    return view_result(view, execution_text)


async def _answer(request: Request, decision: Decision, authority: Authority) -> views.Execution:
    return await request.service.answer(
        request.arguments["threadId"],
        request.arguments["suspensionId"],
        decision,
        authority,
        wait_seconds=0,
        principal=request.principal,
    )


async def _watched(request: Request, view: views.Execution) -> CallToolResult:
    seconds = request.arguments.get("waitSeconds")
    return view_result(await watched(request.service, view, seconds, request.context), execution_text)


def _decision(given: Mapping[str, Any]) -> Decision:
    return Decision(
        approved=given.get("approved"),
        reason=given.get("reason"),
        modified_args=given.get("modifiedArgs"),
        content=given.get("content"),
    )
