"""All tools of the MCP surface, in the order of `tools/list`."""

from collections.abc import Mapping

from planwarden.server.mcp.tools import plans, suspensions
from planwarden.server.mcp.tools.tool import McpTool

TOOLS: tuple[McpTool, ...] = (
    plans.SEARCH_TOOLS,
    plans.GET_TOOL_SCHEMAS,
    plans.CREATE_PLAN,
    plans.RUN_GOAL,
    plans.EXECUTE_PLAN,
    plans.RUN_PLAN,
    plans.RETRY_EXECUTION,
    suspensions.ASK_PERSON,
    plans.GET_EXECUTION,
    suspensions.LIST_SUSPENSIONS,
    suspensions.SUBMIT_ANSWER,
    suspensions.RESUME_EXECUTION,
    plans.CANCEL_EXECUTION,
)
APP_TOOLS = (suspensions.APP_DECIDE, plans.APP_SHOW)
"""Only the app's view calls them."""
TOOLS_BY_NAME: Mapping[str, McpTool] = {tool.name: tool for tool in (*TOOLS, *APP_TOOLS)}
