"""What each MCP tool does with arguments that fit its schema: one function a tool, from arguments to a result.

Approval never comes from arguments: what the calling model sends is worth the assurance `claimed`. A person's answer to
a form is worth `client`; both go to the same service, and the store decides which answer counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from mcp.types import CallToolResult, InputRequiredResult
from pydantic import Field, TypeAdapter, ValidationError

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.server.api.service import Service
from planwarden.server.auth.caller import Caller
from planwarden.server.mcp.app.view import META_KEY, Nonces, questions
from planwarden.server.mcp.elicitation import (
    ElicitationAnswer,
    answered_before,
    ask,
    can_open_links,
    can_show_forms,
    notify_decided,
)
from planwarden.server.mcp.forms import ElicitationForm, ElicitationLink, decision_from, form_digest, form_for, link_for
from planwarden.server.mcp.results import view_result
from planwarden.server.mcp.text import execution_text, schemas_text, suspensions_text, tools_text
from planwarden.server.mcp.waiting import AnyContext, decided_within, wait_with_progress
from planwarden.server.views.execution import Execution
from planwarden.server.views.suspension import Suspension
from planwarden.tools.delegate.chain import CHAIN, DEPTH, MAX_DEPTH

_CHAIN = TypeAdapter[list[str]](
    Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=16, strict=True)]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """One call of a tool."""

    service: Service
    caller: Caller
    arguments: Mapping[str, Any]
    """They fit the tool's input schema."""
    context: AnyContext
    nonces: Nonces = field(default_factory=Nonces)
    shows_app: bool = False
    """The host draws this tool's result as an app."""

    @property
    def principal(self) -> str:
        return self.caller.principal

    @property
    def chain(self) -> tuple[str, ...]:
        """The executions of other agents that delegated the call, as its caller says.

        Raises:
            InvalidArguments: it says what cannot be such a list.
        """
        meta: Mapping[str, Any] = dict(self.context.request_context.meta or {})
        found, depth = meta.get(CHAIN, []), meta.get(DEPTH, 0)
        try:
            chain = _CHAIN.validate_python(found)
        except ValidationError:
            raise InvalidArguments(f"_meta {CHAIN!r} is not a list of at most 16 ids") from None
        if type(depth) is int and depth > max(len(chain), MAX_DEPTH):
            raise LimitExceeded(f"this goal was delegated {depth} times, the limit is {MAX_DEPTH}")
        return tuple(chain)


async def search_tools(request: ToolRequest) -> CallToolResult:
    given = request.arguments
    await request.service.catalogue_known()
    page = request.service.search_tools(
        given.get("query"), limit=int(given.get("limit", 20)), cursor=given.get("cursor")
    )
    return view_result(page, tools_text)


async def get_tool_schemas(request: ToolRequest) -> CallToolResult:
    await request.service.tools_known(request.arguments["names"])
    return view_result(request.service.get_tool_schemas(request.arguments["names"]), schemas_text)


async def create_plan(request: ToolRequest) -> CallToolResult:
    return await _run_goal(request, plan_only=True)


async def run_goal(request: ToolRequest) -> CallToolResult:
    return await _run_goal(request, plan_only=False)


async def execute_plan(request: ToolRequest) -> CallToolResult:
    given = request.arguments
    view = await request.service.execute_plan(
        given.get("plan"),
        goal=given.get("goal"),
        thread_id=given.get("threadId"),
        options=given.get("options"),
        wait_seconds=0,
        principal=request.principal,
        client_id=request.caller.client_id,
        chain=request.chain,
    )
    return await shown_when_settled(request, view)


async def get_execution(request: ToolRequest) -> CallToolResult:
    after = request.arguments.get("observationsAfter")
    view = await request.service.get_execution(
        request.arguments["threadId"],
        observations_after=None if after is None else int(after),
        principal=request.principal,
    )
    return await shown(request, view)


async def list_suspensions(request: ToolRequest) -> CallToolResult:
    given = request.arguments
    page = await request.service.list_suspensions(
        thread_id=given.get("threadId"),
        addressee=given.get("addressee"),
        limit=int(given.get("limit", 20)),
        cursor=given.get("cursor"),
        principal=request.principal,
    )
    return view_result(page, suspensions_text)


async def submit_answer(request: ToolRequest) -> CallToolResult:
    view = await request.service.answer(
        request.arguments["threadId"],
        request.arguments["suspensionId"],
        Decision(content=request.arguments["content"]),
        Authority(assurance="caller", channel="mcp", principal=request.principal),
        wait_seconds=0,
        principal=request.principal,
        caller_only=True,
    )
    return await shown_when_settled(request, view)


async def resume_execution(request: ToolRequest) -> CallToolResult | InputRequiredResult:
    """A rejection is taken as it is; an approval of a person's question is a proposal that the person is asked about."""
    answered = answered_before(request.context)
    if answered is not None and answered.suspension_id == request.arguments["suspensionId"]:
        return await _person_answered(request, answered)
    view = await _proposed(request, _decision(request.arguments["decision"]))
    waiting = _waiting(request, view)
    if waiting is None:
        return await shown_when_settled(request, view)
    form = form_for(waiting)
    if form is not None and can_show_forms(request.context):
        return await _asked(request, waiting, form)
    # Everything else is decided on the page.
    link = link_for(waiting)
    if link is None or not can_open_links(request.context):
        request.service.call_person(waiting.suspension_id)
        return await shown(request, view)
    return await _asked(request, waiting, link)


