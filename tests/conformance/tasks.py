"""Fixtures of the tasks extension. Every one of them is a plan that the engine runs.

The tools of the suite are MCP tools that start an execution and offer it as the product's own tools do. Questions are
suspensions of calls that need an approval, and the product's own policy decides on the answers. Only two things differ:
the form, because the suite fills in `confirm` where planwarden asks for a decision, and the result, because the suite
wants errors that planwarden's own tools do not return.
"""

from typing import Any

import anyio
from mcp import types
from mcp.server.mcpserver import require_client_extension
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.service import Service
from planwarden.server.mcp.elicitation import ElicitationForm
from planwarden.server.mcp.requests import AnyContext
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.task_state import TASKS, TaskInput
from planwarden.server.mcp.tasks import Tasks, offer_task, wants_tasks
from planwarden.server.views.suspension import Suspension

NAME_FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CONFIRM_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"confirm": {"type": "boolean"}, "name": {"type": "string"}},
    "required": ["confirm"],
}


class FixtureTasks(Tasks):
    """The product's tasks with the suite's form and ends."""

    def __init__(self) -> None:
        super().__init__(_FixtureInput())

    def build_outcome(self, service: Service, execution: ExecutionState) -> types.CallToolResult | types.ErrorData:
        [step, *_] = execution.steps.values()
        message = step.error_message or "nothing went wrong"
        if step.error_code is not None and "protocol_error_job" in step.step.required_tools:
            return types.ErrorData(code=types.INTERNAL_ERROR, message=message)
        results = "; ".join(str(step.result) for step in execution.steps.values())
        return _said(results) if execution.status == "completed" else _said(message, is_error=True)


def register(server: PlanwardenServer) -> None:
    for tool in (
        greet,
        slow_compute,
        failing_job,
        protocol_error_job,
        confirm_delete,
        multi_input,
        test_tool_with_task,
    ):
        server.add_tool(tool, structured_output=False)


async def greet(name: str, ctx: AnyContext) -> types.CallToolResult:
    """Never a task."""
    return await _ran(ctx, ("greeting", {"name": name}))


async def slow_compute(seconds: float, ctx: AnyContext, label: str = "") -> types.CallToolResult:
    """A task where the client takes tasks."""
    return await _started(ctx, ("computing", {"seconds": seconds, "label": label}))


async def failing_job(ctx: AnyContext) -> types.CallToolResult:
    """Always a task."""
    require_client_extension(ctx.request_context, TASKS)
    return await _started(ctx, ("failing_job", {}))


async def protocol_error_job(ctx: AnyContext) -> types.CallToolResult:
    """A task that ends with an error of the protocol."""
    return await _started(ctx, ("protocol_error_job", {}))


async def confirm_delete(filename: str, ctx: AnyContext) -> types.CallToolResult:
    """A task that is suspended before it deletes."""
    return await _started(ctx, ("deleting", {"name": filename}))


async def multi_input(ctx: AnyContext) -> types.CallToolResult:
    """A task with two suspensions at once."""
    return await _started(ctx, ("deleting", {"name": "one"}), ("deleting", {"name": "two"}))


async def test_tool_with_task(ctx: AnyContext) -> types.CallToolResult | types.InputRequiredResult:
    """Asks for a name before it becomes a task."""
    answer = (ctx.input_responses or {}).get("user_name")
    if not isinstance(answer, types.ElicitResult) or not answer.content:
        asked = types.ElicitRequest(
            params=types.ElicitRequestFormParams(message="Your name?", requested_schema=NAME_FORM)
        )
        return types.InputRequiredResult(input_requests={"user_name": asked}, request_state="asked")
    return await _started(ctx, ("greeting", {"name": str(answer.content["name"])}))


def engine_tools() -> list[object]:
    """What the plans call."""

    @planwarden.tool(name="greeting", risk="read", effect="read")
    async def greeting(name: str) -> str:
        """Greets."""
        return f"Hello, {name}!"

    @planwarden.tool(name="computing", risk="read", effect="read")
    async def computing(seconds: float, label: str = "") -> str:
        """Takes its time."""
        await anyio.sleep(seconds)
        return f"computed {label} in {seconds} s"

    @planwarden.tool(name="failing_job", risk="read", effect="read")
    async def fails() -> str:
        """Fails."""
        raise RuntimeError("the job failed")

    @planwarden.tool(name="protocol_error_job", risk="read", effect="read")
    async def breaks() -> str:
        """Fails too."""
        raise RuntimeError("the protocol failed")

    @planwarden.tool(name="deleting", risk="confirm")
    async def deleting(name: str) -> str:
        """Deletes nothing, but needs an approval."""
        return f"deleted {name}"

    return [greeting, computing, fails, breaks, deleting]


async def _started(ctx: AnyContext, *calls: tuple[str, dict[str, JsonValue]]) -> types.CallToolResult:
    """An execution with one step per call, side by side: as a task, or run to its end for other clients."""
    if not wants_tasks(ctx):
        return await _ran(ctx, *calls)
    view = await _execute(ctx, 0, *calls)
    return offer_task(_said(f"started {view.execution_id}"), view.execution_id)


async def _ran(ctx: AnyContext, *calls: tuple[str, dict[str, JsonValue]]) -> types.CallToolResult:
    view = await _execute(ctx, 30, *calls)
    text = "; ".join(str(step.result) for step in view.steps)
    return _said(text, is_error=view.status != "completed")


async def _execute(
    ctx: AnyContext, wait_seconds: float, *calls: tuple[str, dict[str, JsonValue]]
) -> planwarden.Execution:
    lazy_service = ctx.request_context.lifespan_context
    steps: list[JsonValue] = [
        {
            "id": f"step_{number}",
            "description": name,
            "requiredTools": [name],
            "dependencies": [],
            "toolCalls": [{"toolName": name, "arguments": arguments}],
        }
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    service = await lazy_service.service()
    start = StartOptions(requester=Requester(lazy_service.principal()))
    execution = await service.execute_plan({"todoList": steps}, start)
    return service.build_view(await service.wait(execution, wait_seconds) if wait_seconds else execution)


class _FixtureInput(TaskInput):
    @staticmethod
    def build_form(suspension: Suspension) -> ElicitationForm | None:
        form = ElicitationForm(message=suspension.message, requested_schema=CONFIRM_FORM)
        return form if suspension.needs == "client" else None

    @staticmethod
    def read_decision(suspension: Suspension, content: dict[str, Any] | None) -> Decision | None:
        confirmed = (content or {}).get("confirm")
        return Decision(approved=confirmed) if isinstance(confirmed, bool) else None


def _said(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
