"""Rows of `synopses`, in which executions are listed and looked for; the same in both databases."""

from collections.abc import Iterable, Sequence
from typing import Any

from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.state import TRANSITIONS
from planwarden.agent.core.execution.synopsis import MAX_WORDS, Synopsis, clean_text, fold_words
from planwarden.agent.ports.listing import ExecutionFilter, ListedExecution, ListedPage, ListPosition, read_cursor
from planwarden.storage.sql.rows import name_values

_ADDRESSEES = ("human", "caller", "clock", None)


def list_values(synopsis: Synopsis) -> tuple[object, ...]:
    """Return what `write_synopsis` of SQLite takes after the execution's number."""
    return (
        synopsis.title,
        synopsis.is_goal,
        synopsis.host,
        synopsis.saved_plan,
        join_tools(synopsis.tools),
        synopsis.search,
    )


def join_tools(tools: Iterable[str]) -> str:
    """Return the column `tools`: a line for each name, with line breaks on both sides of it."""
    return "".join(f"\n{name}" for name in tools) + "\n"


def list_parameters(filters: ExecutionFilter, limit: int, cursor: str | None) -> tuple[object, ...]:
    """Return what `list_executions` takes, for one row more than `limit`. Raises `InvalidArguments` for a foreign
    cursor."""
    position = read_cursor(cursor)
    words = fold_words(filters.search)
    return (
        position.active_at,
        position.number,
        filters.status,
        filters.host and clean_text(filters.host),
        filters.saved_plan and clean_text(filters.saved_plan),
        None if filters.tool is None else join_tools([clean_text(filters.tool).replace("\n", "\ufffd")]),
        filters.principal,
        *words,
        *("" for _ in range(MAX_WORDS - len(words))),
        filters.is_gated,
        filters.tool_prefix and f"\n{clean_text(filters.tool_prefix)}",
        limit + 1,
    )


def read_page(rows: Sequence[tuple[Any, ...]], limit: int) -> ListedPage:
    """Return the page. Raises `StoreError` when a row is damaged."""
    listed = tuple(_read_row(row) for row in rows[:limit])
    if len(rows) <= limit or not listed:
        return ListedPage(listed, None)
    return ListedPage(listed, ListPosition(listed[-1].active_at, int(rows[limit - 1][-1])).to_cursor())


def _read_row(row: tuple[Any, ...]) -> ListedExecution:
    fields = name_values(ListedExecution, row[:-1])
    question, waits_for = fields["question"], fields["waits_for"]
    if fields["status"] not in TRANSITIONS or fields["status"] == "new" or waits_for not in _ADDRESSEES:
        raise StoreError(f"the row of execution {fields['execution_id']!r} is damaged; restore a backup")
    # A person comes first; of the others, the one whose name comes first.
    fields |= {"is_goal": bool(fields["is_goal"]), "waits_for": waits_for if question is None else "human"}
    return ListedExecution(**fields)
