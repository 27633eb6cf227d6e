"""What a call of a downstream server adds to the span of its tool, and how long it took, by the MCP conventions.

A tool call that is traced already gets no second span ("SHOULD add MCP-specific attributes to the existing tool
execution span"); below it is the span that the SDK makes of each request, whose context goes into `_meta`.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.metrics import Histogram

from planwarden.server.telemetry.attributes import Attributes, unharmed
from planwarden.tools.downstream.request_observer import ObservedRequest, OnRequestEnd

CODES = frozenset((*range(-32_603, -32_599), -32_700, *range(-32_009, -31_999), *range(-32_029, -32_019), -32_042))
"""Codes that mean something in JSON-RPC (https://www.jsonrpc.org/specification#error_object) or MCP; a server that makes
up others, also among the hundreds that are reserved, makes one label, not many."""


@contextmanager
def exchanging(durations: Histogram, exchange: ObservedRequest) -> Generator[OnRequestEnd]:
    """Entered while a downstream server is asked; what comes back is told whether the tool reported an error."""
    about: Attributes = {
        "mcp.method.name": exchange.method,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": exchange.tool_name,
        "network.transport": "pipe" if exchange.address is None else "tcp",
    }
    if exchange.protocol_version is not None:
        about["mcp.protocol.version"] = exchange.protocol_version
    if exchange.address is not None:
        about["server.address"] = exchange.address
        if exchange.port is not None:
            about["server.port"] = exchange.port
    with unharmed("a call of server %r was not observed", exchange.server):
        # The span has the tool's name in our catalogue; this is the one that the server knows it by.
        trace.get_current_span().set_attributes({**about, "gen_ai.tool.name": exchange.catalogue_name})
    began, error = time.perf_counter(), None

    def ended(failed: bool) -> None:
        nonlocal error
        error = "tool_error" if failed else None

    try:
        yield ended
    except BaseException as raised:
        error = _error(raised)
        raise
    finally:
        with unharmed("a call of server %r was not observed", exchange.server):
            failed: Attributes = {} if error is None else {"error.type": error}
            if error is not None and error.lstrip("-").isdecimal():
                failed["rpc.response.status_code"] = error
            durations.record(time.perf_counter() - began, {**about, **failed})


def _error(raised: BaseException) -> str:
    """A code of the protocol, or a class of exceptions."""
    from mcp.shared.exceptions import MCPError

    if not isinstance(raised, MCPError):
        return type(raised).__qualname__
    return str(raised.error.code) if raised.error.code in CODES else "_OTHER"
