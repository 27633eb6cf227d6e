"""The tasks extension: calls that start or continue an execution return a durable task at once.

Clients of protocol 2026-07-28 that declare `io.modelcontextprotocol/tasks` get tasks; nothing changes for others. The
task is the execution, so it survives restarts, every process with the same store knows it, and any of the owner's
clients can read and cancel it. A task never asks the caller's own model, because the protocol has no request that
carries a prompt for it. The call instead returns its ordinary result, with the prompt, if that model has to think, or
if the execution waits for a person whom this client cannot ask. `task_state` says what then happens to an open task.

Source: https://github.com/modelcontextprotocol/ext-tasks/blob/main/specification/draft/tasks.md (SEP-2663).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp.types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ErrorData,
    RequestParams,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from msgspec.structs import replace
from pydantic import Field, JsonValue
from starlette.requests import Request as HttpRequest

from planwarden.agent.common.errors import UnknownThread
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.mcp.requests import AnyContext, ServiceContext, translate_errors
from planwarden.server.mcp.results import build_result
from planwarden.server.mcp.task_state import (
    CHANNEL,
    TASKS,
    Document,
    TaskInput,
    TaskState,
    build_input_request,
    build_task_document,
    name_client_kind,
    read_task_state,
)
from planwarden.server.mcp.text import format_execution
from planwarden.server.mcp.tools.tool import McpTool, ToolRequest, ToolResult
from planwarden.server.views.encoding import describe_changes

TASK_TOOLS = frozenset({"run_goal", "execute_plan", "run_plan", "retry_execution", "resume_execution"})
_TASK_META_KEY = "planwarden/task"
"""The key in `_meta` that marks a result for `Tasks` to replace with a task; it never leaves the server."""


class TaskParams(RequestParams):
    """Parameters of `tasks/get` and `tasks/cancel`."""

    task_id: Annotated[str, Field(max_length=200)]


class UpdateParams(TaskParams):
    """Parameters of `tasks/update`."""

    input_responses: Annotated[dict[str, Any], Field(max_length=100)]


class Tasks(Extension):
    """The tasks extension that the server registers. Conformance tests override `build_outcome`."""

    identifier = TASKS

    def __init__(self, task_input: TaskInput | None = None) -> None:
        self._input = task_input or TaskInput()
        self.on_answer: Callable[[str], None] = lambda task_id: None
        """The callback that gets the id of each task that a client here answers; it must not raise or block."""

    def methods(self) -> Sequence[MethodBinding]:
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", TaskParams, self._get, versions),
            MethodBinding("tasks/update", UpdateParams, self._update, versions),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, versions),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServiceContext, call_next: CallNext
    ) -> HandlerResult:
        """Return the task's first state if the result is offered as a task; return any other result unchanged."""
        result = await call_next(ctx)
        task_id = (result.meta or {}).get(_TASK_META_KEY) if isinstance(result, CallToolResult) else None
        if not isinstance(task_id, str):
            return result
        with translate_errors():
            service = await ctx.lifespan_context.service()
            execution = await service.find(task_id)
            state = await self._read_state(service, execution, ctx.session.client_capabilities)
            return {"resultType": "task", **build_task_document(service, execution, state.status, state.progress)}

    async def run(self, tool: McpTool, request: ToolRequest) -> ToolResult:
        """Call the tool without waiting and offer its result as a task, even if the execution has already ended.

        Return an ordinary result if the call failed, continues an `incomplete` execution or leaves its own question
        open, or if the execution needs the calling model or waits for a person whom this client cannot ask.
        """
        if await _is_continuation(tool, request):
            return await tool.handler(request)
        result = await tool.handler(replace(request, arguments={**request.arguments, "waitSeconds": 0}))
        if not isinstance(result, CallToolResult) or result.is_error or result.structured_content is None:
            return result
        service, suspension_id = request.service, request.arguments.get("suspensionId")
        execution = await _find_execution(request, result.structured_content)
        if any(state.question.suspension_id == suspension_id for state in execution.open_suspensions):
            return result
        state = await read_task_state(self._input, service, execution, request.context.client_capabilities)
        if not state.has_ended_early and not _has_caller_prompts(service, execution):
            return offer_task(result, execution.execution_id)
        return await request.wait_and_show(execution)

    async def build_snapshot(
        self, service: Service, execution: ExecutionState, capabilities: ClientCapabilities | None
    ) -> tuple[Document, float | None]:
        """Return the task as this client sees it, and the seconds until it changes by itself. Raises `StoreError`.

        Depending on its status, the task contains its open questions, its result or its error.
        """
        state = await self._read_state(service, execution, capabilities)
        document = build_task_document(service, execution, state.status, state.progress)
        if state.status == "input_required":
            requests = {key: build_input_request(question) for key, (_, question) in state.questions.items()}
            document["inputRequests"] = requests
        elif state.status == "completed":
            outcome = self.build_outcome(service, execution)
            content = outcome.model_dump(by_alias=True, mode="json", exclude_none=True)
            failed = {"status": "failed", "error": content}
            document |= failed if isinstance(outcome, ErrorData) else {"result": content}
        return document, state.changes_in_s

    async def _read_state(
        self, service: Service, execution: ExecutionState, capabilities: ClientCapabilities | None
    ) -> TaskState:
        """Return the state of the task. If the task ends before its execution, record the end first."""
        state = await read_task_state(self._input, service, execution, capabilities)
        if state.has_ended_early or state.can_continue:
            kind, execution_id = name_client_kind(capabilities), execution.execution_id
            facts: dict[str, JsonValue] = {"client": kind, "channel": CHANNEL, "principal": execution.principal}
            entry = AuditEntry(kind="task_ended", facts=facts, execution_id=execution_id)
            # The client must not hear of an end that could not be recorded.
            await self._input.write_note(service.store, entry, lambda notes: kind in notes.ended)
        return state

    def build_outcome(self, service: Service, execution: ExecutionState) -> CallToolResult | ErrorData:
        """Return the final result of the call: the finished execution, as every tool returns it."""
        return build_result(describe_changes(service.build_view(execution)), format_execution)

    async def _get(self, ctx: ServiceContext, params: TaskParams) -> Document:
        with translate_errors():
            service, execution = await _require_task(ctx, params)
            document, _ = await self.build_snapshot(service, execution, ctx.session.client_capabilities)
            return document

    async def _update(self, ctx: ServiceContext, params: UpdateParams) -> Document:
        with translate_errors():
            service, execution = await _require_task(ctx, params)
            state = await read_task_state(self._input, service, execution, ctx.session.client_capabilities)
            answers = params.input_responses
            try:
                await self._input.apply_responses(service, execution.principal, state.questions, answers)
            finally:
                self.on_answer(params.task_id)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServiceContext, params: TaskParams) -> Document:
        with translate_errors():
            service, execution = await _require_task(ctx, params)
            await service.cancel(execution, None)
        return {"resultType": "complete"}


