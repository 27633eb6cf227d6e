"""A downstream server of protocol 2026-07-28 that returns its questions; run it as `python asking_server.py FOLDER`.

`transfer` asks for the amount and a confirmation before it runs. FOLDER/ledger records its calls and their keys.
"""

import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

FOLDER = Path(sys.argv[1])
AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}


def note(line: str) -> None:
    with (FOLDER / "ledger").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


async def list_tools(
    context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    return types.ListToolsResult(
        tools=[types.Tool(name=name, input_schema=schema) for name in ("transfer", "roots", "endless")]
    )


async def call_tool(
    context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    key = (params.meta or {}).get("planwarden/idempotencyKey")
    note(f"call {params.name} {key} {params.request_state}")
    if params.name == "roots":
        return types.InputRequiredResult(input_requests={"r": types.ListRootsRequest()})
    if params.name == "endless":
        return types.InputRequiredResult(input_requests={"a": form("again?", AMOUNT)}, request_state="s")
    answers = {
        name: found for name, found in (params.input_responses or {}).items() if isinstance(found, types.ElicitResult)
    }
    if params.request_state is None:
        empty: dict[str, Any] = {"type": "object", "properties": {}}
        asks: dict[str, types.InputRequest] = {"amount": form("How much?", AMOUNT), "really": form("Really?", empty)}
        return types.InputRequiredResult(input_requests=asks, request_state="first")
    if any(found.action != "accept" for found in answers.values()):
        return types.CallToolResult(content=[types.TextContent(text="left it")])
    note(f"transferred {(answers['amount'].content or {}).get('amount')}")
    return types.CallToolResult(content=[types.TextContent(text="done")])


async def main() -> None:
    server = Server("asking", on_list_tools=list_tools, on_call_tool=call_tool)
    note("start")
    async with stdio_server() as (inbox, outbox):
        await server.run(inbox, outbox, server.create_initialization_options())


anyio.run(main)
