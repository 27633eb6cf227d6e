"""Finding what a page is about: one question, a page of them, an execution with its timeline.

The inbox is the operator's, so it sees the questions of every principal; ids that are unknown and ids of questions that are
not for people give the same answer.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from planwarden.agent.common.errors import StoreError, UnknownSuspension
from planwarden.agent.core.state import ExecutionState, SuspensionState
from planwarden.agent.ports.store import SuspensionRow, SuspensionRowPage
from planwarden.server.api.service import Service
from planwarden.server.inbox.question_view import QuestionView, build_question_view, read_revision_history

PAGE_SIZE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionRecord:
    """A question where it stands now."""

    row: SuspensionRow
    execution: ExecutionState
    suspension: SuspensionState
    view: QuestionView


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPage:
    """A page of questions."""

    questions: tuple[QuestionView, ...]
    total: int
    next_cursor: str | None


async def find_question(service: Service, suspension_id: str) -> QuestionRecord:
    """The question with that id.

    Raises:
        UnknownSuspension: there is none for a person.
    """
    row = await service.engine.store.find_suspension(suspension_id)
    if row is None or row.addressee != "human":
        raise UnknownSuspension("there is no question with that id, or it is not for a person")
    execution = await service.engine.find(row.execution_id)
    found = execution.suspensions.get(suspension_id)
    if found is None:
        raise UnknownSuspension("there is no question with that id, or it is not for a person")
    return QuestionRecord(
        row=row, execution=execution, suspension=found, view=await _build_view(service, execution, found)
    )


async def list_waiting(service: Service, cursor: str | None, limit: int = PAGE_SIZE) -> QuestionPage:
    """Open questions to people, oldest first. Raises `InvalidArguments` for a foreign cursor."""
    page = await service.engine.store.suspensions(addressee="human", limit=limit, cursor=cursor)
    return await _build_page(service, page, page.total)


async def list_decided(service: Service, cursor: str | None) -> QuestionPage:
    """Questions to people that are over, the newest first. Raises `InvalidArguments` for a foreign cursor."""
    page = await service.engine.store.decided(limit=PAGE_SIZE, cursor=cursor)
    return await _build_page(service, page, page.total)


async def find_next_waiting(service: Service, besides: str) -> tuple[str | None, int]:
    """The id of another open question, and how many there are without this one."""
    page = await service.engine.store.suspensions(addressee="human", limit=2)
    others = [row.suspension_id for row in page.rows if row.suspension_id != besides]
    return (others[0] if others else None), page.total - (len(page.rows) - len(others))


async def _build_page(service: Service, page: SuspensionRowPage, total: int) -> QuestionPage:
    found: list[QuestionView] = []
    for row in page.rows:
        # One damaged execution does not hide the questions of all others.
        try:
            execution = await service.engine.find(row.execution_id)
        except StoreError:
            continue
        suspension = execution.suspensions.get(row.suspension_id)
        if suspension is not None:
            found.append(await _build_view(service, execution, suspension))
    return QuestionPage(questions=tuple(found), total=total, next_cursor=page.next_cursor)


async def _build_view(service: Service, execution: ExecutionState, found: SuspensionState) -> QuestionView:
    history = None
    if found.question.revision > 1:
        log = await service.engine.store.read(execution.execution_id)
        history = read_revision_history(log, found.question.suspension_id)
    return build_question_view(execution, found, service.engine.tools, history)


def build_page_token(listed: QuestionPage) -> str:
    """Changes whenever the page of questions would look different."""
    return _hash_parts(
        [str(listed.total), *(f"{q.suspension_id}{q.digest}{q.is_open}{len(q.votes)}" for q in listed.questions)]
    )


def build_question_token(record: QuestionRecord) -> str:
    """Changes whenever the question or its execution does."""
    return _hash_parts(
        [record.view.digest, str(record.view.is_open), record.execution.status, str(record.execution.version)]
    )


def _hash_parts(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
