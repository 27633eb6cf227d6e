"""Observes a call of a downstream server by the MCP conventions: attributes for the span of its tool, and the duration.

A traced tool call gets no second span ("SHOULD add MCP-specific attributes to the existing tool execution span"). The
SDK makes a span of each request below it and puts that span's context into `_meta`.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.metrics import Histogram

from planwarden.server.telemetry.attributes import Attributes, log_failures
from planwarden.tools.downstream.request_observer import ObservedRequest, OnRequestEnd

CODES = frozenset((*range(-32_603, -32_599), -32_700, *range(-32_009, -31_999), *range(-32_029, -32_019), -32_042))
"""Error codes of JSON-RPC (https://www.jsonrpc.org/specification#error_object) and MCP.

All other codes share one label, so that a server that invents codes cannot multiply the labels of a metric."""


@contextmanager
def observe_exchange(durations: Histogram, exchange: ObservedRequest) -> Generator[OnRequestEnd]:
    """Observes the request in the block, which tells the yielded function whether the tool reported an error."""
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
    with log_failures("a call of server %r was not observed", exchange.server):
        # The metric has the tool's name on its server, the span its name in the catalogue.
        trace.get_current_span().set_attributes({**about, "gen_ai.tool.name": exchange.catalogue_name})
    began, error = time.perf_counter(), None

    def ended(failed: bool) -> None:
        nonlocal error
        error = "tool_error" if failed else None

    try:
        yield ended
    except BaseException as raised:
        error = _classify_error(raised)
        raise
    finally:
        with log_failures("a call of server %r was not observed", exchange.server):
            failed: Attributes = {} if error is None else {"error.type": error}
            if error is not None and error.lstrip("-").isdecimal():
                failed["rpc.response.status_code"] = error
            durations.record(time.perf_counter() - began, {**about, **failed})


def _classify_error(raised: BaseException) -> str:
    """Returns a code of the protocol, or the class of the exception."""
    from mcp.shared.exceptions import MCPError

    if not isinstance(raised, MCPError):
        return type(raised).__qualname__
    return str(raised.error.code) if raised.error.code in CODES else "_OTHER"
