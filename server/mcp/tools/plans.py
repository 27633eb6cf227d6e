"""The tools of the MCP surface that find tools for plans, and that make, run, read and cancel plans."""

from mcp.types import CallToolResult
from msgspec.structs import replace

from planwarden.server.api import tools as tool_search
from planwarden.server.mcp import schemas
from planwarden.server.mcp.app import build_etag
from planwarden.server.mcp.results import build_result, build_view_result
from planwarden.server.mcp.text import format_execution, format_schemas, format_tools
from planwarden.server.mcp.tools.tool import ToolRequest, mcp_tool


@mcp_tool(
    "Search tools",
    "Find tools, one line each. Planning does this by itself; use it to write a plan.",
    {"query": schemas.STRING, **schemas.PAGE},
    "reads",
    output=schemas.TOOLS_OUT,
)
async def search_tools(request: ToolRequest) -> CallToolResult:
    arguments = request.arguments
    await request.service.wait_for_catalogue()
    limit, cursor = int(arguments.get("limit", 20)), arguments.get("cursor")
    page = tool_search.search_tools(request.service.tools, arguments.get("query"), limit=limit, cursor=cursor)
    return build_view_result(page, format_tools)


@mcp_tool(
    "Get tool schemas",
    "What named tools take and return, and whether they ask a person; for toolCalls.",
    {"names": schemas.STRINGS},
    "reads",
    required=("names",),
    output=schemas.SCHEMAS_OUT,
)
async def get_tool_schemas(request: ToolRequest) -> CallToolResult:
    names = request.arguments["names"]
    await request.service.wait_for_tools(names)
    return build_view_result(await request.service.get_tool_schemas(names, principal=request.principal), format_schemas)


@mcp_tool(
    "Create a plan",
    "Make a plan for a goal without running it; execute_plan with the threadId runs it.",
    {"goal": schemas.STRING, **schemas.RUN},
    "shows_app",
    required=("goal",),
)
async def create_plan(request: ToolRequest) -> CallToolResult:
    execution = await request.service.run_goal(request.arguments["goal"], request.start, plan_only=True)
    return await request.wait_and_show(execution)


@mcp_tool(
    "Run a goal",
    "Plan and run a goal durably. Do what nextAction says until status is completed. "
    "Questions to the caller are yours: read prompt, answer with submit_answer.",
    {"goal": schemas.STRING, **schemas.RUN},
    "shows_app",
    required=("goal",),
)
async def run_goal(request: ToolRequest) -> CallToolResult:
    execution = await request.service.run_goal(request.arguments["goal"], request.start)
    return await request.wait_and_show(execution)


@mcp_tool(
    "Execute a plan",
    "Run the given plan, or without plan the planned or rehearsed one of threadId. A step counts as done only when "
    "its requiredTools were really called. Calls that need a person are asked about by themselves; a "
    "displayConfirmation step is for asking once before several of them.",
    {
        "plan": schemas.PLAN,
        "inputs": {"type": "object", "description": "Values for the plan's inputs"},
        "goal": schemas.STRING,
        **schemas.RUN,
        "options": schemas.OPTIONS,
    },
    "shows_app",
)
async def execute_plan(request: ToolRequest) -> CallToolResult:
    execution = await request.service.execute_plan(request.arguments.get("plan"), request.start)
    return await request.wait_and_show(execution)


@mcp_tool(
    "Run a saved plan",
    "Run a plan that the operator saved, by its name and with its inputs; prefer it where one fits.",
    {"name": schemas.STRING, "inputs": schemas.OBJECT, **schemas.RUN},
    "shows_app",
    required=("name",),
)
async def run_plan(request: ToolRequest) -> CallToolResult:
    execution = await request.service.run_plan(request.arguments["name"], request.start)
    return await request.wait_and_show(execution)


@mcp_tool(
    "Retry an execution",
    "Go on from a thread's ended execution without repeating what is completed, perhaps with a "
    "corrected plan. fromStep is only for running that step and what follows again, also if completed.",
    {
        **schemas.THREAD,
        "fromStep": schemas.STRING,
        "inputs": schemas.OBJECT,
        "plan": {"type": "object", "description": "The whole plan, corrected; completed steps unchanged"},
        "key": schemas.STRING,
        "waitSeconds": schemas.WAIT,
    },
    "shows_app",
    required=("threadId",),
)
async def retry_execution(request: ToolRequest) -> CallToolResult:
    arguments = request.arguments
    execution = await request.service.retry(
        request.thread_id, request.start, from_step=arguments.get("fromStep"), plan=arguments.get("plan")
    )
    return await request.wait_and_show(execution)


@mcp_tool(
    "Get an execution",
    "Status, steps, results and open questions of a thread. observationsAfter: 0 adds its history. "
    "stepId: only that step, a loop's items by 100 from itemsFrom. "
    "A question's needs: client, a form of yours is enough; human, only the inbox or a terminal.",
    {
        **schemas.THREAD,
        "observationsAfter": {"type": "integer", "minimum": 0},
        "stepId": schemas.STRING,
        "itemsFrom": {"type": "integer", "minimum": 0},
    },
    "reads",
    "shows_app",
    required=("threadId",),
)
async def get_execution(request: ToolRequest) -> CallToolResult:
    after, first = request.arguments.get("observationsAfter"), request.arguments.get("itemsFrom")
    view = await request.service.get_execution(
        request.thread_id,
        observations_after=None if after is None else int(after),
        step_id=request.arguments.get("stepId"),
        items_from=None if first is None else int(first),
        principal=request.principal,
    )
    view = request.name_decision_ways(view)
    return await request.add_app_data(view, build_view_result(view, format_execution))


@mcp_tool(
    "Show the plan in the view",
    "For planwarden's own view only.",
    {**schemas.THREAD, "seen": schemas.STRING, "suspensionId": schemas.STRING},
    "reads",
    "shows_app",
    "for_app",
    required=("threadId",),
)
async def app_show(request: ToolRequest) -> CallToolResult:
    """Return the thread's status; `_meta` carries the plan and its questions if the view has not seen this version."""
    execution = await request.service.load_newest(request.thread_id, request.principal)
    view = request.service.build_view(execution)
    result = build_result({"threadId": view.thread_id, "status": view.status}, lambda document: document["status"])
    if request.arguments.get("seen") == build_etag(execution):
        return result
    return await request.add_app_data(view, result)


@mcp_tool(
    "Cancel an execution",
    "Stop a thread's execution; what was done stays done.",
    {**schemas.THREAD, "reason": schemas.STRING},
    "repeats",
    required=("threadId",),
)
async def cancel_execution(request: ToolRequest) -> CallToolResult:
    before = await request.service.get_execution(request.thread_id, principal=request.principal)
    execution = await request.service.cancel_execution(
        request.thread_id, reason=request.arguments.get("reason"), principal=request.principal
    )
    return await replace(request, before=before).show(request.service.build_view(execution))
