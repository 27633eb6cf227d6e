"""Finds one question or a list of questions in the store, and records a decision that a person makes in the inbox.

The inbox belongs to the operator, so it shows the questions of every principal. An unknown id and the id of a question
to the calling model raise the same error.

After a decision this process usually continues the execution. If this process lacks a tool of the execution, because
another program registered the tool, it only records the decision, and a process that has all the tools continues.
So a decision on the page of a process without the tool makes no call fail.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import StoreError, UnknownSuspension
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.state import STEP_TERMINAL, ExecutionState, SuspensionState
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import SuspensionRow, SuspensionRowPage
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.inbox.request import InboxRequest, build_token
from planwarden.server.views.card import Card, build_card
from planwarden.server.views.question_text import hash_question

CHANNEL = "inbox"
PAGE_SIZE = 25
WAIT_S = 1.0
"""How long a decision waits for the execution, so that the next page can show the result."""


class QuestionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A question in its current state."""

    row: SuspensionRow
    execution: ExecutionState
    suspension: SuspensionState
    card: Card

    @property
    def question(self) -> Question:
        """The question as it is stored."""
        return self.suspension.question


class QuestionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of questions, before cards are built from them."""

    questions: tuple[tuple[ExecutionState, SuspensionState], ...]
    total: int
    next_cursor: str | None

    def build_token(self) -> str:
        """Return a token that changes whenever the page would look different."""
        states = [
            (item.question.suspension_id, item.question.digest, item.is_open, state.is_finished, len(item.endorsements))
            for state, item in self.questions
        ]
        return build_token((self.total, states))


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
    card = build_card(execution, suspension, service.tools, service.store.clock.now())
    return QuestionRecord(row=row, execution=execution, suspension=suspension, card=card)


async def find_next_waiting(service: Service, record: QuestionRecord) -> tuple[str | None, int]:
    """Return the id of another open question, or None, and the number of all other open questions."""
    page = await service.store.waiting(limit=2)
    others = [row.suspension_id for row in page.rows if row.suspension_id != record.row.suspension_id]
    counts_itself = record.suspension.is_open and record.row.addressee == "human"
    return (others[0] if others else None), page.total - counts_itself


def build_cards(service: Service, page: QuestionPage) -> list[Card]:
    """Return the cards of the page's questions, in their order."""
    tools, now = service.tools, service.store.clock.now()
    return [build_card(execution, suspension, tools, now) for execution, suspension in page.questions]


async def find_page(service: Service, page: SuspensionRowPage) -> QuestionPage:
    """Return the questions of these rows, in their order."""
    questions: list[tuple[ExecutionState, SuspensionState]] = []
    for row in page.rows:
        # One damaged execution must not hide the questions of the others.
        with suppress(StoreError):
            execution = await service.find(row.execution_id)
            if suspension := execution.suspensions.get(row.suspension_id):
                questions.append((execution, suspension))
    return QuestionPage(questions=tuple(questions), total=page.total, next_cursor=page.next_cursor)


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
    ids = (record.row.thread_id, record.row.suspension_id)
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
