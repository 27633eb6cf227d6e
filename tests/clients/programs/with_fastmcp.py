"""A fastmcp client: `with_fastmcp.py LAUNCHER CALLS` lists the tools, then makes the calls in order."""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport


async def approve(message, response_type, params, context):
    return ElicitResult(action="accept", content={"decision": "approve"})


async def main(launcher, calls):
    async with Client(StdioTransport(launcher, [], keep_alive=False), elicitation_handler=approve) as client:
        await client.list_tools()
        for name, arguments in calls:
            await client.call_tool(name, arguments)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
