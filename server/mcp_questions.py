"""Asking the client's person, in both eras of the protocol, and what the answer is worth.

Since 2026-07-28 the question is returned and comes back with the answer in a repeated call; before, it is pushed while
the call waits. Either way the question is rendered from the stored suspension, an accepted form is worth the assurance
`client` and no more, and declining or closing it decides nothing, because unattended hosts do that by themselves. The
sealed request state holds ids only: whether an answer still counts is decided by the store, so that sending one twice
changes nothing (https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr).
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp.types.version import is_version_at_least
from pydantic import ValidationError

from planwarden.agent.errors import PlanwardenError
from planwarden.server.mcp_forms import Form
from planwarden.server.mcp_watch import AnyContext, until_decided
from planwarden.server.service import Service
from planwarden.server.views import Suspension

RETURNS_QUESTIONS_SINCE = "2026-07-28"
KEY = "decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came back for a question that was shown."""

    suspension_id: str
    digest: str
    """Of the revision that was shown."""
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | int | float | bool | list[str] | None] | None = None


def can_be_asked(context: AnyContext) -> bool:
    """True when the client declared forms and there is a way to send it one."""
    capabilities = context.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return _returns_questions(context) or context.session.can_send_request


def answered_before(context: AnyContext) -> Answered | None:
    """The answer that came with this call to the question that an earlier call returned."""
    if context.request_state is None:
        return None
    answer = (context.input_responses or {}).get(KEY)
    shown = _shown(context.request_state)
    if shown is None or not isinstance(answer, ElicitResult):
        return None
    suspension_id, digest = shown
    return Answered(suspension_id=suspension_id, digest=digest, action=answer.action, content=answer.content)


async def ask(
    service: Service, suspension: Suspension, form: Form, context: AnyContext
) -> Answered | InputRequiredResult | None:
    """The answer, or the question to return from the call; None when the client failed or somebody else decided."""
    if _returns_questions(context):
        params = ElicitRequestFormParams(message=form.message, requested_schema=form.schema)
        state = json.dumps({"suspensionId": suspension.suspension_id, "digest": suspension.digest})
        return InputRequiredResult(input_requests={KEY: ElicitRequest(params=params)}, request_state=state)
    answer = await _pushed(service, suspension, form, context)
    if answer is None:
        return None
    return Answered(
        suspension_id=suspension.suspension_id,
        digest=suspension.digest,
        action=answer.action,
        content=answer.content,
    )


async def _pushed(service: Service, suspension: Suspension, form: Form, context: AnyContext) -> ElicitResult | None:
    """The client's answer; None when it failed, or when the question was decided elsewhere first."""
    answer: ElicitResult | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            with suppress(PlanwardenError):
                await until_decided(service, suspension, context)
                tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            answer = await context.session.elicit_form(form.message, form.schema, related_request_id=context.request_id)
        except (MCPError, ValidationError):
            # Whatever the client did with the form, nobody decided anything.
            answer = None
        tasks.cancel_scope.cancel()
    return answer


def _returns_questions(context: AnyContext) -> bool:
    return context.protocol_version is not None and is_version_at_least(
        context.protocol_version, RETURNS_QUESTIONS_SINCE
    )


def _shown(state: str) -> tuple[str, str] | None:
    """The ids inside a request state; it was sealed by this server, possibly by another version of it."""
    try:
        found = json.loads(state)
        return str(found["suspensionId"]), str(found["digest"])
    except (ValueError, TypeError, KeyError):
        return None
