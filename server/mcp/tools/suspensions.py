"""The MCP tools that list suspensions, ask people, and take answers from models, hosts' forms and the MCP App."""

from collections.abc import Mapping
from typing import Any

from mcp.types import CallToolResult, InputRequiredResult
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    LimitExceeded,
    StaleRevision,
    UnknownSuspension,
)
from planwarden.agent.ports.listing import UNFINISHED, ExecutionFilter
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.limits import MAX_PAGE
from planwarden.server.mcp import schemas
from planwarden.server.mcp.elicitation import (
    Answer,
    build_elicitation,
    compute_form_digest,
    elicit,
    find_usable_modes,
    notify_decided,
    read_answer,
    read_decision,
    read_reference,
)
from planwarden.server.mcp.requests import wait_for_decision
from planwarden.server.mcp.results import LISTED_ROWS, MAX_STRUCTURED, build_result
from planwarden.server.mcp.text import format_suspensions
from planwarden.server.mcp.tools.tool import ToolRequest, mcp_tool
from planwarden.server.views.encoding import to_short_json
from planwarden.server.views.execution import Execution, ask_for_person, name_ways
from planwarden.server.views.question_text import hash_question
from planwarden.server.views.suspension import Suspension


@mcp_tool(
    "List open questions",
    "Open questions to people (human) and you (caller); unfinished threads without one.",
    {**schemas.THREAD, "addressee": {"type": "string", "enum": ["human", "caller"]}, **schemas.PAGE},
    "reads",
    output=schemas.SUSPENSIONS_OUT,
)
async def list_suspensions(request: ToolRequest) -> CallToolResult:
    arguments = request.arguments
    page = await request.service.list_suspensions(
        thread_id=arguments.get("threadId"),
        addressee=arguments.get("addressee"),
        limit=int(arguments.get("limit", 20)),
        cursor=arguments.get("cursor"),
        principal=request.principal,
        max_rows=LISTED_ROWS,
        max_bytes=MAX_STRUCTURED,
    )
    document = to_short_json(page, lists=True)
    if "threadId" not in arguments and "cursor" not in arguments:
        filters = (ExecutionFilter(status=status, principal=request.principal, is_gated=False) for status in UNFINISHED)
        pages = [await request.service.store.list_executions(only, limit=MAX_PAGE) for only in filters]
        document["unfinished"] = [
            {"threadId": row.thread_id, "status": row.status, "title": row.title}
            for row in (row for page in pages for row in page.rows)
            if row.waits_for not in ("human", "caller")
        ]
    return build_result(document, format_suspensions)


@mcp_tool(
    "Answer your own question",
    "Answer a question addressed to the caller. content is what its instructions ask for: a plan, "
    '{"toolCalls": [...]} or {"content": "..."}.',
    {**schemas.QUESTION, "content": schemas.OBJECT, "waitSeconds": schemas.WAIT},
    "repeats",
    required=("threadId", "suspensionId", "content"),
)
async def submit_answer(request: ToolRequest) -> CallToolResult:
    request = await request.remember_before()
    question = None if request.before is None else request.find_open_suspension(request.before)
    if question is not None and question.addressee == "human":
        question, _ = await request.read_question()
        asks = find_usable_modes(request.context)
        raise InvalidArguments(
            f"suspension {request.suspension_id!r} is addressed to a person; submit_answer answers only questions to "
            f"you; {'call resume_execution, which asks them' if asks else f'ask them {name_ways(question)}'}"
        )
    decision = Decision(content=request.arguments["content"])
    authority = Authority(assurance="caller", channel="mcp", principal=request.principal)
    return await request.show_outcome(await _record_decision(request, decision, authority, caller_only=True))


@mcp_tool(
    "Put a decision",
    "Put a person's question to that person. approved: true from you does not count: the person is asked in a form, "
    "or has to run the command in howToAnswer. approved: false is your own rejection, never theirs; give its reason. "
    "Never decide for them.",
    {**schemas.QUESTION, "decision": schemas.DECISION, "digest": schemas.STRING, "waitSeconds": schemas.WAIT},
    "destroys",
    "repeats",
    "shows_app",
    required=("threadId", "suspensionId"),
)
async def resume_execution(request: ToolRequest) -> CallToolResult | InputRequiredResult:
    """Record the model's rejection; treat its approval of a person's question as a proposal, and ask the person."""
    request = await request.remember_before()
    answer = read_answer(request.context)
    if answer is not None and answer[0].suspension_id == request.suspension_id:
        return await _apply_person_answer(request, answer)
    view = await _apply_proposal(request)
    suspension = request.find_open_suspension(view)
    if suspension is None:
        return await request.show_outcome(view)
    return await _ask_person(request, suspension) or await request.show(view, _describe_ignored(request))


