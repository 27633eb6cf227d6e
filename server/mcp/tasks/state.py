"""Where a task stands for the client that looks at it, whose capabilities say what it can be asked.

A task stands for a call, and a call ends when its execution runs no further. A question that this client can be asked
keeps the task open: `input_required`. One that it cannot be asked, that its person has left without a decision, or that
is for the calling model would have it poll for as long as nobody decides, without being told why; there the task is
`completed` with the result that the call would have had without tasks: suspended, who is awaited, and where it is
answered. The execution stays as it is, and whatever is decided continues it. One whose budget ran out has ended too,
although a later call may give it a larger one. A task that was over stays over for all
clients that can be asked as much, in every process and after every restart; what the execution does then is told by
`get_execution`, and by the calls that continue it.

A person who agreed to open the page of a question is given some time to decide there; the task works on meanwhile.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcp.types import ClientCapabilities

from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation.exchange import declares_forms, declares_links
from planwarden.server.mcp.tasks.input import CHANNEL, TaskInput, TaskQuestion
from planwarden.server.mcp.tasks.notes import TaskNotes
from planwarden.server.mcp.tasks.view import TERMINAL, TaskStatus, read_task_status
from planwarden.server.views.execution import Execution

PAGE_OPENED = "a person agreed to open the page of the question and has not decided there yet"
PAGE_S = 900.0
"""How long a task waits for a person who agreed to open the page of a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    status: TaskStatus
    questions: Mapping[str, TaskQuestion] = field(default_factory=dict[str, TaskQuestion])
    """What the client can be asked now, by key; only of tasks that are `input_required`."""
    has_ended_early: bool = False
    """The task is over although its execution is not, so the call that would be the task gives its ordinary result."""
    can_continue: bool = False
    """The execution has ended, but a larger budget lets it go on."""
    changes_in_s: float | None = None
    """When it will be another one without anything happening."""
    progress: str | None = None
    """What it waits for, where the execution alone does not say it."""


async def read_task_state(
    questions: TaskInput, service: Service, execution: ExecutionState, capabilities: ClientCapabilities | None
) -> TaskState:
    """Where the task stands for this client. Raises `StoreError`."""
    status = read_task_status(execution)
    notes = await questions.notes.read(service.engine.store, execution.execution_id)
    if _name_client_kind(capabilities) in notes.ended:
        return TaskState(status="completed", has_ended_early=True)
    if execution.status == "incomplete":
        return TaskState(status="completed", can_continue=True)
    if status in TERMINAL or not execution.suspensions:
        return TaskState(status=status)
    view = service.view(execution)
    asked = await questions.find_questions(service, view, capabilities)
    if asked:
        return TaskState(status="input_required", questions=asked)
    if view.awaiting is None:
        return TaskState(status="working")
    left_s = _compute_page_time_left_s(view, notes, service.engine.store.clock.now())
    if left_s > 0:
        return TaskState(status="working", changes_in_s=left_s, progress=PAGE_OPENED)
    return TaskState(status="completed", has_ended_early=True)


async def record_end(
    questions: TaskInput, service: Service, execution_id: str, capabilities: ClientCapabilities | None, principal: str
) -> None:
    """Keep that this client is told that the task is over. Raises `StoreError`; it must not be told then."""
    kind = _name_client_kind(capabilities)
    entry = AuditEntry(
        kind="task_ended",
        facts={"client": kind, "channel": CHANNEL, "principal": principal},
        execution_id=execution_id,
    )
    await questions.notes.add(service.engine.store, execution_id, entry, lambda notes: kind in notes.ended)


def _name_client_kind(capabilities: ClientCapabilities | None) -> str:
    """What the client can be asked with."""
    modes = (("form", declares_forms(capabilities)), ("link", declares_links(capabilities)))
    return "+".join(name for name, declared in modes if declared) or "nothing"


def _compute_page_time_left_s(view: Execution, notes: TaskNotes, now: float) -> float:
    """How long somebody who was sent to a page is still waited for; 0 when nobody is.

    A clock that was set back further than `PAGE_S` says nothing about them; they are not waited for.
    """
    revisions = (f"{found.suspension_id}.{found.revision}" for found in view.suspensions)
    ages = (now - notes.opened[name] for name in revisions if name in notes.opened)
    return max((PAGE_S - max(age, 0.0) for age in ages if abs(age) < PAGE_S), default=0.0)
