"""The questions that a task asks through its client, and the decisions in the client's answers.

If the client shows forms, a question that a form can decide becomes an input request with the key
`SUSPENSION.REVISION`. Every other question to a person becomes a link, if the client opens links. A link's key has a
hash of the page's address: a restart changes the address, and an old key must not fit the new page. An accepted form is
checked like any other answer and has only the assurance `client`. A form without a decision decides nothing, because
unattended hosts close forms by themselves. A link decides nothing, opened or not: the person decides on the page.
The protocol allows each key only one answer, so a task never repeats a question that has been answered.

The audit says which questions were answered without a decision, and for which clients a task is over. These facts are
not events of the execution, because the execution continues however its task ends. In the audit, they survive restarts,
and every process with the same store sees them.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

import anyio
import msgspec
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
from planwarden.agent.ports.store import Store
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation import (
    Elicitation,
    Mode,
    build_elicitation,
    build_form,
    compute_form_digest,
    find_modes,
    read_decision,
)
from planwarden.server.views.execution import Execution
from planwarden.server.views.suspension import Suspension

CHANNEL = "tasks"
MAX_KEY_SHOWN = 80
PAGE = 100
"""The most rows of the audit that are read at once."""

Content = dict[str, Any]
TaskQuestion = tuple[Suspension, Elicitation]
"""A suspension, and the form or link with which the client puts the question to its user."""


class TaskNotes(msgspec.Struct):
    """What the audit says about the task of one execution."""

    answered: set[str] = msgspec.field(default_factory=set[str])
    """The revisions of questions that a client has answered; a task may not ask them again."""
    opened: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """By revision: when a person last agreed to open the page of the question, in Unix seconds."""
    ended: set[str] = msgspec.field(default_factory=set[str])
    """The kinds of clients that were told that the task is over; `state.name_client_kind` names the kinds."""


async def read_notes(store: Store, execution_id: str) -> TaskNotes:
    """Return what all processes noted about the task of an execution. Raises `StoreError`."""
    notes, position, rows = TaskNotes(), 0, None
    while rows is None or len(rows) == PAGE:
        rows = await store.task_rows(execution_id, after=position, limit=PAGE)
        for row in rows:
            position, kind, facts = row.sequence, row.entry.kind, row.entry.facts
            if kind == "task_ended":
                notes.ended.add(str(facts.get("client")))
                continue
            revision = parse_revision(str(facts.get("key")))
            notes.answered.add(revision)
            if kind == "link_answered" and facts.get("action") == "accept":
                notes.opened[revision] = row.at
    return notes


def parse_revision(key: str) -> str:
    """Return the revision that the key of an input request names, as `SUSPENSION.REVISION`."""
    return ".".join(key.split(".", 2)[:2])


class TaskInput:
    """Asks people through tasks. Conformance tests override `build_form` and `read_decision`."""

    build_form = staticmethod(build_form)
    read_decision = staticmethod(read_decision)

    def __init__(self, channel: str = CHANNEL) -> None:
        self._channel = channel
        self._writing = anyio.Lock()

    async def find_questions(
        self, service: Service, view: Execution, capabilities: ClientCapabilities | None
    ) -> dict[str, TaskQuestion]:
        """Return the questions that this client can be asked now, by key. Raises `StoreError`."""
        questions: dict[str, TaskQuestion] = {}
        for suspension in view.suspensions:
            if suspension.addressee != "human":
                continue
            elicitation = build_elicitation(suspension, find_modes(capabilities), self.build_form)
            if elicitation is not None:
                questions[_build_key(suspension, elicitation)] = suspension, elicitation
        if not questions:
            return {}
        notes = await read_notes(service.store, view.execution_id)
        return {key: question for key, question in questions.items() if parse_revision(key) not in notes.answered}

    async def apply_responses(
        self, service: Service, principal: str, questions: Mapping[str, TaskQuestion], responses: Mapping[str, Any]
    ) -> None:
        """Apply the responses to these questions and ignore all others. Applying a response again changes nothing.

        Raises:
            MCPError: a response is malformed (then none counts) or does not fit its question (earlier ones count).
            StoreError: the store failed; responses that it already recorded count.
        """
        parsed = {key: _parse_response(key, responses[key]) for key in questions if key in responses}
        for key, response in parsed.items():
            suspension, elicitation = questions[key]
            try:
                # The answer to a link decides nothing.
                is_answer = response.action == "accept" and elicitation.mode == "form"
                decision = self.read_decision(suspension, response.content) if is_answer else None
                if decision is None:
                    await self._record_no_decision(
                        service, suspension, elicitation.mode, key, response.action, principal
                    )
                else:
                    await self._record_decision(service, suspension, decision, principal)
            except (InvalidArguments, LimitExceeded) as error:
                raise MCPError(code=INVALID_PARAMS, message=f"inputResponses {key!r}: {error.message}") from None

    async def _record_decision(
        self, service: Service, suspension: Suspension, decision: Decision, principal: str
    ) -> None:
        """Record the decision. If the question was decided, expired or revised in the meantime, do nothing."""
        authority = Authority(
            assurance="client",
            channel=self._channel,
            principal=principal,
            digest=suspension.digest,
            rendered=compute_form_digest(suspension),
        )
        with suppress(AlreadyDecided, Expired, StaleDefinition, StaleRevision, UnknownSuspension):
            await service.answer(
                suspension.thread_id, suspension.suspension_id, decision, authority, principal=principal
            )

    async def _record_no_decision(
        self, service: Service, suspension: Suspension, mode: Mode, key: str, action: str, principal: str
    ) -> None:
        entry = AuditEntry(
            kind="form_closed" if mode == "form" else "link_answered",
            facts={"key": key, "action": action, "channel": self._channel, "principal": principal},
            execution_id=suspension.execution_id,
            suspension_id=suspension.suspension_id,
        )
        await self.write_note(service.store, entry, lambda notes: parse_revision(key) in notes.answered)

    async def write_note(self, store: Store, entry: AuditEntry, is_known: Callable[[TaskNotes], bool]) -> None:
        """Write the entry, unless `is_known` finds it in the notes of its execution. Raises `StoreError`."""
        async with self._writing:
            if not is_known(await read_notes(store, entry.execution_id or "")):
                await store.audit((entry,))


def build_input_request(elicitation: Elicitation) -> Content:
    """Return the `elicitation/create` request, as JSON."""
    return ElicitRequest(params=elicitation).model_dump(by_alias=True, mode="json", exclude_none=True)


def _build_key(suspension: Suspension, elicitation: Elicitation) -> str:
    revision = f"{suspension.suspension_id}.{suspension.revision}"
    if elicitation.mode == "form":
        return revision
    return f"{revision}.link-{sha256(elicitation.url.encode()).hexdigest()[:8]}"


def _parse_response(key: str, response: object) -> ElicitResult:
    try:
        return ElicitResult.model_validate(response, by_name=False)
    except ValidationError:
        raise MCPError(
            code=INVALID_PARAMS,
            message=f"inputResponses {key[:MAX_KEY_SHOWN]!r} is not the result of an elicitation: it needs an action "
            "(accept, decline or cancel) and, when accepted, the form's content",
        ) from None
