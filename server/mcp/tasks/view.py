"""An execution as a task of the tasks extension: its status, its times, and what the finished call gives.

The execution is the task, under its own id. What a task can say is less than what an execution can: everything that has
ended or runs no further, well or not, is `completed` with the result that the call would have given (`failed` is for protocol errors, which
our tools do not end with); only what was cancelled is `cancelled`. An `incomplete` execution is `completed` too. It can
be continued by a later call, which is answered without a task, because a task that ended does not start again.

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
"""How often to look again, as a suggestion: who looks more often is answered all the same."""
DAY_MS = 24 * 3600 * 1000

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})

Document = dict[str, Any]


def read_task_status(execution: ExecutionState) -> TaskStatus:
    """What the execution alone says: whether it has ended, and how."""
    if execution.status == "cancelled":
        return "cancelled"
    return "completed" if execution.is_finished else "working"


def build_task_document(
    service: Service, execution: ExecutionState, status: TaskStatus, what: str | None = None
) -> Document:
    """The fields that every form of a task has. `what` takes the place of what is to be done in its message."""
    is_running = status == "working" and execution.status == "running"
    return {
        "taskId": execution.execution_id,
        "status": status,
        "statusMessage": _build_message(service, execution, is_running, what),
        "createdAt": _format_time(execution.created_at),
        "lastUpdatedAt": _format_time(_updated_at(execution)),
        "ttlMs": _compute_ttl_ms(service, execution),
        "pollIntervalMs": WORKING_POLL_MS if is_running else WAITING_POLL_MS,
    }


def _build_message(service: Service, execution: ExecutionState, is_running: bool, what: str | None) -> str:
    """Names the thread, which is what our tools take, and says what is to be done."""
    if what is None:
        what = format_progress(execution) if is_running else service.view(execution).next_action
    return f"thread {execution.thread_id}: {what}"


def _compute_ttl_ms(service: Service, execution: ExecutionState) -> int | None:
    """From the creation; None, which is unlimited, before the end: only what has ended is ever deleted."""
    if not execution.is_finished:
        return None
    return round((_updated_at(execution) - execution.created_at) * 1000) + service.retention_days * DAY_MS


def _updated_at(execution: ExecutionState) -> float:
    """Never before the creation, whatever the clock did."""
    return max(execution.updated_at, execution.created_at)


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
