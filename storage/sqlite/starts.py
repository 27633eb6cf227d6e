"""Requests to start executions in the SQLite file: the keys that were used, and the plans that are unfinished."""

import sqlite3

from planwarden.agent.common.errors import KeyUsed, PlanUnfinished, ThreadMovedOn
from planwarden.agent.ports.store import Append
from planwarden.storage.sqlite.statements import SQL


def check_start(connection: sqlite3.Connection, append: Append) -> None:
    """Raises `KeyUsed`, `ThreadMovedOn` or `PlanUnfinished` when it must not start, before anything is written."""
    start, principal = append.start, append.execution.principal
    if start is None:
        return
    if start.key is not None and connection.execute(SQL["find_start"], (principal, start.key)).fetchone() is not None:
        raise KeyUsed
    if start.after is not None:
        newest = connection.execute(SQL["thread_end"], (append.execution.thread_id,)).fetchone()
        if newest is None or tuple(newest) != (start.after, start.after_version):
            raise ThreadMovedOn
    if start.plan is not None and start.is_only:
        found = connection.execute(SQL["unfinished_plan"], (start.plan, principal)).fetchone()
        if found is not None:
            execution_id, thread_id, key = found
            raise PlanUnfinished(execution_id, thread_id, key, start.plan)


def keep_start(connection: sqlite3.Connection, append: Append, number: int) -> None:
    """Store the key of a request; `number` is the execution's row."""
    start = append.start
    if start is not None and start.key is not None:
        connection.execute(SQL["add_start"], (append.execution.principal, start.key, number, start.request))
