"""The questions that a task asks through its client, and the decisions in the client's answers.

For clients that show forms, a question that a form can decide is an input request with the key `SUSPENSION.REVISION`.
Every other question to a person is an address, for clients that open addresses. Its key names the address too: the
address changes with a restart, and the key of an old one must not stand for the new one. An accepted form is checked as
in every other channel and has the assurance `client`, no more. A form without a decision decides nothing, because
unattended hosts close forms by themselves. An address decides nothing, opened or not: the person decides on the page.
The protocol allows each key only one answer, so after it the task does not ask the question again.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Literal

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, ClientCapabilities, ElicitRequest, ElicitResult
from pydantic import ValidationError

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    LimitExceeded,
    StaleDefinition,
    StaleRevision,
    UnknownSuspension,
)
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation.exchange import find_modes
from planwarden.server.mcp.elicitation.forms import (
    Elicitation,
    ElicitationForm,
    ElicitationLink,
    build_elicitation,
    build_form,
    compute_form_digest,
    read_decision,
)
from planwarden.server.mcp.tasks.notes import TaskNotesStore, parse_revision
from planwarden.server.views.execution import Execution
from planwarden.server.views.suspension import Suspension

CHANNEL = "tasks"
MAX_KEY_SHOWN = 80

Content = dict[str, Any]
TaskQuestion = tuple[Suspension, Elicitation]
"""A suspension, and the form or address that asks this client's person about it."""


class TaskInput:
    """Asks through tasks. `form` builds a form and `decision` reads it; a suite of fixtures passes its own."""

    def __init__(
        self,
        form: Callable[[Suspension], ElicitationForm | None] = build_form,
        decision: Callable[[Suspension, Content | None], Decision | None] = read_decision,
        *,
        channel: str = CHANNEL,
    ) -> None:
        self._form = form
        self._decision = decision
        self._channel = channel
        self.notes = TaskNotesStore()

    async def find_questions(
        self, service: Service, view: Execution, capabilities: ClientCapabilities | None
    ) -> dict[str, TaskQuestion]:
        """Return the questions that this client can be asked now, by key. Raises `StoreError`."""
        questions: dict[str, TaskQuestion] = {}
        for suspension in view.suspensions:
            if suspension.addressee != "human":
                continue
            elicitation = build_elicitation(suspension, find_modes(capabilities), self._form)
            if elicitation is not None:
                questions[_build_key(suspension, elicitation)] = suspension, elicitation
        if not questions:
            return {}
        notes = await self.notes.read(service.store, view.execution_id)
        return {key: question for key, question in questions.items() if parse_revision(key) not in notes.answered}

    async def apply_responses(
        self, service: Service, principal: str, questions: Mapping[str, TaskQuestion], responses: Mapping[str, Any]
    ) -> None:
        """Apply the responses to these questions and ignores all others; repeating them changes nothing.

        Raises:
            MCPError: a response does not fit its question, which stays open; those before it count.
            StoreError: the store failed; responses that it already recorded count.
        """
        parsed = {key: _parse_response(key, responses[key]) for key in questions if key in responses}
        for key, response in parsed.items():
            suspension, elicitation = questions[key]
            try:
                decision = self._read_decision(suspension, elicitation, response)
                if decision is None:
                    await self._record_no_decision(service, suspension, elicitation, key, response.action, principal)
                else:
                    await _record_decision(service, suspension, decision, principal, self._channel)
            except (InvalidArguments, LimitExceeded) as error:
                raise MCPError(code=INVALID_PARAMS, message=f"inputResponses {key!r}: {error.message}") from None

    def _read_decision(
        self, suspension: Suspension, elicitation: Elicitation, response: ElicitResult
    ) -> Decision | None:
        """Return the decision, or None if there is none; the answer to an address never has one."""
        if response.action != "accept" or isinstance(elicitation, ElicitationLink):
            return None
        return self._decision(suspension, response.content)

    async def _record_no_decision(
        self,
        service: Service,
        suspension: Suspension,
        elicitation: Elicitation,
        key: str,
        action: Literal["accept", "decline", "cancel"],
        principal: str,
    ) -> None:
        entry = AuditEntry(
            kind="form_closed" if isinstance(elicitation, ElicitationForm) else "link_answered",
            facts={"key": key, "action": action, "channel": self._channel, "principal": principal},
            execution_id=suspension.execution_id,
            suspension_id=suspension.suspension_id,
        )
        revision = parse_revision(key)
        await self.notes.add(service.store, suspension.execution_id, entry, lambda notes: revision in notes.answered)


def build_input_request(elicitation: Elicitation) -> Content:
    """Return the `elicitation/create` request, as JSON."""
    return ElicitRequest(params=elicitation).model_dump(by_alias=True, mode="json", exclude_none=True)


def _build_key(suspension: Suspension, elicitation: Elicitation) -> str:
    revision = f"{suspension.suspension_id}.{suspension.revision}"
    if isinstance(elicitation, ElicitationForm):
        return revision
    return f"{revision}.link-{sha256(elicitation.url.encode()).hexdigest()[:8]}"


async def _record_decision(
    service: Service, suspension: Suspension, decision: Decision, principal: str, channel: str
) -> None:
    """Record the decision. If the question was decided, expired or revised in the meantime, do nothing."""
    authority = Authority(
        assurance="client",
        channel=channel,
        principal=principal,
        digest=suspension.digest,
        rendered=compute_form_digest(suspension),
    )
    try:
        await service.answer(suspension.thread_id, suspension.suspension_id, decision, authority, principal=principal)
    except (AlreadyDecided, Expired, StaleDefinition, StaleRevision, UnknownSuspension):
        return


def _parse_response(key: str, response: object) -> ElicitResult:
    try:
        return ElicitResult.model_validate(response, by_name=False)
    except ValidationError:
        raise MCPError(
            code=INVALID_PARAMS,
            message=f"inputResponses {key[:MAX_KEY_SHOWN]!r} is not the result of an elicitation: it needs an action "
            "(accept, decline or cancel) and, when accepted, the form's content",
        ) from None
