"""Finds one question or a list of questions in the store, and records a decision that a person makes in the inbox.

The inbox belongs to the operator, so it shows the questions of every principal. An unknown id and the id of a question
to the calling model raise the same error.

After a decision this process usually continues the execution. If this process lacks a tool of the execution, because
another program registered the tool, it only records the decision, and a process that has all the tools continues.
Otherwise the call would fail in a process that cannot make it.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import cached_property

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import StoreError, UnknownSuspension
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.state import STEP_TERMINAL, ExecutionState, SuspensionState
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import SuspensionRow
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.inbox.request import InboxRequest, build_token
from planwarden.server.views.card import Card, build_card
from planwarden.server.views.question_text import hash_question

CHANNEL = "inbox"
PAGE_SIZE = 25
WAIT_S = 1.0
"""How long a decision waits for the execution, so that the next page can show the result."""


class QuestionRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A question in its current state."""

    execution: ExecutionState
    suspension: SuspensionState
    service: Service

    @property
    def question(self) -> Question:
        """The question as it is stored."""
        return self.suspension.question

    @property
    def suspension_id(self) -> str:
        return self.question.suspension_id

    @cached_property
    def card(self) -> Card:
        """What the pages show of the question."""
        return build_card(self.execution, self.suspension, self.service.tools, self.service.store.clock.now())


async def find_question_of(request: InboxRequest) -> QuestionRecord:
    """Return the question whose id is in the request's URL. Raises `UnknownSuspension` if there is none."""
    return await find_question(request.service, request.path("suspension_id"))


async def find_question(service: Service, suspension_id: str) -> QuestionRecord:
    """Return the question with that id.

    Raises:
        UnknownSuspension: no question to a person has this id.
    """
    row = await service.store.find_suspension(suspension_id)
    execution = await service.find(row.execution_id) if row is not None and row.addressee == "human" else None
    suspension = None if execution is None else execution.suspensions.get(suspension_id)
    if row is None or execution is None or suspension is None:
        raise UnknownSuspension("no question has this id, or the question is not for a person")
    return QuestionRecord(execution=execution, suspension=suspension, service=service)


async def find_next_waiting(service: Service, record: QuestionRecord) -> tuple[str | None, int]:
    """Return the id of another open question, or None, and the number of all other open questions."""
    page = await service.store.waiting(limit=2)
    others = [row.suspension_id for row in page.rows if row.suspension_id != record.suspension_id]
    return (others[0] if others else None), page.total - record.suspension.is_open


async def find_questions(service: Service, rows: Iterable[SuspensionRow]) -> list[QuestionRecord]:
    """Return the questions of these rows, in their order."""
    records: list[QuestionRecord] = []
    for row in rows:
        # One damaged execution must not hide the questions of the others.
        with suppress(StoreError):
            execution = await service.find(row.execution_id)
            if suspension := execution.suspensions.get(row.suspension_id):
                records.append(QuestionRecord(execution=execution, suspension=suspension, service=service))
    return records


def build_question_token(record: QuestionRecord) -> str:
    """Return a token that changes whenever the question or its execution changes."""
    execution = record.execution
    return build_token((record.question.digest, record.card.is_open, execution.status, execution.version))


async def record_decision(
    request: InboxRequest,
    record: QuestionRecord,
    decision: Decision,
    digest: str,
    *,
    wait_s: float = 0.0,
    assurance: ev.Assurance = "human",
    then: Callable[[], Awaitable[None]] | None = None,
) -> ExecutionState:
    """Record the decision, with the reason from the form, for the revision that has `digest`; return the execution.

    `Service.answer` explains `then` and the errors.
    """
    service = request.service
    decision = replace(decision, reason=request.form_value("reason").strip() or None)
    rendered = hash_question(record.card) if digest == record.question.digest else ""
    authority = Authority(
        assurance=assurance, channel=CHANNEL, principal=request.session.principal, digest=digest, rendered=rendered
    )
    ids = (record.execution.thread_id, record.suspension_id)
    if not list_unavailable_tools(service, record.execution):
        execution, _ = await service.answer(*ids, decision, authority, principal=None, then=then)
        return await service.wait(execution, wait_s) if wait_s else execution
    recorder = Engine(service.store, service.tools, CallerModel(), service.policy, adopts=False, executes=False)
    async with recorder:
        recording = Service(recorder, service.settings)
        execution, _ = await recording.answer(*ids, decision, authority, principal=None, then=then)
        return execution


def list_unavailable_tools(service: Service, execution: ExecutionState) -> tuple[str, ...]:
    """Return the names of the tools that unfinished steps need, and that this process does not have or cannot use."""
    tools = service.tools
    names = dict.fromkeys(
        name
        for state in execution.steps.values()
        if state.status not in STEP_TERMINAL
        for name in (*state.step.required_tools, *(call.tool_name for call in (*state.step.tool_calls, *state.calls)))
    )
    return tuple(name for name in names if (tool := tools.get(name)) is None or tool.unavailable)
