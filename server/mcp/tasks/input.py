"""What a task asks of its client, and what the client's answers decide.

A question that a form can decide is an input request under the key `SUSPENSION.REVISION`, for clients that show forms; every
other question to a person is an address to open, for clients that open them, under a key that names the address too: it
changes with a restart, and an address that is gone must not be taken for the one that was shown. An accepted form goes
through the same gate as on every other channel and is worth `client`, no more. A form that came back without a decision
decides nothing, because unattended hosts close forms by themselves; neither does an address, whether it was opened or not:
the person decides on the page. As a key may not be used again after its answer, the question is not put through the task
any more.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Literal

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, ClientCapabilities, ElicitResult
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
from planwarden.agent.core.audit import AuditEntry
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation.exchange import build_elicit_request, declares_forms, declares_links
from planwarden.server.mcp.elicitation.forms import (
    Elicitation,
    ElicitationForm,
    ElicitationLink,
    build_form,
    build_link,
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
"""A question, and how this client can be asked it."""


class TaskInput:
    """Questions of tasks to clients. `form` and `decision` make a form and read it; a suite of fixtures has its own."""

    def __init__(
        self,
        form: Callable[[Suspension], ElicitationForm | None] = build_form,
        decision: Callable[[Suspension, Content | None], Decision | None] = read_decision,
    ) -> None:
        self._form = form
        self._decision = decision
        self.notes = TaskNotesStore()

    async def find_questions(
        self, service: Service, view: Execution, capabilities: ClientCapabilities | None
    ) -> dict[str, TaskQuestion]:
        """What this client can be asked now, by key. Raises `StoreError`."""
        found: dict[str, TaskQuestion] = {}
        for suspension in view.suspensions:
            question = self._build_elicitation(suspension, capabilities) if suspension.addressee == "human" else None
            if question is not None:
                found[_build_key(suspension, question)] = suspension, question
        if not found:
            return {}
        notes = await self.notes.read(service.engine.store, view.execution_id)
        return {key: asked for key, asked in found.items() if parse_revision(key) not in notes.answered}

    async def apply_responses(
        self, service: Service, principal: str, asked: Mapping[str, TaskQuestion], responses: Mapping[str, Any]
    ) -> None:
        """Apply the responses to outstanding keys and ignore all others; the same responses again change nothing.

        Raises:
            MCPError: a response does not fit its question, which stays open; the ones before it count.
            StoreError: nothing more was recorded.
        """
        read = {key: _parse_response(key, responses[key]) for key in asked if key in responses}
        for key, response in read.items():
            suspension, question = asked[key]
            try:
                decision = self._read_decision(suspension, question, response)
                if decision is None:
                    await self._record_no_decision(service, suspension, question, key, response.action, principal)
                else:
                    await _record_decision(service, suspension, decision, principal)
            except (InvalidArguments, LimitExceeded) as error:
                raise MCPError(code=INVALID_PARAMS, message=f"inputResponses {key!r}: {error.message}") from None

    def _build_elicitation(self, suspension: Suspension, capabilities: ClientCapabilities | None) -> Elicitation | None:
        form = self._form(suspension) if declares_forms(capabilities) else None
        if form is not None:
            return form
        # Everything else is decided on the page.
        return build_link(suspension) if declares_links(capabilities) else None

    def _read_decision(self, suspension: Suspension, question: Elicitation, response: ElicitResult) -> Decision | None:
        """None when it decides nothing, which is all that the answer to an address can do, whatever came with it."""
        if response.action != "accept" or isinstance(question, ElicitationLink):
            return None
        return self._decision(suspension, response.content)

    async def _record_no_decision(
        self,
        service: Service,
        suspension: Suspension,
        question: Elicitation,
        key: str,
        action: Literal["accept", "decline", "cancel"],
        principal: str,
    ) -> None:
        entry = AuditEntry(
            kind="form_closed" if isinstance(question, ElicitationForm) else "link_answered",
            facts={"key": key, "action": action, "channel": CHANNEL, "principal": principal},
            execution_id=suspension.execution_id,
            suspension_id=suspension.suspension_id,
        )
        revision = parse_revision(key)
        await self.notes.add(
            service.engine.store, suspension.execution_id, entry, lambda notes: revision in notes.answered
        )


def build_input_request(question: Elicitation) -> Content:
    """The question as the request that a client would get by itself."""
    return build_elicit_request(question).model_dump(by_alias=True, mode="json", exclude_none=True)


def _build_key(suspension: Suspension, question: Elicitation) -> str:
    revision = f"{suspension.suspension_id}.{suspension.revision}"
    if isinstance(question, ElicitationForm):
        return revision
    return f"{revision}.link-{sha256(question.url.encode()).hexdigest()[:8]}"


async def _record_decision(service: Service, suspension: Suspension, decision: Decision, principal: str) -> None:
    """What somebody else decided, what expired or was revised meanwhile is superseded, which is no error here."""
    authority = Authority(
        assurance="client",
        channel=CHANNEL,
        principal=principal,
        digest=suspension.digest,
        rendered=compute_form_digest(suspension),
    )
    try:
        await service.answer(
            suspension.thread_id,
            suspension.suspension_id,
            decision,
            authority,
            wait_seconds=0,
            principal=principal,
        )
    except (AlreadyDecided, Expired, StaleDefinition, StaleRevision, UnknownSuspension):
        return


def _parse_response(key: str, given: object) -> ElicitResult:
    try:
        return ElicitResult.model_validate(given, by_name=False)
    except ValidationError:
        raise MCPError(
            code=INVALID_PARAMS,
            message=f"inputResponses {key[:MAX_KEY_SHOWN]!r} is not the result of an elicitation: it needs an action "
            "(accept, decline or cancel) and, when accepted, the form's content",
        ) from None
