"""An execution as a task of the tasks extension: its status, its times, and its document.

The execution is the task and has the same id. A task has fewer states than an execution: every execution that has ended
or runs no further is `completed`, well or not, with the result that the call would have returned. `failed` is for
protocol errors, with which our tools do not end, and `cancelled` for cancelled executions. An `incomplete` execution is
`completed` too. A later call can continue it, without a task, because a task that ended does not start again.

Source: https://github.com/modelcontextprotocol/ext-tasks/blob/main/specification/draft/tasks.md (SEP-2663).
"""

from datetime import UTC, datetime
from typing import Any, Literal

from planwarden.agent.core.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.mcp.progress import format_progress

TASKS = "io.modelcontextprotocol/tasks"
"""Identifier of the extension."""
WORKING_POLL_MS, WAITING_POLL_MS = 1_000, 3_000
"""The suggested interval between polls; a client that polls more often is answered too."""
DAY_MS = 24 * 3600 * 1000

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})

Document = dict[str, Any]


def read_task_status(execution: ExecutionState) -> TaskStatus:
    """The status that follows from the execution alone: whether it has ended, and how."""
    if execution.status == "cancelled":
        return "cancelled"
    return "completed" if execution.is_finished else "working"


def build_task_document(
    service: Service, execution: ExecutionState, status: TaskStatus, progress: str | None = None
) -> Document:
    """The fields that every task has. `progress` replaces the next action in its message."""
    is_running = status == "working" and execution.status == "running"
    return {
        "taskId": execution.execution_id,
        "status": status,
        "statusMessage": _build_message(service, execution, is_running, progress),
        "createdAt": _format_time(execution.created_at),
        "lastUpdatedAt": _format_time(_updated_at(execution)),
        "ttlMs": _compute_ttl_ms(service, execution),
        "pollIntervalMs": WORKING_POLL_MS if is_running else WAITING_POLL_MS,
    }


def _build_message(service: Service, execution: ExecutionState, is_running: bool, progress: str | None) -> str:
    """The thread, whose id our tools take, and the progress or the next action."""
    if progress is None:
        progress = format_progress(execution) if is_running else service.view(execution).next_action
    return f"thread {execution.thread_id}: {progress}"


def _compute_ttl_ms(service: Service, execution: ExecutionState) -> int | None:
    """Milliseconds from the creation; None (unlimited) before the end, because only finished executions are deleted."""
    if not execution.is_finished:
        return None
    return round((_updated_at(execution) - execution.created_at) * 1000) + service.retention_days * DAY_MS


def _updated_at(execution: ExecutionState) -> float:
    """The last change; never before the creation, even if the clock was set back."""
    return max(execution.updated_at, execution.created_at)


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
