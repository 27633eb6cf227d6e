"""Lets a person allow calls in advance on a question's page. First the answer is stored, then the grant; only then the
released calls start. So after a crash between the two, a question may be answered and nothing allowed, but never the
reverse. A grant that came with an answer has the id of the question, so a form that is sent a second time finds the
grant.
"""

import logging
import shlex
from collections.abc import Mapping

from starlette.responses import Response

from planwarden.agent.approval.answers import Authority, Decision, can_decide
from planwarden.agent.approval.grants import describe_uses_a_day, is_same_version
from planwarden.agent.common.errors import AlreadyDecided, PlanwardenError, StaleRevision, StoreError, count_of
from planwarden.server.api.grants import FoundStep, GrantRequest, GrantView
from planwarden.server.api.service import Service
from planwarden.server.inbox.questions import (
    CHANNEL,
    WAIT_S,
    QuestionRecord,
    find_question_of,
    list_unavailable_tools,
    record_decision,
)
from planwarden.server.inbox.request import BadForm, InboxRequest
from planwarden.server.inbox.row_choice import split_rows
from planwarden.server.views.decisions import (
    describe_names,
    describe_proof,
    describe_step_terms,
    format_last_day,
    name_owner,
)
from planwarden.server.views.escaping import escape_text
from planwarden.tools.downstream.config_file import RESERVED_SOURCES
from planwarden.tools.downstream.listing import says_it_only_reads

logger = logging.getLogger(__name__)

NOT_IN_ADVANCE = "calls like this one cannot be allowed in advance"
PLAN_CHANGED = "the saved plan is no longer what this run began with, so its calls cannot be allowed in advance"


def build_authority(request: InboxRequest) -> Authority:
    return Authority(assurance="human", channel=CHANNEL, principal=request.session.principal)


async def find_grantable_question(request: InboxRequest) -> QuestionRecord:
    """Return the question that the address names. Raises `BadForm` if this person cannot allow its calls in
    advance, or if this process lacks tools of the run."""
    record = await find_question_of(request)
    question, policy = record.question, request.service.policy
    worth = can_decide(policy, record.execution, question.needs, request.session.principal, "human")
    if worth is None or not (record.card.can_be_granted or find_step_tool(record) is not None):
        raise BadForm(NOT_IN_ADVANCE)
    if record.card.is_open and list_unavailable_tools(request.service, record.execution):
        raise BadForm("this process does not have the tools of this run, so nothing can be allowed here")
    return record


def find_step_tool(record: QuestionRecord) -> str | None:
    """Return the tool whose calls in this step of the saved plan can be allowed in advance; None if none can be.

    The run must follow the saved plan unchanged, and the calls must come from the plan, not from a model. All calls
    must be on one page, so that the person has seen them.
    """
    question = record.question
    is_plain = question.traits.is_about_calls and not question.asker and not question.undecidable
    is_enough = question.needs in ("client", "human") and question.risk != "critical" and question.quorum == 1
    if not (is_plain and is_enough and question.step_id and record.execution.is_as_saved):
        return None
    rows = [(row.call_id, row.tool_name) for row in question.rows]
    calls = rows or [(question.call_id or "", question.tool_name or "")]
    tools = {tool_name for _, tool_name in calls}
    if len(tools) != 1 or len(split_rows(question.covers)) > 1:
        return None
    planned = [record.execution.find_call(call_id) for call_id, _ in calls]
    return None if any(call is None or call.by_model for call in planned) else tools.pop()


def find_trust_command(request: InboxRequest, record: QuestionRecord) -> str:
    """Return the command that lets all calls of the question's tool run; empty if the question is closed, critical
    or not about calls, or if the tool's server does not say that the tool only reads.

    The page only shows the command, because no page changes the operator's settings.
    """
    question = record.question
    definition = request.service.tools.get(question.tool_name or "")
    if definition is None or definition.source in RESERVED_SOURCES or not says_it_only_reads(definition):
        return ""
    is_asked = record.card.is_open and question.traits.is_about_calls and question.risk != "critical"
    return escape_text(shlex.join(["planwarden", "trust", definition.source, definition.name])) if is_asked else ""


