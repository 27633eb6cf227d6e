"""All tools of the MCP surface, in the order of `tools/list`."""

from collections.abc import Mapping

from planwarden.server.mcp.tools import plans, suspensions
from planwarden.server.mcp.tools.tool import McpTool

TOOLS: tuple[McpTool, ...] = (
    plans.search_tools,
    plans.get_tool_schemas,
    plans.create_plan,
    plans.run_goal,
    plans.execute_plan,
    plans.run_plan,
    plans.retry_execution,
    suspensions.ask_person,
    plans.get_execution,
    suspensions.list_suspensions,
    suspensions.submit_answer,
    suspensions.resume_execution,
    plans.cancel_execution,
)
APP_TOOLS = (suspensions.app_decide, plans.app_show)
"""Tools that only the app's view calls."""
TOOLS_BY_NAME: Mapping[str, McpTool] = {tool.name: tool for tool in (*TOOLS, *APP_TOOLS)}
