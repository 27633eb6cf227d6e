"""What is kept about tasks beside the log of their execution: which questions were answered without a decision, and for
which clients the task is over.

These are no facts of an execution, which goes on whatever its tasks told anybody, so they are rows of the audit: there
they survive restarts and are seen by every process with the same store.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from planwarden.agent.core.audit import AuditEntry, AuditRow
from planwarden.agent.ports.store import Store

CACHED, PAGE = 1_024, 100


@dataclass(slots=True)
class TaskNotes:
    """Of one execution, as far as the audit was read."""

    seen: int = 0
    """Number of the last row that was looked at."""
    answered: set[str] = field(default_factory=set[str])
    """Revisions of questions that a task's client has answered, and that may not be asked through a task again."""
    opened: dict[str, float] = field(default_factory=dict[str, float])
    """When a person agreed to open the page of a revision, in Unix seconds; the last time counts."""
    ended: set[str] = field(default_factory=set[str])
    """Which clients were told that the task is over, by what they can be asked."""

    @property
    def fingerprint(self) -> object:
        """Differs when a client has answered more, which changes how the task looks and is no commit of its execution."""
        return len(self.answered), len(self.opened)

    def apply(self, row: AuditRow) -> None:
        """Rows of other kinds change nothing; neither does the same row again."""
        facts = row.entry.facts
        match row.entry.kind:
            case "form_closed" | "link_answered":
                question = parse_revision(str(facts.get("key")))
                self.answered.add(question)
                if facts.get("action") == "accept" and row.entry.kind == "link_answered":
                    self.opened[question] = row.at
            case "task_ended":
                self.ended.add(str(facts.get("client")))
            case _:
                pass


class TaskNotesStore:
    """Notes by execution, read from the store as far as they are new."""

    def __init__(self) -> None:
        self._notes: OrderedDict[str, TaskNotes] = OrderedDict()
        self._writing = anyio.Lock()

    async def read(self, store: Store, execution_id: str) -> TaskNotes:
        """What is noted now, by whatever process. Raises `StoreError`."""
        notes = self._notes.setdefault(execution_id, TaskNotes())
        self._notes.move_to_end(execution_id)
        if len(self._notes) > CACHED:
            self._notes.popitem(last=False)
        end = await store.audit_end()
        while notes.seen < end:
            rows = await store.task_rows(execution_id, after=notes.seen, limit=PAGE)
            for row in rows:
                notes.apply(row)
            notes.seen = max(notes.seen, rows[-1].sequence if len(rows) == PAGE else end)
        return notes

    async def add(
        self, store: Store, execution_id: str, entry: AuditEntry, is_known: Callable[[TaskNotes], bool]
    ) -> bool:
        """Whether the entry was written, which what is known already is not. Raises `StoreError`."""
        async with self._writing:
            if is_known(await self.read(store, execution_id)):
                return False
            await store.audit((entry,))
            return True


def parse_revision(key: str) -> str:
    """The revision of a question that the key of an input request stands for, as `SUSPENSION.REVISION`."""
    return ".".join(key.split(".", 2)[:2])
