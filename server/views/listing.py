"""An execution as one line of a list: what it is, what state it is in, how far it is, and whom it waits for."""

from datetime import datetime

import msgspec

from planwarden.agent.ports.listing import ListedExecution
from planwarden.server.views.instants import to_utc
from planwarden.server.views.status_words import STATUSES, WAITS, WORDS, Words


class ExecutionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One execution in a list. Its texts are cut and not escaped."""

    execution_id: str
    thread_id: str
    principal: str
    state: str
    """One of `STATUSES`."""
    title: str
    """The goal, the saved plan's name, or what the steps say of themselves."""
    saved_plan: str | None
    host: str | None
    """The program that asked for it, as it names itself."""
    step_count: int
    steps_done: int
    waits_for: str | None
    """`human`, `caller` or `clock`: whose answer it waits for first."""
    suspension_id: str | None
    """The oldest open question to a person."""
    fault: str | None
    """Why it did not reach its goal."""
    created_at: datetime
    changed_at: datetime

    @property
    def is_quoted(self) -> bool:
        """The title is what somebody says, and not the name of a saved plan."""
        return self.title != self.saved_plan

    @property
    def words(self) -> Words:
        """What a person reads of the state, with whom it waits for."""
        words = WORDS["execution"][STATUSES[self.state]]
        return words._replace(word=WAITS.get(self.waits_for or "", words.word)) if self.state == "waiting" else words

    def describe_progress(self) -> str:
        """Return how far it is; empty while there is no plan."""
        if not self.step_count:
            return ""
        steps = f"{self.step_count} step{'' if self.step_count == 1 else 's'}"
        return (
            steps
            if self.state in ("planned", "completed") and not self._is_partly_done
            else f"{self.steps_done} of {steps}"
        )

    @property
    def _is_partly_done(self) -> bool:
        return self.state == "completed" and self.steps_done < self.step_count


class ExecutionLines(msgspec.Struct, frozen=True):
    """A page of executions, the newest activity first."""

    executions: tuple[ExecutionLine, ...]
    next_cursor: str | None


def build_line(row: ListedExecution) -> ExecutionLine:
    """Return the line for a row of a store."""
    return ExecutionLine(
        execution_id=row.execution_id,
        thread_id=row.thread_id,
        principal=row.principal,
        state=WORDS["execution"][row.status].word,
        title=row.title,
        saved_plan=row.saved_plan or None,
        host=row.host or None,
        step_count=row.step_count,
        steps_done=row.steps_done,
        waits_for=row.waits_for,
        suspension_id=row.question,
        fault=row.fault or None,
        created_at=to_utc(row.created_at),
        changed_at=to_utc(row.active_at),
    )
