"""Handlers of the tools that find tools for plans, and that make, run, read and cancel plans."""

from mcp.types import CallToolResult
from msgspec.structs import replace

from planwarden.server.mcp.handlers.request import ToolRequest, add_questions, show_execution, wait_and_show_execution
from planwarden.server.mcp.results import build_view_result
from planwarden.server.mcp.text import format_execution, format_schemas, format_tools


async def search_tools(request: ToolRequest) -> CallToolResult:
    given = request.arguments
    await request.service.wait_for_catalogue()
    page = request.service.search_tools(
        given.get("query"), limit=int(given.get("limit", 20)), cursor=given.get("cursor")
    )
    return build_view_result(page, format_tools)


async def get_tool_schemas(request: ToolRequest) -> CallToolResult:
    names = request.arguments["names"]
    await request.service.wait_for_tools(names)
    return build_view_result(request.service.get_tool_schemas(names), format_schemas)


async def create_plan(request: ToolRequest) -> CallToolResult:
    return await _start_goal(request, plan_only=True)


async def run_goal(request: ToolRequest) -> CallToolResult:
    return await _start_goal(request, plan_only=False)


async def _start_goal(request: ToolRequest, *, plan_only: bool) -> CallToolResult:
    given = request.arguments
    view = await request.service.run_goal(
        given["goal"],
        thread_id=given.get("threadId"),
        key=given.get("key"),
        options=given.get("options"),
        wait_seconds=0,
        principal=request.principal,
        plan_only=plan_only,
        client_id=request.caller.client_id,
        host=request.host,
        chain=request.chain,
    )
    return await wait_and_show_execution(request, view)


async def execute_plan(request: ToolRequest) -> CallToolResult:
    given = request.arguments
    view = await request.service.execute_plan(
        given.get("plan"),
        goal=given.get("goal"),
        thread_id=given.get("threadId"),
        key=given.get("key"),
        options=given.get("options"),
        wait_seconds=0,
        principal=request.principal,
        client_id=request.caller.client_id,
        host=request.host,
        chain=request.chain,
    )
    return await wait_and_show_execution(request, view)


async def get_execution(request: ToolRequest) -> CallToolResult:
    after = request.arguments.get("observationsAfter")
    view = await request.service.get_execution(
        request.thread_id, observations_after=None if after is None else int(after), principal=request.principal
    )
    return add_questions(request, view, build_view_result(view, format_execution))


async def cancel_execution(request: ToolRequest) -> CallToolResult:
    before = await request.service.get_execution(request.thread_id, principal=request.principal)
    view = await request.service.cancel_execution(
        request.thread_id, reason=request.arguments.get("reason"), principal=request.principal
    )
    return await show_execution(replace(request, before=before), view)
