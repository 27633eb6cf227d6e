"""Asks the client's person, in both eras of the protocol, and reads the answer.

The client shows a form, or opens an address where the person decides outside of MCP. The accepted content of a form has
the assurance `client` and no more. Since 2026-07-28 a call returns the question, and the client repeats the call with
the answer. Before, the server pushes the question while the call waits. Either way the question is rendered from the
stored suspension. To decline or close it decides nothing, because unattended hosts do that by themselves. To accept an
address means "agreed to open it"; the decision made there is read from the store. The sealed request state holds only
ids, a digest and the mode, so sending an answer twice changes nothing.

Sources: https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr and
https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation.
"""

import json
from contextlib import suppress
from typing import Literal

import anyio
import msgspec
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


class ElicitationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The client's answer to a question that it showed."""

    suspension_id: str
    digest: str
    """The digest of the revision that was shown."""
    mode: Mode
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, str | int | float | bool | list[str] | None] | None = None
    """The content of a form; always None for an address, whatever the client sent."""


def declares_forms(capabilities: ClientCapabilities | None) -> bool:
    """Return True when the client declares forms, or elicitation without a mode, which means forms too."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def declares_links(capabilities: ClientCapabilities | None) -> bool:
    """Return True when the client declares that it opens addresses for its person."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and elicitation.url is not None


def can_show_forms(context: AnyContext) -> bool:
    """Return True when the client declares forms and can be sent one."""
    if not declares_forms(context.client_capabilities):
        return False
    return _is_input_required_supported(context) or context.session.can_send_request


def can_open_links(context: AnyContext) -> bool:
    """Return True when the client declares that it opens addresses and can be sent one."""
    if not declares_links(context.client_capabilities) or not _is_at_least(context, URL_MODE_SINCE):
        return False
    return _is_input_required_supported(context) or context.session.can_send_request


def read_answer(context: AnyContext) -> ElicitationAnswer | None:
    """Return the answer in this call to the question that an earlier call returned, or None.

    None also when the client does not declare the mode that the state names: it cannot have shown the question.
    """
    if context.request_state is None:
        return None
    answer = (context.input_responses or {}).get(RESPONSE_KEY)
    state = _read_request_state(context.request_state)
    if state is None or not isinstance(answer, ElicitResult):
        return None
    *_, mode = state
    declared = declares_forms if mode == "form" else declares_links
    return _build_answer(*state, answer) if declared(context.client_capabilities) else None


def read_asked(context: AnyContext) -> str | None:
    """Return the id of the question that an earlier call returned and this call repeats, with or without an answer."""
    state = None if context.request_state is None else _read_request_state(context.request_state)
    return None if state is None else state[0]


async def elicit(
    service: Service, suspension: Suspension, question: Elicitation, context: AnyContext
) -> ElicitationAnswer | InputRequiredResult | None:
    """Return the answer, or the question that the call must return; None when the client failed or another channel
    decided."""
    mode: Mode = "form" if isinstance(question, ElicitationForm) else "url"
    if _is_input_required_supported(context):
        ids = {"suspensionId": suspension.suspension_id, "digest": suspension.digest, "mode": mode}
        return InputRequiredResult(
            input_requests={RESPONSE_KEY: build_elicit_request(question)}, request_state=json.dumps(ids)
        )
    answer = await _push_until_decided(service, suspension, question, context)
    return None if answer is None else _build_answer(suspension.suspension_id, suspension.digest, mode, answer)


def build_elicit_request(question: Elicitation) -> ElicitRequest:
    """Return the question as an `elicitation/create` request."""
    if isinstance(question, ElicitationForm):
        return ElicitRequest(params=ElicitRequestFormParams(message=question.message, requested_schema=question.schema))
    return ElicitRequest(params=ElicitRequestURLParams(message=question.message, url=question.url))


async def notify_decided(suspension_id: str, context: AnyContext) -> None:
    """Tell a client of the older era that the person decided on the page, so that it can stop waiting for it."""
    if not _is_input_required_supported(context):
        await context.session.send_elicit_complete(suspension_id, context.request_id)


async def _push_until_decided(
    service: Service, suspension: Suspension, question: Elicitation, context: AnyContext
) -> ElicitResult | None:
    """Return the client's answer; None when the client failed, or when another channel decided first."""
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
            # A client that fails has decided nothing.
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
    """Suspension id, digest and mode of the question that was shown; None if another version sealed another form."""
    try:
        sealed = json.loads(state)
        mode = sealed.get("mode", "form")
        return (str(sealed["suspensionId"]), str(sealed["digest"]), mode) if mode in ("form", "url") else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
