"""The LangChain adapters: `with_langchain.py LAUNCHER CALLS` loads the tools, then invokes them in order."""

import asyncio
import json
import sys

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from mcp.types import ElicitResult


async def approve(mcp_context, params, context):
    return ElicitResult(action="accept", content={"decision": "approve"})


async def main(launcher, calls):
    connection = {"transport": "stdio", "command": launcher, "args": []}
    client = MultiServerMCPClient({"planwarden": connection}, callbacks=Callbacks(on_elicitation=approve))
    async with client.session("planwarden") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session, callbacks=client.callbacks)}
        for name, arguments in calls:
            await tools[name].ainvoke(arguments)


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