async def find_step(request: InboxRequest, record: QuestionRecord) -> FoundStep:
    """Return the step that the question is about. Raises `BadForm`, with the reason, if it cannot be allowed."""
    saved, tool_name = record.execution.saved_plan, find_step_tool(record)
    if saved is None or tool_name is None:
        raise BadForm(NOT_IN_ADVANCE)
    try:
        plan_step = await request.service.grants.find_step(saved.name, record.question.step_id or "", tool_name)
    except PlanwardenError as error:
        raise BadForm(f"{PLAN_CHANGED}: {error.message}") from None
    if not is_same_version(plan_step.step, record.execution):
        raise BadForm(PLAN_CHANGED)
    return plan_step


async def answer_and_allow(request: InboxRequest, record: QuestionRecord, grant_request: GrantRequest) -> Response:
    """Approve what the question shows, store the grant, and redirect to the question. Sent twice, a form acts once.

    Raises:
        AlreadyDecided, StaleRevision: nothing was allowed.
        UsageError: `GrantService.prepare` or `record_decision` refused; nothing was decided or allowed.
        StoreError: the answer may be stored; nothing was allowed.
    """
    grants, question = request.service.grants, record.suspension_id
    question_page = request.redirect(f"/suspensions/{question}")
    if not record.card.is_open:
        if await grants.find(question) is not None:
            return question_page
        raise AlreadyDecided("this question has been decided in the meantime; nothing was allowed")
    if request.form_value("digest") != record.question.digest:
        raise StaleRevision("this question was revised since you looked at it; nothing was allowed")
    grant = await grants.prepare(grant_request, build_authority(request), question_id=question)
    failures: list[PlanwardenError] = []

    async def allow() -> None:
        try:
            await grants.add(grant)
        except PlanwardenError as error:
            logger.error("question %s was approved, and its grant was not stored: %s", question, error.message)
            failures.append(error)

    await record_decision(request, record, Decision(approved=True), record.question.digest, wait_s=WAIT_S, then=allow)
    if await grants.find(question) is None:
        if failures:
            raise StoreError(f"the question was approved, but nothing else was allowed: {failures[0].message}")
        raise AlreadyDecided("this question has been decided in the meantime; nothing was allowed")
    return question_page


async def read_titles(service: Service) -> dict[tuple[str, str], str]:
    """Return the titles of the saved plans by name and version."""
    return {(plan.name, plan.digest): plan.title for plan in (await service.look_at_plans()).plans if plan.title}


def describe_grant(grant: GrantView, titles: Mapping[tuple[str, str], str]) -> str:
    """Return what exactly the grant allows, and who made it; `titles` are those of the saved plans by name and
    version."""
    who = f"{escape_text(grant.created_by)} ({describe_proof(grant.assurance, grant.channel)})"
    step = grant.step
    if step is not None:
        title = titles.get((step.plan, step.version), step.plan)
        tool, step_id, plan, version = describe_step_terms(grant.tool_name, step.step_id, title, step.version)
        values = " and these values" if grant.arguments else ""
        return (
            f"{tool} in step {step_id} of the saved plan {plan}, {version}, with the arguments that the plan writes "
            f"there{values}, at most {describe_uses_a_day(grant.uses)}, until {format_last_day(grant.expires_at)}, in "
            f"runs of {name_owner(grant.owner)}; any change of the plan, the tool or the arguments' source asks again. "
            f"Allowed by {who}."
        )
    owner = name_owner(grant.owner)
    count = count_of(grant.uses, "call")
    return f"At most {count} with {describe_names(grant.arguments, grant.free)}; in plans of {owner}. Allowed by {who}."


async def describe_allowed(request: InboxRequest, record: QuestionRecord) -> str:
    """Return in words what else the answer to the question allowed; empty if it allowed nothing else."""
    if record.card.is_open or not record.question.traits.is_about_calls:
        return ""
    grant = await request.service.grants.find(record.suspension_id)
    return "" if grant is None else describe_grant(grant, await read_titles(request.service))