def _describe_ignored(request: ToolRequest) -> str:
    """Return a sentence about the parts that are ignored, because only a person decides; empty if there are none."""
    decision: Mapping[str, Any] = request.arguments.get("decision", {})
    if "content" in decision:
        return "Your answer does not count."
    if decision.get("approved") is True:
        return "Your approval does not count."
    return "Your edit was not recorded; the person can edit the arguments." if "modifiedArgs" in decision else ""


@mcp_tool(
    "Ask a person",
    "Ask a person without a plan: to confirm, or to fill in form (JSON Schema of an object).",
    {
        "message": schemas.STRING,
        "details": schemas.OBJECT,
        "form": schemas.OBJECT,
        "addressee": schemas.STRING,
        "key": schemas.STRING,
        "waitSeconds": schemas.WAIT,
    },
    "shows_app",
    required=("message",),
)
async def ask_person(request: ToolRequest) -> CallToolResult | InputRequiredResult:
    """Ask the person at the client as `resume_execution` does, or else wait for a decision through another channel."""
    reference = read_reference(request.context)
    if reference is not None:
        suspension_id = reference.suspension_id
        row = await request.service.store.find_suspension(suspension_id)
        if row is None or row.principal != request.principal:
            raise UnknownSuspension(f"there is no suspension {suspension_id[:64]!r}")
        request, answer = _name_question(request, row.thread_id, suspension_id), read_answer(request.context)
        return await (
            _show_undecided(request, "did not answer") if answer is None else _apply_person_answer(request, answer)
        )
    arguments = request.arguments
    start = StartOptions(requester=request.requester, key=arguments.get("key"))
    execution = await request.service.ask_person(
        arguments["message"],
        start,
        details=arguments.get("details"),
        form=arguments.get("form"),
        addressee=arguments.get("addressee"),
    )
    view = request.service.build_view(execution)
    suspension = next(iter(view.suspensions), None)
    if suspension is None:
        return await request.wait_and_show(execution)
    request = _name_question(request, view.thread_id, suspension.suspension_id)
    result = await _ask_person(request, suspension)
    if result is not None:
        return result
    request.service.show_in_browser(suspension.suspension_id)
    await wait_for_decision(request.service, suspension, request.wait_s, request.context)
    return await request.show_outcome(await request.read_execution())


def _name_question(request: ToolRequest, thread_id: str, suspension_id: str) -> ToolRequest:
    """Return the request with the ids of the question as arguments, as in a call of `resume_execution`."""
    return replace(request, arguments={**request.arguments, "threadId": thread_id, "suspensionId": suspension_id})


@mcp_tool(
    "Decide in the view",
    "For planwarden's own view only.",
    {**schemas.QUESTION, "nonce": schemas.STRING, "content": schemas.OBJECT, "waitSeconds": schemas.WAIT},
    "destroys",
    "shows_app",
    "for_app",
    required=("threadId", "suspensionId", "nonce", "content"),
)
async def app_decide(request: ToolRequest) -> CallToolResult:
    """Record the decision that a person made in the view of the MCP App, and return the execution.

    Raises:
        InvalidArguments: the content decides nothing, or the nonce was not issued for this question.
        RateLimited: too many calls came without the nonce.
    """
    request = await request.remember_before()
    question, is_open = await request.read_question()
    decision = read_decision(question, request.arguments["content"])
    if decision is None:
        raise InvalidArguments("the content has no 'decision'; the person says approve or reject")
    now = request.service.store.clock.now()
    digest = request.nonces.verify(request.principal, request.suspension_id, request.arguments["nonce"], now)
    if digest is None:
        return await _record_claim(request, decision, is_open=is_open)
    return await _decide_as_client(request, decision, "app", digest, hash_question(question.card))


async def _record_claim(request: ToolRequest, decision: Decision, *, is_open: bool) -> CallToolResult:
    """Count and refuse a call without the nonce: the model may have made it. Record an approval as a claim.

    For a question that is already decided, return the recorded outcome, as every other channel does.
    """
    if decision.approved is False and is_open:
        await request.read_execution(attempt="approval")
    else:
        claimed = Authority(assurance="claimed", channel="app", principal=request.principal)
        view = await _record_decision(request, replace(decision, modified_args=None), claimed)
        if view.awaiting is None:
            return await request.show_outcome(view)
    raise InvalidArguments(
        f"suspension {request.suspension_id!r} was not decided: only the view that shows it to a person can decide it, "
        "and only once; call get_execution to show it again"
    )


async def _decide_as_client(
    request: ToolRequest, decision: Decision, channel: str, digest: str, rendered: str
) -> CallToolResult:
    """Record what a person decided in the client; `digest` names the shown revision, `rendered` the shown text."""
    authority = Authority(
        assurance="client",
        channel=channel,
        principal=request.principal,
        digest=digest,
        client_id=request.caller.client_id,
        rendered=rendered,
    )
    return await request.show_outcome(await _record_decision(request, decision, authority))


