"""Asking the client's person, in both eras of the protocol, and what the answer is worth.

A question is a form, whose accepted content is worth the assurance `client` and no more, or an address to open, where the
person decides outside of MCP. Since 2026-07-28 the question is returned and comes back with the answer in a repeated
call; before, it is pushed while the call waits. Either way it is rendered from the stored suspension, and declining or
closing it decides nothing, because unattended hosts do that by themselves. Accepting an address means "agreed to open
it": what was decided there is read from the store. The sealed request state holds ids only, so that sending an answer
twice changes nothing (https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr and
https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation).
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp.types.version import is_version_at_least
from pydantic import ValidationError

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation.forms import Elicitation, ElicitationForm
from planwarden.server.mcp.progress import AnyContext, wait_until_decided
from planwarden.server.views.suspension import Suspension

INPUT_REQUIRED_SINCE = "2026-07-28"
URL_MODE_SINCE = "2025-11-25"
RESPONSE_KEY = "decision"

Mode = Literal["form", "url"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElicitationAnswer:
    """What came back for a question that was shown."""

    suspension_id: str
    digest: str
    """Of the revision that was shown."""
    mode: Mode
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | int | float | bool | list[str] | None] | None = None
    """Of a form; always None for an address, whatever the client sent."""


def declares_forms(capabilities: ClientCapabilities | None) -> bool:
    """True when the client shows forms; one that declares elicitation and no mode of it does too."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def declares_links(capabilities: ClientCapabilities | None) -> bool:
    """True when the client opens addresses for its person."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and elicitation.url is not None


def can_show_forms(context: AnyContext) -> bool:
    """True when the client declared forms and there is a way to send it one."""
    if not declares_forms(context.client_capabilities):
        return False
    return _is_input_required_supported(context) or context.session.can_send_request


def can_open_links(context: AnyContext) -> bool:
    """True when the client declared that it opens addresses and there is a way to send it one."""
    if not declares_links(context.client_capabilities) or not _is_at_least(context, URL_MODE_SINCE):
        return False
    return _is_input_required_supported(context) or context.session.can_send_request


def read_answer(context: AnyContext) -> ElicitationAnswer | None:
    """The answer that came with this call to the question that an earlier call returned.

    None also from a client that does not declare what it claims to have shown, whosever state it sends.
    """
    if context.request_state is None:
        return None
    answer = (context.input_responses or {}).get(RESPONSE_KEY)
    shown = _read_request_state(context.request_state)
    if shown is None or not isinstance(answer, ElicitResult):
        return None
    *_, mode = shown
    declared = declares_forms if mode == "form" else declares_links
    return _build_answer(*shown, answer) if declared(context.client_capabilities) else None


async def elicit(
    service: Service, suspension: Suspension, question: Elicitation, context: AnyContext
) -> ElicitationAnswer | InputRequiredResult | None:
    """The answer, or the question to return from the call; None when the client failed or somebody else decided."""
    mode: Mode = "form" if isinstance(question, ElicitationForm) else "url"
    if _is_input_required_supported(context):
        ids = {"suspensionId": suspension.suspension_id, "digest": suspension.digest, "mode": mode}
        return InputRequiredResult(
            input_requests={RESPONSE_KEY: build_elicit_request(question)}, request_state=json.dumps(ids)
        )
    answer = await _push_until_decided(service, suspension, question, context)
    return None if answer is None else _build_answer(suspension.suspension_id, suspension.digest, mode, answer)


def build_elicit_request(question: Elicitation) -> ElicitRequest:
    """The question as the request that the client's person is asked with."""
    if isinstance(question, ElicitationForm):
        return ElicitRequest(params=ElicitRequestFormParams(message=question.message, requested_schema=question.schema))
    return ElicitRequest(params=ElicitRequestURLParams(message=question.message, url=question.url))


async def notify_decided(suspension_id: str, context: AnyContext) -> None:
    """Lets a client of the older era close its "waiting for the page" once the person has decided there."""
    if not _is_input_required_supported(context):
        await context.session.send_elicit_complete(suspension_id, context.request_id)


async def _push_until_decided(
    service: Service, suspension: Suspension, question: Elicitation, context: AnyContext
) -> ElicitResult | None:
    """The client's answer; None when it failed, or when the question was decided elsewhere first."""
    answer: ElicitResult | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            with suppress(PlanwardenError):
                await wait_until_decided(service, suspension, context)
                tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            answer = await _push(suspension, question, context)
        except (MCPError, ValidationError):
            # Whatever the client did with the question, nobody decided anything.
            answer = None
        tasks.cancel_scope.cancel()
    return answer


async def _push(suspension: Suspension, question: Elicitation, context: AnyContext) -> ElicitResult:
    if isinstance(question, ElicitationForm):
        return await context.session.elicit_form(question.message, question.schema, context.request_id)
    return await context.session.elicit_url(
        question.message, question.url, suspension.suspension_id, context.request_id
    )


def _build_answer(suspension_id: str, digest: str, mode: Mode, answer: ElicitResult) -> ElicitationAnswer:
    return ElicitationAnswer(
        suspension_id=suspension_id,
        digest=digest,
        mode=mode,
        action=answer.action,
        content=answer.content if mode == "form" else None,
    )


def _is_input_required_supported(context: AnyContext) -> bool:
    return _is_at_least(context, INPUT_REQUIRED_SINCE)


def _is_at_least(context: AnyContext, version: str) -> bool:
    return context.protocol_version is not None and is_version_at_least(context.protocol_version, version)


def _read_request_state(state: str) -> tuple[str, str, Mode] | None:
    """What a request state says was shown; it was sealed by this server, possibly by another version of it."""
    try:
        found = json.loads(state)
        mode = found.get("mode", "form")
        return (str(found["suspensionId"]), str(found["digest"]), mode) if mode in ("form", "url") else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
