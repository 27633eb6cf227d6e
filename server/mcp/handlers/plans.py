"""Handlers of the tools that find tools for plans, and that make, run, read and cancel plans."""

from mcp.types import CallToolResult
from msgspec.structs import replace

from planwarden.server.api import tool_search
from planwarden.server.mcp.app.plan import name_version
from planwarden.server.mcp.handlers.request import ToolRequest, add_app_data, show_execution, wait_and_show_execution
from planwarden.server.mcp.results import build_result, build_view_result
from planwarden.server.mcp.text import format_execution, format_schemas, format_tools


async def search_tools(request: ToolRequest) -> CallToolResult:
    arguments = request.arguments
    await request.service.wait_for_catalogue()
    limit, cursor = int(arguments.get("limit", 20)), arguments.get("cursor")
    page = tool_search.search_tools(request.service.tools, arguments.get("query"), limit=limit, cursor=cursor)
    return build_view_result(page, format_tools)


async def get_tool_schemas(request: ToolRequest) -> CallToolResult:
    names = request.arguments["names"]
    await request.service.wait_for_tools(names)
    return build_view_result(await request.service.get_tool_schemas(names, principal=request.principal), format_schemas)


async def create_plan(request: ToolRequest) -> CallToolResult:
    return await _start_goal(request, plan_only=True)


async def run_goal(request: ToolRequest) -> CallToolResult:
    return await _start_goal(request, plan_only=False)


async def _start_goal(request: ToolRequest, *, plan_only: bool) -> CallToolResult:
    goal = request.arguments["goal"]
    execution = await request.service.run_goal(goal, request.start, plan_only=plan_only)
    return await wait_and_show_execution(request, execution)


async def execute_plan(request: ToolRequest) -> CallToolResult:
    execution = await request.service.execute_plan(request.arguments.get("plan"), request.start)
    return await wait_and_show_execution(request, execution)


async def run_plan(request: ToolRequest) -> CallToolResult:
    execution = await request.service.run_plan(request.arguments["name"], request.start)
    return await wait_and_show_execution(request, execution)


async def retry_execution(request: ToolRequest) -> CallToolResult:
    arguments = request.arguments
    execution = await request.service.retry(
        request.thread_id, request.start, from_step=arguments.get("fromStep"), plan=arguments.get("plan")
    )
    return await wait_and_show_execution(request, execution)


async def get_execution(request: ToolRequest) -> CallToolResult:
    after, first = request.arguments.get("observationsAfter"), request.arguments.get("itemsFrom")
    view = await request.service.get_execution(
        request.thread_id,
        observations_after=None if after is None else int(after),
        step_id=request.arguments.get("stepId"),
        items_from=None if first is None else int(first),
        principal=request.principal,
    )
    return await add_app_data(request, view, build_view_result(view, format_execution))


async def app_show(request: ToolRequest) -> CallToolResult:
    """Return the plan as the view shows it, with its questions; `_meta` has them only if the view shows another
    version."""
    execution = await request.service.load_newest(request.thread_id, request.principal)
    view = request.service.build_view(execution)
    result = build_result({"threadId": view.thread_id, "status": view.status}, lambda document: document["status"])
    if request.arguments.get("seen") == name_version(execution):
        return result
    return await add_app_data(request, view, result)


async def cancel_execution(request: ToolRequest) -> CallToolResult:
    before = await request.service.get_execution(request.thread_id, principal=request.principal)
    execution = await request.service.cancel_execution(
        request.thread_id, reason=request.arguments.get("reason"), principal=request.principal
    )
    return await show_execution(replace(request, before=before), request.service.build_view(execution))
