"""What is recorded about tasks beside the log of their execution: which questions were answered without a decision, and
for which clients the task is over.

These are not facts of the execution, which continues whatever its tasks said. So they are rows of the audit, where they
survive restarts and every process with the same store sees them.
"""

from collections import OrderedDict
from collections.abc import Callable

import anyio
import msgspec

from planwarden.agent.core.execution.audit import AuditEntry, AuditRow
from planwarden.agent.ports.store import Store

CACHED, PAGE = 1_024, 100


class TaskNotes(msgspec.Struct):
    """The notes of one execution, as far as the audit was read."""

    position: int = 0
    """Sequence number of the last row that was read."""
    answered: set[str] = msgspec.field(default_factory=set[str])
    """Revisions of questions that a client has answered, which a task may not ask again."""
    opened: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """When a person last agreed to open the page of a revision, in Unix seconds."""
    ended: set[str] = msgspec.field(default_factory=set[str])
    """The kinds of clients that were told that the task is over, named by what they can be asked."""

    @property
    def fingerprint(self) -> object:
        """Differs after each answer that changed the task without a commit of its execution."""
        return len(self.answered), len(self.opened)

    def apply(self, row: AuditRow) -> None:
        """Add the row; other kinds of rows, and the same row again, change nothing."""
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
    """Reads and writes notes through the store, and caches them by execution."""

    def __init__(self) -> None:
        self._notes: OrderedDict[str, TaskNotes] = OrderedDict()
        self._writing = anyio.Lock()

    async def read(self, store: Store, execution_id: str) -> TaskNotes:
        """Return the current notes, of all processes. Raises `StoreError`."""
        notes = self._notes.setdefault(execution_id, TaskNotes())
        self._notes.move_to_end(execution_id)
        if len(self._notes) > CACHED:
            self._notes.popitem(last=False)
        end = await store.audit_end()
        while notes.position < end:
            rows = await store.task_rows(execution_id, after=notes.position, limit=PAGE)
            for row in rows:
                notes.apply(row)
            notes.position = max(notes.position, rows[-1].sequence if len(rows) == PAGE else end)
        return notes

    async def add(
        self, store: Store, execution_id: str, entry: AuditEntry, is_known: Callable[[TaskNotes], bool]
    ) -> bool:
        """Write the entry unless `is_known`; True if it was written. Raises `StoreError`."""
        async with self._writing:
            if is_known(await self.read(store, execution_id)):
                return False
            await store.audit((entry,))
            return True


def parse_revision(key: str) -> str:
    """Return the revision that the key of an input request names, as `SUSPENSION.REVISION`."""
    return ".".join(key.split(".", 2)[:2])
