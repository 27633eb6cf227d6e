"""Requests to start executions, read as they are stored."""

from typing import Any

from planwarden.agent.ports.store import StartedExecution


def read_start(row: tuple[Any, ...]) -> StartedExecution:
    """The execution that a row of `find_start` names."""
    return StartedExecution(execution_id=row[0], thread_id=row[1], request=row[2])