async def cancel_execution(request: ToolRequest) -> CallToolResult:
    view = await request.service.cancel_execution(
        request.arguments["threadId"], reason=request.arguments.get("reason"), principal=request.principal
    )
    return view_result(view, execution_text)


async def _run_goal(request: ToolRequest, *, plan_only: bool) -> CallToolResult:
    given = request.arguments
    view = await request.service.run_goal(
        given["goal"],
        thread_id=given.get("threadId"),
        options=given.get("options"),
        wait_seconds=0,
        principal=request.principal,
        plan_only=plan_only,
        client_id=request.caller.client_id,
        chain=request.chain,
    )
    return await shown_when_settled(request, view)


async def _proposed(request: ToolRequest, decision: Decision) -> Execution:
    """The execution after what the model sent. A question to a person stays open unless the model rejects it."""
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, is_open = await request.service.question(thread_id, suspension_id, principal=request.principal)
    is_unfilled = question.answer_schema is not None and decision.content is None and decision.approved is True
    if is_open and question.addressee == "human" and is_unfilled:
        return await request.service.awaiting(thread_id, suspension_id, principal=request.principal, attempt="approval")
    claimed = Authority(assurance="claimed", channel="mcp", principal=request.principal)
    return await answer(request, decision, claimed)


async def _asked(
    request: ToolRequest, waiting: Suspension, question: ElicitationForm | ElicitationLink
) -> CallToolResult | InputRequiredResult:
    asked = await ask(request.service, waiting, question, request.context)
    if isinstance(asked, InputRequiredResult):
        return asked
    if asked is not None:
        return await _person_answered(request, asked)
    return await (_undecided if isinstance(question, ElicitationForm) else _sent)(request, "could not be asked")


async def _person_answered(request: ToolRequest, answered: ElicitationAnswer) -> CallToolResult:
    if answered.mode == "url":
        return await _person_sent(request, answered)
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, _ = await request.service.question(thread_id, suspension_id, principal=request.principal)
    decision = decision_from(question, answered.content) if answered.action == "accept" else None
    if decision is None:
        return await _undecided(request, "did not decide in the form")
    authority = Authority(
        assurance="client",
        channel="elicitation",
        principal=request.principal,
        digest=answered.digest,
        client_id=request.caller.client_id,
        rendered=form_digest(question),
    )
    return await shown_when_settled(request, await answer(request, decision, authority))


async def _person_sent(request: ToolRequest, answered: ElicitationAnswer) -> CallToolResult:
    """A person who agreed to open the page is given the time of the call to decide there."""
    if answered.action != "accept":
        return await _sent(request, "did not open the page")
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    question, is_open = await request.service.question(thread_id, suspension_id, principal=request.principal)
    if is_open:
        await decided_within(request.service, question, request.arguments.get("waitSeconds"), request.context)
    return await _sent(request, "has not decided on the page yet")


async def _sent(request: ToolRequest, how: str) -> CallToolResult:
    """What the store says about a question that a person was sent to the page for."""
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    _, is_open = await request.service.question(thread_id, suspension_id, principal=request.principal)
    if is_open:
        return await _undecided(request, how)
    await notify_decided(suspension_id, request.context)
    return await shown_when_settled(request, await _still_open(request))


async def _undecided(request: ToolRequest, how: str) -> CallToolResult:
    """The execution as it is; when the question is still open, with the sentence that nobody has decided."""
    view = await _still_open(request, attempt="answer")
    if _waiting(request, view) is not None:
        view = replace(view, next_action=f"The person {how}, so nothing was approved or rejected. {view.next_action}")
    return await shown(request, view)


async def _still_open(request: ToolRequest, attempt: Literal["answer"] | None = None) -> Execution:
    thread_id, suspension_id = request.arguments["threadId"], request.arguments["suspensionId"]
    return await request.service.awaiting(thread_id, suspension_id, principal=request.principal, attempt=attempt)


def _waiting(request: ToolRequest, view: Execution) -> Suspension | None:
    """The question of this call, if it is still open."""
    wanted = request.arguments["suspensionId"]
    return next((found for found in view.suspensions if found.suspension_id == wanted), None)


async def answer(request: ToolRequest, decision: Decision, authority: Authority) -> Execution:
    return await request.service.answer(
        request.arguments["threadId"],
        request.arguments["suspensionId"],
        decision,
        authority,
        wait_seconds=0,
        principal=request.principal,
    )


async def shown_when_settled(request: ToolRequest, view: Execution) -> CallToolResult:
    seconds = request.arguments.get("waitSeconds")
    return await shown(request, await wait_with_progress(request.service, view, seconds, request.context))


async def shown(request: ToolRequest, view: Execution) -> CallToolResult:
    """The execution as a result; hosts that draw apps get its questions for the person beside it."""
    result = view_result(view, execution_text)
    if not request.shows_app:
        return result
    now = request.service.engine.store.clock.now()
    return result.model_copy(update={"meta": {META_KEY: questions(view, request.nonces, request.principal, now)}})


def _decision(given: Mapping[str, Any]) -> Decision:
    return Decision(
        approved=given.get("approved"),
        reason=given.get("reason"),
        modified_args=given.get("modifiedArgs"),
        content=given.get("content"),
    )
