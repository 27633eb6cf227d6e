"""Reads executions from the store, folds their logs into their states, and lists open questions to people."""

from collections.abc import Iterable

from planwarden.agent.common.errors import IllegalTransition, LogUnreadable, UnknownThread
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.fold import fold
from planwarden.agent.core.execution.state import ExecutionState, new_execution
from planwarden.agent.ports.store import Header, Log, Lookups, SuspensionRow

MAX_OPEN = 1_000
"""The number of questions after which `list_open_questions` reads no further page."""
PAGE, MAX_PAGES = 200, 50
"""The size of a page of questions, and the most pages through which `list_open_questions` looks."""


async def find_header(store: Lookups, execution_id: str) -> Header:
    """Return the header of the execution. Raises `UnknownThread` when there is no such execution."""
    header = await store.header(execution_id)
    if header is None:
        raise _explain_unknown(execution_id)
    return header


async def find_execution(store: Lookups, execution_id: str) -> ExecutionState:
    """Return the committed state of an execution.

    Raises:
        UnknownThread: there is no such execution.
        LogUnreadable: the log is damaged, or has events that this version does not know.
    """
    log = await find_log(store, execution_id)
    return fold_log(log.header, log.recorded)


async def find_log(store: Lookups, execution_id: str) -> Log:
    """Return the log of the execution. Raises `UnknownThread` when there is no such execution."""
    log = await store.log(execution_id)
    if log is None:
        raise _explain_unknown(execution_id)
    return log


async def load_execution(store: Lookups, row: Header | SuspensionRow | ExecutionState) -> ExecutionState:
    """Return the state of the execution of `row`, folded from its stored log.

    Raises:
        LogUnreadable: the log has events that cannot follow each other, or that this version does not know.
    """
    return fold_log(row, await store.read(row.execution_id))


def fold_log(row: Header | SuspensionRow | ExecutionState, recorded: Iterable[ev.Recorded]) -> ExecutionState:
    """Return the state of the execution of `row` after the `recorded` events, which must be the first of its log.

    Raises:
        LogUnreadable: the events cannot follow each other.
    """
    try:
        return fold(new_execution(row.execution_id, row.thread_id, row.principal), recorded)
    except IllegalTransition as error:
        raise LogUnreadable(f"the log of {row.execution_id!r} is damaged: {error.message}; restore a backup") from error


async def list_open_questions(
    store: Lookups, principal: str | None = None, thread_prefix: str = ""
) -> list[SuspensionRow]:
    """Return the open questions to people in threads whose ids have the prefix, oldest first. Stop at the end of the
    page on which their number reaches `MAX_OPEN`, or after `MAX_PAGES` pages."""
    rows: list[SuspensionRow] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await store.suspensions(principal=principal, addressee="human", limit=PAGE, cursor=cursor)
        rows += [row for row in page.rows if row.thread_id.startswith(thread_prefix)]
        cursor = page.next_cursor
        if cursor is None or len(rows) >= MAX_OPEN:
            break
    return rows


def _explain_unknown(execution_id: str) -> UnknownThread:
    return UnknownThread(f"there is no execution {execution_id[:64]!r}")
