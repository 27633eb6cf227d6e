"""Finding questions in the store: one question, or a page of them.

The inbox belongs to the operator, so it shows the questions of every principal. An unknown id and the id of a question
to the calling model raise the same error.
"""

import msgspec

from planwarden.agent.common.errors import StoreError, UnknownSuspension
from planwarden.agent.core.execution.question import Question
from planwarden.agent.core.execution.state import ExecutionState, SuspensionState
from planwarden.agent.ports.store import SuspensionRow, SuspensionRowPage
from planwarden.server.api.service import Service
from planwarden.server.inbox.request import InboxRequest, build_token
from planwarden.server.views.card import Card, build_card

PAGE_SIZE = 25
_UNKNOWN = "no question has this id, or the question is not for a person"


class QuestionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A question in its current state."""

    row: SuspensionRow
    execution: ExecutionState
    suspension: SuspensionState
    card: Card

    @property
    def question(self) -> Question:
        """What is asked, as it is stored."""
        return self.suspension.question


class QuestionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of questions, before anything of it is built for display."""

    questions: tuple[tuple[ExecutionState, SuspensionState], ...]
    total: int
    next_cursor: str | None

    def build_token(self) -> str:
        """Return a token that changes whenever the page would look different."""
        return build_token((self.total, [_describe(*question) for question in self.questions]))


async def find_question_of(request: InboxRequest) -> QuestionRecord:
    """Return the question that the address names. Raises `UnknownSuspension`."""
    return await find_question(request.service, request.path("suspension_id"))


async def find_question(service: Service, suspension_id: str) -> QuestionRecord:
    """Return the question with that id.

    Raises:
        UnknownSuspension: no question to a person has this id.
    """
    row = await service.store.find_suspension(suspension_id)
    if row is None or row.addressee != "human":
        raise UnknownSuspension(_UNKNOWN)
    execution = await service.find(row.execution_id)
    suspension = execution.suspensions.get(suspension_id)
    if suspension is None:
        raise UnknownSuspension(_UNKNOWN)
    card = build_card(execution, suspension, service.tools, service.store.clock.now())
    return QuestionRecord(row=row, execution=execution, suspension=suspension, card=card)


async def list_waiting(service: Service, cursor: str | None) -> QuestionPage:
    """Return open questions to people, the most dangerous first, then the oldest. Raises as `Store.waiting`."""
    return await _find_page(service, await service.store.waiting(limit=PAGE_SIZE, cursor=cursor))


async def list_decided(service: Service, cursor: str | None) -> QuestionPage:
    """Return closed questions to people, newest first. Raises `InvalidArguments` for a foreign cursor."""
    return await _find_page(service, await service.store.decided(limit=PAGE_SIZE, cursor=cursor))


async def find_next_waiting(service: Service, record: QuestionRecord) -> tuple[str | None, int]:
    """Return the id of an open question other than this one, and the number of all others."""
    page = await service.store.waiting(limit=2)
    others = [row.suspension_id for row in page.rows if row.suspension_id != record.row.suspension_id]
    counts_itself = record.suspension.is_open and record.row.addressee == "human"
    return (others[0] if others else None), page.total - counts_itself


def build_cards(service: Service, page: QuestionPage) -> list[Card]:
    """Return what the page shows of its questions, in their order."""
    tools, now = service.tools, service.store.clock.now()
    return [build_card(execution, suspension, tools, now) for execution, suspension in page.questions]


async def _find_page(service: Service, page: SuspensionRowPage) -> QuestionPage:
    questions: list[tuple[ExecutionState, SuspensionState]] = []
    for row in page.rows:
        # One damaged execution must not hide the questions of the others.
        try:
            execution = await service.find(row.execution_id)
        except StoreError:
            continue
        suspension = execution.suspensions.get(row.suspension_id)
        if suspension is not None:
            questions.append((execution, suspension))
    return QuestionPage(questions=tuple(questions), total=page.total, next_cursor=page.next_cursor)


def build_question_token(record: QuestionRecord) -> str:
    """Return a token that changes whenever the question or its execution changes."""
    execution = record.execution
    return build_token((record.question.digest, record.card.is_open, execution.status, execution.version))


def _describe(execution: ExecutionState, suspension: SuspensionState) -> str:
    is_open = suspension.is_open and not execution.is_finished
    return f"{suspension.question.suspension_id}{suspension.question.digest}{is_open}{len(suspension.endorsements)}"
