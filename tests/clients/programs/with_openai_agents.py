"""The MCP client of openai-agents: `with_openai_agents.py LAUNCHER CALLS` lists the tools and makes the calls."""

import asyncio
import json
import sys

from agents.mcp import MCPServerStdio


async def main(launcher, calls):
    # Python may take longer to start on a busy machine than the default of five seconds.
    async with MCPServerStdio({"command": launcher, "args": []}, client_session_timeout_seconds=60) as server:
        await server.list_tools()
        for name, arguments in calls:
            await server.call_tool(name, arguments)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
