"""A page of executions of the store without a disk."""

from collections.abc import Iterable
from dataclasses import dataclass

from planwarden.agent.core.question import Addressee
from planwarden.agent.core.synopsis import StepProgress, Synopsis, clean_text, fold_words
from planwarden.agent.ports.listing import ExecutionFilter, ListedExecution, ListedPage, ListPosition, read_cursor
from planwarden.agent.ports.store import Header, SuspensionRow


@dataclass(frozen=True, slots=True)
class ListedRow:
    """What the store has of one execution that is listed."""

    number: int
    """Grows with each execution."""
    header: Header
    synopsis: Synopsis
    progress: StepProgress
    fault: str
    pending: tuple[SuspensionRow, ...]
    """Oldest first."""

    @property
    def place(self) -> tuple[float, int]:
        return self.header.updated_at, self.number

    def meets(self, wanted: ExecutionFilter, words: Iterable[str]) -> bool:
        header, synopsis = self.header, self.synopsis
        return (
            (wanted.status is None or header.status == wanted.status)
            and (wanted.host is None or synopsis.host == clean_text(wanted.host))
            and (wanted.tool is None or clean_text(wanted.tool) in synopsis.tools)
            and (wanted.saved_plan is None or synopsis.saved_plan == clean_text(wanted.saved_plan))
            and (wanted.principal is None or header.principal == wanted.principal)
            and all(word in synopsis.search for word in words)
        )

    def build(self) -> ListedExecution:
        addressees: list[Addressee] = [row.addressee for row in self.pending]
        question = next((row.suspension_id for row in self.pending if row.addressee == "human"), None)
        return ListedExecution(
            execution_id=self.header.execution_id,
            thread_id=self.header.thread_id,
            principal=self.header.principal,
            status=self.header.status,
            version=self.header.version,
            created_at=self.header.created_at,
            active_at=self.place[0],
            step_count=self.progress.step_count,
            steps_done=self.progress.steps_done,
            title=self.synopsis.title,
            is_goal=self.synopsis.is_goal,
            host=self.synopsis.host,
            saved_plan=self.synopsis.saved_plan,
            fault=self.fault,
            question=question,
            waits_for="human" if question is not None else min(addressees, default=None),
        )


def list_page(rows: Iterable[ListedRow], wanted: ExecutionFilter, limit: int, cursor: str | None) -> ListedPage:
    """The page after the cursor. Raises `InvalidArguments` for a foreign one."""
    position, words = read_cursor(cursor), fold_words(wanted.search)
    below = (position.active_at, position.number)
    found = sorted((row for row in rows if row.place < below and row.meets(wanted, words)), key=lambda row: row.place)
    shown = found[::-1][:limit]
    end = ListPosition(*shown[-1].place).to_cursor() if len(found) > limit and shown else None
    return ListedPage(tuple(row.build() for row in shown), end)
