"""The tasks extension: calls that start or continue an execution answer at once with a durable task.

Clients of protocol 2026-07-28 that declare `io.modelcontextprotocol/tasks` get it; for all others nothing changes. The
task is the execution, so it survives restarts, is known to every process with the same store, and can be looked at and
cancelled from any of the owner's clients. What is not promised: a task that asks the caller's own model. Its prompts are
neither forms nor sampling, so where the caller thinks, the call gives the ordinary result with the prompt in it. So does
a call whose execution waits for a person that this client cannot ask; `mcp_tasks_standing` says what becomes of a task then.

Source: https://github.com/modelcontextprotocol/ext-tasks/blob/main/specification/draft/tasks.md (SEP-2663).
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ErrorData,
    RequestParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field
from starlette.requests import Request as HttpRequest

from planwarden.agent.common.errors import PlanwardenError, UnknownThread
from planwarden.agent.core.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.mcp.handlers import ToolRequest, shown
from planwarden.server.mcp.lazy_service import LazyService
from planwarden.server.mcp.results import view_result
from planwarden.server.mcp.tasks.input import TaskInput, input_request
from planwarden.server.mcp.tasks.state import TaskState, end, task_state
from planwarden.server.mcp.tasks.view import TASKS, Document, task_document
from planwarden.server.mcp.text import execution_text
from planwarden.server.mcp.tools import McpTool, Result
from planwarden.server.mcp.waiting import AnyContext, wait_with_progress

TASKED = frozenset({"run_goal", "execute_plan", "resume_execution"})
_OFFER = "planwarden/task"
"""Marks a result, on its way from a tool to `Tasks`, as one to be given as a task; it never leaves the server."""

DeskContext = ServerRequestContext[LazyService, Any]


class TaskParams(RequestParams):
    """Of `tasks/get` and `tasks/cancel`."""

    task_id: Annotated[str, Field(max_length=200)]


class UpdateParams(TaskParams):
    """Of `tasks/update`."""

    input_responses: Annotated[dict[str, Any], Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the principal who asks."""

    service: Service
    execution: ExecutionState


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """A task as one client sees it."""

    document: Document
    look_again_s: float | None
    """When it will look different without anything happening."""


class Tasks(Extension):
    """The extension as the server registers it; `outcome` is what a suite of fixtures may override."""

    identifier = TASKS

    def __init__(self, questions: TaskInput | None = None) -> None:
        self._questions = questions or TaskInput()
        self._followers: list[Callable[[str], None]] = []

    def follow(self, told: Callable[[str], None]) -> None:
        """Tell `told` the id of each task that a client's answer changed in this process; it must not raise or block."""
        self._followers.append(told)

    async def mark(self, service: Service, task_id: str) -> object:
        """A value that differs when answers changed how the task looks, in whatever process. Raises `StoreError`."""
        return (await self._questions.notebook.of(service.engine.store, task_id)).mark

    def methods(self) -> Sequence[MethodBinding]:
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._get, versions),
            MethodBinding("tasks/update", UpdateParams, self._update, versions),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, versions),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: DeskContext, call_next: CallNext
    ) -> HandlerResult:
        """A result that a tool offered as a task is given as the task's first state; every other one as it is."""
        result = await call_next(ctx)
        task_id = (result.meta or {}).get(_OFFER) if isinstance(result, CallToolResult) else None
        if not isinstance(task_id, str):
            return result
        async with _translated():
            service = await ctx.lifespan_context.service()
            execution = await service.engine.find(task_id)
            task = Task(service, execution)
            found = await self._standing(task, ctx.session.client_capabilities)
            return {"resultType": "task", **task_document(service, execution, found.status, found.what)}

    async def run(self, verb: McpTool, request: ToolRequest) -> Result:
        """The tool's result at once, offered as a task, whether or not the execution has ended meanwhile.

        Refusals, a question of this very call that is still open, and whatever waits for somebody that this client
        cannot ask are given as ordinary results.
        """
        if await _continues(verb, request):
            return await verb.run(request)
        result = await verb.run(replace(request, arguments={**request.arguments, "waitSeconds": 0}))
        document = result.structured_content if isinstance(result, CallToolResult) and not result.is_error else None
        if not isinstance(result, CallToolResult) or document is None:
            return result
        service = request.service
        execution = await service.engine.find(document["executionId"])
        asked = request.arguments.get("suspensionId")
        if any(found.question.suspension_id == asked for found in execution.open_suspensions):
            return result
        found = await task_state(self._questions, service, execution, request.context.client_capabilities)
        if not found.is_stopped and not _asks_the_caller(service, execution):
            return offered(result, execution.execution_id)
        seconds = request.arguments.get("waitSeconds")
        return await shown(
            request, await wait_with_progress(service, service.view(execution), seconds, request.context)
        )

    async def shown(self, task: Task, capabilities: ClientCapabilities | None) -> TaskSnapshot:
        """The task with what belongs to its status: open questions, the result, or the error. Raises `StoreError`."""
        found = await self._standing(task, capabilities)
        document = task_document(task.service, task.execution, found.status, found.what)
        if found.status == "input_required":
            requests = {key: input_request(question) for key, (_, question) in found.asked.items()}
            document["inputRequests"] = requests
        elif found.status == "completed":
            outcome = self.outcome(task)
            given = outcome.model_dump(by_alias=True, mode="json", exclude_none=True)
            failed = {"status": "failed", "error": given}
            document |= failed if isinstance(outcome, ErrorData) else {"result": given}
        return TaskSnapshot(document, found.look_again_s)

    async def _standing(self, task: Task, capabilities: ClientCapabilities | None) -> TaskState:
        """Where the task stands; kept when the client is told that it is over."""
        found = await task_state(self._questions, task.service, task.execution, capabilities)
        if found.is_stopped or found.may_go_on:
            await end(
                self._questions, task.service, task.execution.execution_id, capabilities, task.execution.principal
            )
        return found

    def outcome(self, task: Task) -> CallToolResult | ErrorData:
        """What the call gives in the end: the finished execution, as every tool would show it."""
        return view_result(task.service.view(task.execution), execution_text)

    async def _get(self, ctx: DeskContext, params: TaskParams) -> Document:
        async with _translated():
            return (await self.shown(await _found(ctx, params), ctx.session.client_capabilities)).document

    async def _update(self, ctx: DeskContext, params: UpdateParams) -> Document:
        async with _translated():
            task = await _found(ctx, params)
            found = await task_state(self._questions, task.service, task.execution, ctx.session.client_capabilities)
            try:
                await self._questions.answer(
                    task.service, task.execution.principal, found.asked, params.input_responses
                )
            finally:
                for told in self._followers:
                    told(params.task_id)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: DeskContext, params: TaskParams) -> Document:
        async with _translated():
            task = await _found(ctx, params)
            await task.service.engine.cancel(task.execution, None)
        return {"resultType": "complete"}


