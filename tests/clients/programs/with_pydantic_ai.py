"""The MCP toolset of pydantic-ai: `with_pydantic_ai.py LAUNCHER CALLS` lists the tools and makes the calls."""

import asyncio
import json
import sys

from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset


async def approve(message, response_type, params, context):
    return ElicitResult(action="accept", content={"decision": "approve"})


async def main(launcher, calls):
    transport = StdioTransport(launcher, [], keep_alive=False)
    async with MCPToolset(transport, elicitation_handler=approve) as toolset:
        await toolset.list_tools()
        for name, arguments in calls:
            await toolset.direct_call_tool(name, arguments)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
