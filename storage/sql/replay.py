"""What an upgrade checks before it is committed: every log that can go on replays under the new code.

It runs on the migrated rows, inside the migration's own transaction, and reads one log at a time.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version

from planwarden.agent.common.errors import LogUnreadable, StoreError
from planwarden.agent.core.control.replay import ReplayFault, can_go_on, find_replay_fault
from planwarden.agent.core.execution.state import new_execution
from planwarden.agent.ports.store import Header
from planwarden.storage.sql.database import Rows
from planwarden.storage.sql.rows import read_header, read_log

PAGE = 200
MAX_NAMED = 5

Fetch = Callable[[str, Sequence[object]], Rows]
"""Runs a named statement in the transaction."""


def refuse_unreplayable(fetch: Fetch, place: str) -> None:
    """Raise `StoreError` when the log of an execution that can go on does not replay; it names the first events."""
    faults: list[str] = []
    after, page = "", fetch("walk", ("", PAGE))
    while page and len(faults) < MAX_NAMED:
        for header in map(read_header, page):
            after = header.execution_id
            fault = _find_fault(fetch, header) if can_go_on(header.status) else None
            if fault is not None:
                faults.append(f"execution {header.execution_id!r} (thread {header.thread_id!r}) {fault.describe()}")
        page = fetch("walk", (after, PAGE))
    if faults:
        raise StoreError(
            f"{place} was not upgraded and nothing was written: planwarden {version('planwarden')} cannot continue "
            f"{'; '.join(faults[:MAX_NAMED])}; install the version before, and finish or cancel there what is named"
        )


def _find_fault(fetch: Fetch, header: Header) -> ReplayFault | None:
    execution = new_execution(header.execution_id, header.thread_id, header.principal)
    try:
        recorded = read_log(header.execution_id, 0, fetch("read_events", (header.execution_id, 1)))
    except LogUnreadable as error:
        return ReplayFault.of_unreadable(error)
    return find_replay_fault(execution, recorded)