async def _record_decision(
    request: ToolRequest, decision: Decision, authority: Authority, *, caller_only: bool = False
) -> Execution:
    """Record the decision, and return the execution; after a refusal, the execution says how to ask the person."""
    ids, principal = (request.thread_id, request.suspension_id), request.principal
    try:
        execution, is_accepted = await request.service.answer(
            *ids, decision, authority, principal=principal, caller_only=caller_only
        )
    except (AlreadyDecided, Expired) as error:
        # Only a model needs to be told: a person's page shows what followed.
        text = f"{error.message}; call get_execution to see what followed"
        raise type(error)(text, details=error.details) from None
    view = request.service.build_view(execution)
    return view if is_accepted else ask_for_person(view, request.suspension_id)


async def _apply_proposal(request: ToolRequest) -> Execution:
    """Record what the model sent, and return the execution. A person's question stays open unless the model rejects it.

    If the decision is incomplete, do not tell the model what is missing: the person is asked.
    """
    fields: Mapping[str, Any] = request.arguments.get("decision", {})
    decision = Decision(
        approved=fields.get("approved"),
        reason=fields.get("reason"),
        modified_args=fields.get("modifiedArgs"),
        content=fields.get("content"),
    )
    question, is_open = await request.read_question()
    if is_open and question.addressee == "caller" and decision.content is None:
        raise InvalidArguments(
            f"suspension {request.suspension_id!r} is addressed to you, and takes no decision: answer it with "
            "submit_answer; content is what its instructions ask for"
        )
    digest = request.arguments.get("digest")
    if is_open and digest not in (None, question.digest):
        text = f"suspension {request.suspension_id!r} was revised since it was shown; look again"
        raise StaleRevision(text, details={"revision": question.revision, "digest": question.digest})
    if question.answer_schema is not None:
        decides = decision.approved is False or decision.content is not None
    else:
        decides = decision.approved is not None
    if is_open and question.addressee == "human" and not decides:
        return await request.read_execution(attempt="question")
    claimed = Authority(assurance="claimed", channel="mcp", principal=request.principal, digest=digest)
    return await _record_decision(request, decision, claimed)


async def _ask_person(request: ToolRequest, suspension: Suspension) -> CallToolResult | InputRequiredResult | None:
    """Ask the person at the client. Return what the call must return: a result, or the question for the client to ask.
    Return None if the client can neither show the question nor open its page."""
    elicitation = build_elicitation(suspension, find_usable_modes(request.context))
    if elicitation is None:
        return None
    answer = await elicit(request.service, suspension, elicitation, request.context)
    if isinstance(answer, InputRequiredResult):
        return answer
    if answer is not None:
        return await _apply_person_answer(request, answer)
    show = _show_undecided if elicitation.mode == "form" else _show_page_outcome
    return await show(request, "could not be asked")


async def _apply_person_answer(request: ToolRequest, answer: Answer) -> CallToolResult:
    """Record what a person decided in a form, or wait for their decision on a page; return the outcome."""
    reference, result = answer
    is_accepted = result.action == "accept"
    if reference.mode == "url" and not is_accepted:
        return await _show_page_outcome(request, "did not open the page")
    question, is_open = await request.read_question()
    if reference.mode == "url":
        if is_open:
            await wait_for_decision(request.service, question, request.wait_s, request.context)
        return await _show_page_outcome(request, "has not decided on the page yet")
    rendered = compute_form_digest(question)
    try:
        decision = read_decision(question, result.content) if is_accepted else None
        if decision is None:
            return await _show_undecided(request, "did not decide in the form")
        return await _decide_as_client(request, decision, "elicitation", reference.digest, rendered)
    except (InvalidArguments, LimitExceeded) as error:
        # The question stays open, and an error would not name the thread to the caller.
        return await _show_undecided(request, f"sent an answer that cannot be recorded ({error.message})")


async def _show_page_outcome(request: ToolRequest, reason: str) -> CallToolResult:
    """Return the outcome of the decision on the page. If the question is still open, `reason` says why."""
    _, is_open = await request.read_question()
    if is_open:
        return await _show_undecided(request, reason)
    await notify_decided(request.suspension_id, request.context)
    return await request.show_outcome(await request.read_execution())


async def _show_undecided(request: ToolRequest, reason: str) -> CallToolResult:
    """Return the execution as it is. While the question is open, `next_action` says that nobody decided, and why."""
    view = await request.read_execution(attempt="unanswered")
    note = f"The person {reason}, so nothing was approved or rejected."
    return await request.show(view, note if request.find_open_suspension(view) else "")
