"""The MCP server of openai-agents: `with_openai_agents.py LAUNCHER CALLS` lists the tools, then makes the calls in order."""

import asyncio
import json
import sys

from agents.mcp import MCPServerStdio


async def main(launcher, calls):
    # The default of five seconds is shorter than a start of Python on a busy machine.
    async with MCPServerStdio({"command": launcher, "args": []}, client_session_timeout_seconds=60) as server:
        await server.list_tools()
        for name, arguments in calls:
            await server.call_tool(name, arguments)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
