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

from contextlib import suppress

import anyio
import msgspec
from mcp.shared.exceptions import MCPError
from mcp.types import ClientCapabilities, ElicitRequest, ElicitResult, InputRequiredResult
from mcp.types.version import is_version_at_least
from pydantic import ValidationError

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation.forms import Elicitation, ElicitationForm, Mode
from planwarden.server.mcp.progress import AnyContext, wait_until_decided
from planwarden.server.views.suspension import Suspension

INPUT_REQUIRED_SINCE = "2026-07-28"
URL_MODE_SINCE = "2025-11-25"
RESPONSE_KEY = "decision"


class QuestionReference(msgspec.Struct, frozen=True, rename="camel"):
    """What the sealed request state says of the question that the client showed."""

    suspension_id: str
    digest: str
    """The digest of the revision that was shown."""
    mode: Mode = "form"


Answer = tuple[QuestionReference, ElicitResult]
"""The client's answer; what it has to say about an address but the action counts for nothing."""


def find_modes(capabilities: ClientCapabilities | None) -> frozenset[Mode]:
    """Return the modes that the client declares; elicitation without a mode means forms."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return frozenset()
    if elicitation.url is None:
        return frozenset({"form"})
    return frozenset({"url"}) if elicitation.form is None else frozenset({"form", "url"})


def find_usable_modes(context: AnyContext) -> frozenset[Mode]:
    """Return the modes that the client declares and in which it can be sent a question."""
    if not (_is_input_required_supported(context) or context.session.can_send_request):
        return frozenset()
    modes = find_modes(context.client_capabilities)
    return modes if _is_at_least(context, URL_MODE_SINCE) else modes - {"url"}


def read_reference(context: AnyContext) -> QuestionReference | None:
    """Return the question that an earlier call returned and this call repeats, with or without an answer."""
    try:
        return msgspec.json.decode(context.request_state or "", type=QuestionReference)
    except msgspec.DecodeError:
        # None as well where another version sealed another form.
        return None


def read_answer(context: AnyContext) -> Answer | None:
    """Return the answer in this call to the question that an earlier call returned, or None.

    None also when the client does not declare the mode that the state names: it cannot have shown the question.
    """
    reference, result = read_reference(context), (context.input_responses or {}).get(RESPONSE_KEY)
    if reference is None or not isinstance(result, ElicitResult):
        return None
    return (reference, result) if reference.mode in find_modes(context.client_capabilities) else None


async def elicit(
    service: Service, suspension: Suspension, elicitation: Elicitation, context: AnyContext
) -> Answer | InputRequiredResult | None:
    """Return the answer, or the question that the call must return; None when the client failed or another channel
    decided."""
    reference = QuestionReference(suspension.suspension_id, suspension.digest, elicitation.mode)
    if _is_input_required_supported(context):
        request, state = ElicitRequest(params=elicitation), msgspec.json.encode(reference).decode()
        return InputRequiredResult(input_requests={RESPONSE_KEY: request}, request_state=state)
    result = await _push_until_decided(service, suspension, elicitation, context)
    return None if result is None else (reference, result)


async def notify_decided(suspension_id: str, context: AnyContext) -> None:
    """Tell a client of the older era that the person decided on the page, so that it can stop waiting for it."""
    if not _is_input_required_supported(context):
        await context.session.send_elicit_complete(suspension_id, context.request_id)


async def _push_until_decided(
    service: Service, suspension: Suspension, elicitation: Elicitation, context: AnyContext
) -> ElicitResult | None:
    """Return the client's answer; None when the client failed, or when another channel decided first."""
    answer: ElicitResult | None = None
    session, request_id, message = context.session, context.request_id, elicitation.message
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            with suppress(PlanwardenError):
                await wait_until_decided(service, suspension, context)
                tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        # A client that fails has decided nothing.
        with suppress(MCPError, ValidationError):
            if isinstance(elicitation, ElicitationForm):
                answer = await session.elicit_form(message, elicitation.requested_schema, request_id)
            else:
                answer = await session.elicit_url(message, elicitation.url, suspension.suspension_id, request_id)
        tasks.cancel_scope.cancel()
    return answer


def _is_input_required_supported(context: AnyContext) -> bool:
    return _is_at_least(context, INPUT_REQUIRED_SINCE)


def _is_at_least(context: AnyContext, version: str) -> bool:
    return context.protocol_version is not None and is_version_at_least(context.protocol_version, version)
