"""Python clients: `client.py LIBRARY LAUNCHER CALLS` lists the tools with the library and makes the calls."""

import asyncio
import json
import sys

ANSWER = {"action": "accept", "content": {"decision": "approve"}}


async def fastmcp(launcher, calls):
    from fastmcp import Client
    from fastmcp.client.elicitation import ElicitResult
    from fastmcp.client.transports import StdioTransport

    async def approve(message, response_type, params, context):
        return ElicitResult(**ANSWER)

    async with Client(StdioTransport(launcher, [], keep_alive=False), elicitation_handler=approve) as client:
        await client.list_tools()
        for name, arguments in calls:
            await client.call_tool(name, arguments)


async def pydantic_ai(launcher, calls):
    from fastmcp.client.elicitation import ElicitResult
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    async def approve(message, response_type, params, context):
        return ElicitResult(**ANSWER)

    transport = StdioTransport(launcher, [], keep_alive=False)
    # Python may take longer to start on a busy machine than the default of five seconds.
    async with MCPToolset(transport, elicitation_handler=approve, init_timeout=60) as toolset:
        await toolset.list_tools()
        for name, arguments in calls:
            await toolset.direct_call_tool(name, arguments)


async def langchain(launcher, calls):
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from langchain_mcp_adapters.tools import load_mcp_tools
    from mcp.types import ElicitResult

    async def approve(mcp_context, params, context):
        return ElicitResult(**ANSWER)

    connection = {"transport": "stdio", "command": launcher, "args": []}
    client = MultiServerMCPClient({"planwarden": connection}, callbacks=Callbacks(on_elicitation=approve))
    async with client.session("planwarden") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session, callbacks=client.callbacks)}
        for name, arguments in calls:
            await tools[name].ainvoke(arguments)


async def openai_agents(launcher, calls):
    from agents.mcp import MCPServerStdio

    # Python may take longer to start on a busy machine than the default of five seconds.
    async with MCPServerStdio({"command": launcher, "args": []}, client_session_timeout_seconds=60) as server:
        await server.list_tools()
        for name, arguments in calls:
            await server.call_tool(name, arguments)


asyncio.run(globals()[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3])))
