"""The state of a task, and the questions that it asks through its client.

The state depends on the capabilities of the client that reads it: they say what the client can ask. A task belongs to
a call, and ends when its execution cannot go on. While this client can be asked a question, the task is
`input_required`. If the client cannot be asked the question, if its user left the question undecided, or if the
question is for the calling model, polling would be in vain. Then the task is `completed`, with the call's ordinary
result, which says who is awaited and where to answer. The execution stays suspended, and any decision continues it. A
task also ends when the budget runs out, although a later call may give a larger budget. A task that is over stays over
for all clients that can be asked in the same ways, in every process and after restarts; `get_execution`, and the calls
that continue the execution, show how the execution goes on. A person who agreed to open the page of a question has
`PAGE_S` to decide there; in that time the task is `working`.

The execution is the task and has the same id. A task has fewer states than an execution: every execution that has ended
or cannot go on is `completed`, successful or not, with the result that the call would have returned. `failed` is
for protocol errors, which our tools never produce, and `cancelled` for cancelled executions. An `incomplete` execution
is `completed` too. A later call can continue it, without a task, because a task that ended does not start again.

If the client shows forms, a question that a form can decide becomes an input request with the key
`SUSPENSION.REVISION`. Every other question to a person becomes a link, if the client opens links. A link's key has a
hash of the page's address: a restart changes the address, and an old key must not fit the new page. An accepted form is
checked like any other answer and has only the assurance `client`. A form without a decision decides nothing, because
unattended hosts close forms by themselves. A link decides nothing, opened or not: the person decides on the page.
The protocol allows each key only one answer, so a task never repeats a question that has been answered.

The audit says which questions were answered without a decision, and for which clients a task is over. These facts are
not events of the execution, because the execution continues however its task ends. In the audit, they survive restarts,
and every process with the same store sees them.

Source: https://github.com/modelcontextprotocol/ext-tasks/blob/main/specification/draft/tasks.md (SEP-2663).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Literal

import anyio
import msgspec
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, ClientCapabilities, ElicitRequest, ElicitResult
from pydantic import ValidationError

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    LimitExceeded,
    StaleDefinition,
    StaleRevision,
    UnknownSuspension,
)
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import Store
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation import (
    Elicitation,
    Mode,
    build_elicitation,
    build_form,
    compute_form_digest,
    find_modes,
    read_decision,
)
from planwarden.server.mcp.requests import format_progress
from planwarden.server.views.execution import Execution
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.server.views.suspension import Suspension

TASKS = "io.modelcontextprotocol/tasks"
"""Identifier of the extension."""
CHANNEL = "tasks"
WORKING_POLL_MS, WAITING_POLL_MS = 1_000, 3_000
"""The suggested intervals between polls; a client that polls more often is answered too."""
DAY_MS = 24 * 3600 * 1000
PAGE_S = 900.0
"""How long a task waits for a person who agreed to open the page of a question."""
PAGE_OPENED = "a person agreed to open the page of the question and has not decided there yet"
MAX_KEY_SHOWN = 80
AUDIT_ROWS = 100
"""The most rows of the audit that are read at once."""

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
TERMINAL: frozenset[TaskStatus] = frozenset({"completed", "failed", "cancelled"})
Document = dict[str, Any]
TaskQuestion = tuple[Suspension, Elicitation]
"""A suspension, and the form or link with which the client puts the question to its user."""


class TaskNotes(msgspec.Struct):
    """What the audit says about the task of one execution."""

    answered: set[str] = msgspec.field(default_factory=set[str])
    """The revisions of questions that a client has answered; a task may not ask these questions again."""
    opened: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """By revision: when a person last agreed to open the page of the question, in Unix seconds."""
    ended: set[str] = msgspec.field(default_factory=set[str])
    """The kinds of clients that were told that the task is over; `name_client_kind` names the kinds."""


async def read_notes(store: Store, execution_id: str) -> TaskNotes:
    """Return what all processes noted about the task of an execution. Raises `StoreError`."""
    notes, position, rows = TaskNotes(), 0, None
    while rows is None or len(rows) == AUDIT_ROWS:
        rows = await store.task_rows(execution_id, after=position, limit=AUDIT_ROWS)
        for row in rows:
            position, kind, facts = row.sequence, row.entry.kind, row.entry.facts
            if kind == "task_ended":
                notes.ended.add(str(facts.get("client")))
                continue
            revision = parse_revision(str(facts.get("key")))
            notes.answered.add(revision)
            if kind == "link_answered" and facts.get("action") == "accept":
                notes.opened[revision] = row.at
    return notes


def parse_revision(key: str) -> str:
    """Return the revision that the key of an input request names, as `SUSPENSION.REVISION`."""
    return ".".join(key.split(".", 2)[:2])


class TaskInput:
    """Asks people through tasks. Conformance tests override `build_form` and `read_decision`."""

    build_form = staticmethod(build_form)
    read_decision = staticmethod(read_decision)

    def __init__(self, channel: str = CHANNEL) -> None:
        self._channel = channel
        self._writing = anyio.Lock()

    async def find_questions(
        self, service: Service, view: Execution, capabilities: ClientCapabilities | None
    ) -> dict[str, TaskQuestion]:
        """Return the questions that this client can be asked now, by key. Raises `StoreError`."""
        questions: dict[str, TaskQuestion] = {}
        for suspension in view.suspensions:
            if suspension.addressee != "human":
                continue
            elicitation = build_elicitation(suspension, find_modes(capabilities), self.build_form)
            if elicitation is not None:
                questions[_build_key(suspension, elicitation)] = suspension, elicitation
        if not questions:
            return {}
        notes = await read_notes(service.store, view.execution_id)
        return {key: question for key, question in questions.items() if parse_revision(key) not in notes.answered}

    async def apply_responses(
        self, service: Service, principal: str, questions: Mapping[str, TaskQuestion], responses: Mapping[str, Any]
    ) -> None:
        """Apply the responses to these questions and ignore all others. Applying a response again changes nothing.

        Raises:
            MCPError: a response is malformed (then none counts) or does not fit its question (earlier ones count).
            StoreError: the store failed; responses that it already recorded count.
        """
        parsed = {key: _parse_response(key, responses[key]) for key in questions if key in responses}
        for key, response in parsed.items():
            suspension, elicitation = questions[key]
            try:
                # The answer to a link decides nothing.
                is_answer = response.action == "accept" and elicitation.mode == "form"
                decision = self.read_decision(suspension, response.content) if is_answer else None
                if decision is None:
                    await self._record_no_decision(
                        service, suspension, elicitation.mode, key, response.action, principal
                    )
                else:
                    await self._record_decision(service, suspension, decision, principal)
            except (InvalidArguments, LimitExceeded) as error:
                raise MCPError(code=INVALID_PARAMS, message=f"inputResponses {key!r}: {error.message}") from None

    async def _record_decision(
        self, service: Service, suspension: Suspension, decision: Decision, principal: str
    ) -> None:
        """Record the decision. If the question was decided, expired or revised in the meantime, do nothing."""
        authority = Authority(
            assurance="client",
            channel=self._channel,
            principal=principal,
            digest=suspension.digest,
            rendered=compute_form_digest(suspension),
        )
        with suppress(AlreadyDecided, Expired, StaleDefinition, StaleRevision, UnknownSuspension):
            await service.answer(
                suspension.thread_id, suspension.suspension_id, decision, authority, principal=principal
            )

    async def _record_no_decision(
        self, service: Service, suspension: Suspension, mode: Mode, key: str, action: str, principal: str
    ) -> None:
        entry = AuditEntry(
            kind="form_closed" if mode == "form" else "link_answered",
            facts={"key": key, "action": action, "channel": self._channel, "principal": principal},
            execution_id=suspension.execution_id,
            suspension_id=suspension.suspension_id,
        )
        await self.write_note(service.store, entry, lambda notes: parse_revision(key) in notes.answered)

    async def write_note(self, store: Store, entry: AuditEntry, is_known: Callable[[TaskNotes], bool]) -> None:
        """Write the entry, unless `is_known` finds it in the notes of its execution. Raises `StoreError`."""
        async with self._writing:
            if not is_known(await read_notes(store, entry.execution_id or "")):
                await store.audit((entry,))


def build_input_request(elicitation: Elicitation) -> Document:
    """Return the `elicitation/create` request, as JSON."""
    return ElicitRequest(params=elicitation).model_dump(by_alias=True, mode="json", exclude_none=True)


def _build_key(suspension: Suspension, elicitation: Elicitation) -> str:
    revision = f"{suspension.suspension_id}.{suspension.revision}"
    if elicitation.mode == "form":
        return revision
    return f"{revision}.link-{sha256(elicitation.url.encode()).hexdigest()[:8]}"


def _parse_response(key: str, response: object) -> ElicitResult:
    try:
        return ElicitResult.model_validate(response, by_name=False)
    except ValidationError:
        raise MCPError(
            code=INVALID_PARAMS,
            message=f"inputResponses {key[:MAX_KEY_SHOWN]!r} is not the result of an elicitation: it needs an action "
            "(accept, decline or cancel) and, when accepted, the form's content",
        ) from None


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    status: TaskStatus
    questions: Mapping[str, TaskQuestion] = msgspec.field(default_factory=dict[str, TaskQuestion])
    """What the client can be asked now, by key; only for `input_required`."""
    has_ended_early: bool = False
    """True if the task has ended before its execution. A call then returns its ordinary result."""
    can_continue: bool = False
    """True when the execution has ended, but a larger budget can continue it."""
    changes_in_s: float | None = None
    """Seconds until the state changes by itself; None if it does not."""
    progress: str | None = None
    """What the task waits for, if the execution alone does not say it."""


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
