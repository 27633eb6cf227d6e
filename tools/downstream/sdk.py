"""Imports the MCP SDK lazily, because it loads slowly: each module is imported when one of its names is first used."""

from typing import TYPE_CHECKING

from planwarden.agent.common.imports import LazyModule

if TYPE_CHECKING:
    import mcp
    from mcp import client
    from mcp.client import stdio, subscriptions
else:
    mcp, client = LazyModule("mcp"), LazyModule("mcp.client")
    stdio = LazyModule("mcp.client.stdio")
    subscriptions = LazyModule("mcp.client.subscriptions")

__all__ = ["client", "mcp", "stdio", "subscriptions"]
