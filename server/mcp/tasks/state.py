"""The state of a task. It depends on the capabilities of the client that reads it: they say what the client can ask.

A task belongs to a call, and ends when its execution cannot go on. While this client can be asked a question, the
task is `input_required`. If the client cannot be asked the question, if its user left the question undecided, or if
the question is for the calling model, polling would be in vain. Then the task is `completed`, with the call's
ordinary result, which says who is awaited and where to answer. The execution stays suspended, and any
decision continues it. A task also ends when the budget runs out, although a later call may give a larger budget.
A task that is over stays over for all clients that can be asked in the same ways, in every process and after restarts;
`get_execution`, and the calls that continue the execution, show how the execution goes on.

A person who agreed to open the page of a question has `PAGE_S` to decide there; in that time the task is `working`.

The execution is the task and has the same id. A task has fewer states than an execution: every execution that has ended
or cannot go on is `completed`, successful or not, with the result that the call would have returned. `failed` is
for protocol errors, which our tools never produce, and `cancelled` for cancelled executions. An `incomplete` execution
is `completed` too. A later call can continue it, without a task, because a task that ended does not start again.

Source: https://github.com/modelcontextprotocol/ext-tasks/blob/main/specification/draft/tasks.md (SEP-2663).
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from mcp.types import ClientCapabilities

from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation import find_modes
from planwarden.server.mcp.progress import format_progress
from planwarden.server.mcp.tasks.input import TaskInput, TaskNotes, TaskQuestion, read_notes
from planwarden.server.views.execution import Execution
from planwarden.server.views.instants import format_instant, to_utc

TASKS = "io.modelcontextprotocol/tasks"
"""Identifier of the extension."""
WORKING_POLL_MS, WAITING_POLL_MS = 1_000, 3_000
"""The suggested intervals between polls; a client that polls more often is answered too."""
DAY_MS = 24 * 3600 * 1000

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})

Document = dict[str, Any]

PAGE_OPENED = "a person agreed to open the page of the question and has not decided there yet"
PAGE_S = 900.0
"""How long a task waits for a person who agreed to open the page of a question."""


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    status: TaskStatus
    questions: Mapping[str, TaskQuestion] = msgspec.field(default_factory=dict[str, TaskQuestion])
    """What the client can be asked now, by key; only for `input_required`."""
    has_ended_early: bool = False
    """True when the task is over but its execution is not; a call then returns its ordinary result."""
    can_continue: bool = False
    """True when the execution has ended, but a larger budget can continue it."""
    changes_in_s: float | None = None
    """Seconds until the state changes by itself; None if it does not."""
    progress: str | None = None
    """What the task waits for, if that does not follow from the execution alone."""


async def read_task_state(
    task_input: TaskInput, service: Service, execution: ExecutionState, capabilities: ClientCapabilities | None
) -> TaskState:
    """Return the state of the task for this client. Raises `StoreError`."""
    status = read_task_status(execution)
    notes = await read_notes(service.store, execution.execution_id)
    if name_client_kind(capabilities) in notes.ended:
        return TaskState(status="completed", has_ended_early=True)
    if execution.status == "incomplete":
        return TaskState(status="completed", can_continue=True)
    if status in TERMINAL or not execution.suspensions:
        return TaskState(status=status)
    view = service.build_view(execution)
    questions = await task_input.find_questions(service, view, capabilities)
    if questions:
        return TaskState(status="input_required", questions=questions)
    if view.awaiting is None:
        return TaskState(status="working")
    left_s = _compute_page_time_left_s(view, notes, service.store.clock.now())
    if left_s > 0:
        return TaskState(status="working", changes_in_s=left_s, progress=PAGE_OPENED)
    return TaskState(status="completed", has_ended_early=True)


def name_client_kind(capabilities: ClientCapabilities | None) -> str:
    """Return how the client can be asked: `form`, `link`, `form+link` or `nothing`."""
    names, modes = {"form": "form", "url": "link"}, find_modes(capabilities)
    return "+".join(name for mode, name in names.items() if mode in modes) or "nothing"


def _compute_page_time_left_s(view: Execution, notes: TaskNotes, now: float) -> float:
    """Return the seconds that the task still waits for a person who agreed to open a page; 0 if it waits for nobody.

    The task does not wait if the clock was set back by more than `PAGE_S`.
    """
    revisions = (f"{suspension.suspension_id}.{suspension.revision}" for suspension in view.suspensions)
    ages = (now - notes.opened[name] for name in revisions if name in notes.opened)
    return max((PAGE_S - max(age, 0.0) for age in ages if abs(age) < PAGE_S), default=0.0)


def read_task_status(execution: ExecutionState) -> TaskStatus:
    """Return the status that follows from the execution alone: whether it has ended, and how."""
    if execution.status == "cancelled":
        return "cancelled"
    return "completed" if execution.is_finished else "working"


def build_task_document(
    service: Service, execution: ExecutionState, status: TaskStatus, progress: str | None = None
) -> Document:
    """Return the fields that every task has. `progress`, if given, is what the status message says."""
    is_running = status == "working" and execution.status == "running"
    if progress is None:
        progress = format_progress(execution) if is_running else service.build_view(execution).next_action
    # Never earlier than the creation, even if the clock was set back.
    updated_at = max(execution.updated_at, execution.created_at)
    lived_ms = round((updated_at - execution.created_at) * 1000)
    return {
        "taskId": execution.execution_id,
        "status": status,
        # Our tools take the thread's id, not the task's.
        "statusMessage": f"thread {execution.thread_id}: {progress}",
        "createdAt": format_instant(to_utc(execution.created_at), "milliseconds"),
        "lastUpdatedAt": format_instant(to_utc(updated_at), "milliseconds"),
        # Counted from the creation; None (unlimited) before the end, because only finished executions are deleted.
        "ttlMs": lived_ms + service.settings.tables.retention.days * DAY_MS if execution.is_finished else None,
        "pollIntervalMs": WORKING_POLL_MS if is_running else WAITING_POLL_MS,
    }