def wants_tasks(context: AnyContext) -> bool:
    """True when this request's client takes tasks: a protocol that has them, and the extension declared."""
    capabilities = context.client_capabilities
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (
        (capabilities.extensions if capabilities is not None else None) or {}
    )


def offered(result: CallToolResult, execution_id: str) -> CallToolResult:
    """The result, marked to be given as the task `execution_id`; only for clients that `wants_tasks`."""
    return result.model_copy(update={"meta": {**(result.meta or {}), _OFFER: execution_id}})


async def owned(service: Service, task_id: str, principal: str) -> Task | None:
    """The principal's task; None when there is none with that id or it is somebody else's. Raises `StoreError`.

    A plan that nobody runs yet is no task: nothing works on it, and it would be polled for ever.
    """
    try:
        execution = await service.engine.find(task_id)
    except UnknownThread:
        return None
    is_one = execution.principal == principal and execution.status != "planned"
    return Task(service, execution) if is_one else None


async def _found(ctx: DeskContext, params: TaskParams) -> Task:
    """The task of a request. Raises `MCPError` for clients without the extension and for ids that are not theirs."""
    require_client_extension(ctx, TASKS)
    _check_name_header(ctx, params.task_id)
    service = await ctx.lifespan_context.service()
    task = await owned(service, params.task_id, ctx.lifespan_context.principal())
    if task is None:
        raise MCPError(code=INVALID_PARAMS, message="Failed to retrieve task: Task not found")
    return task


def _check_name_header(ctx: DeskContext, task_id: str) -> None:
    """Over HTTP the header that intermediaries route by has to name the task; the SDK checks its own methods only."""
    request: object = ctx.request
    if isinstance(request, HttpRequest) and decode_header_value(request.headers.get(MCP_NAME_HEADER)) != task_id:
        raise MCPError(
            code=HEADER_MISMATCH,
            message=f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter",
        )


async def _continues(verb: McpTool, request: ToolRequest) -> bool:
    """True for an execution that ended `incomplete` and is to go on: as a task it is over."""
    given: Mapping[str, Any] = request.arguments
    if verb.name != "execute_plan" or "plan" in given or "threadId" not in given:
        return False
    newest = await request.service.newest(given["threadId"], request.principal)
    return newest.status == "incomplete"


def _asks_the_caller(service: Service, execution: ExecutionState) -> bool:
    """True when the execution has, or will have, a prompt for the calling model."""
    if any(found.question.addressee == "caller" for found in execution.open_suspensions):
        return True
    if not service.caller_thinks:
        return False
    plan = execution.plan
    return plan is None or bool(execution.options.synthesize) or any(not step.tool_calls for step in plan.steps)


@asynccontextmanager
async def _translated() -> AsyncGenerator[None]:
    """Our errors as the protocol's, which has no other place for them here."""
    try:
        yield
    except PlanwardenError as error:
        raise MCPError(code=INTERNAL_ERROR, message=f"{error.code}: {error.message}") from None