def wants_tasks(context: AnyContext) -> bool:
    """Return True when the client's protocol has tasks and the client declares the extension."""
    capabilities = context.client_capabilities
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (
        (capabilities.extensions if capabilities is not None else None) or {}
    )


def offer_task(result: CallToolResult, execution_id: str) -> CallToolResult:
    """Return the result, marked to become the task `execution_id`; only for clients for which `wants_tasks` is true."""
    return result.model_copy(update={"meta": {**(result.meta or {}), _TASK_META_KEY: execution_id}})


async def find_task(service: Service, task_id: str, principal: str) -> ExecutionState | None:
    """Return the principal's task; None if the id is unknown or belongs to another principal. Raises `StoreError`.

    A plan that nobody has started is not a task, because a client would poll it forever.
    """
    try:
        execution = await service.find(task_id)
    except UnknownThread:
        return None
    is_task = execution.principal == principal and execution.status != "planned"
    return execution if is_task else None


async def _require_task(ctx: ServiceContext, params: TaskParams) -> tuple[Service, ExecutionState]:
    """Return the service and the task that a request names. Raises `MCPError` if the client lacks the extension, the id
    is unknown or foreign, or the header names another id."""
    require_client_extension(ctx, TASKS)
    request: object = ctx.request
    if isinstance(request, HttpRequest) and decode_header_value(request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        # Intermediaries route by this header; the SDK checks it only for the SDK's own methods.
        message = f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        raise MCPError(code=HEADER_MISMATCH, message=message)
    service = await ctx.lifespan_context.service()
    execution = await find_task(service, params.task_id, ctx.lifespan_context.principal())
    if execution is None:
        raise MCPError(code=INVALID_PARAMS, message="Failed to retrieve task: Task not found")
    return service, execution


async def _is_continuation(tool: McpTool, request: ToolRequest) -> bool:
    """Return True when the call continues an execution that ended `incomplete`, and whose task is therefore over."""
    arguments: Mapping[str, Any] = request.arguments
    if tool.name != "execute_plan" or "plan" in arguments or "threadId" not in arguments:
        return False
    newest = await request.service.load_newest(arguments["threadId"], request.principal)
    return newest.status == "incomplete"


async def _find_execution(request: ToolRequest, document: Document) -> ExecutionState:
    """Return the execution that the call started, or the execution whose question the call answered."""
    if "executionId" in document:
        return await request.service.find(document["executionId"])
    execution = await request.service.find_by_suspension(
        request.thread_id, request.suspension_id, principal=request.principal
    )
    return await request.service.find(execution.execution_id)


def _has_caller_prompts(service: Service, execution: ExecutionState) -> bool:
    """Return True when the execution asks the calling model, or will ask it."""
    if any(suspension.question.addressee == "caller" for suspension in execution.open_suspensions):
        return True
    if not service.is_caller_model:
        return False
    plan = execution.plan
    return plan is None or bool(execution.options.synthesize) or any(not step.tool_calls for step in plan.steps)
