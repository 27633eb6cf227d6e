"""What tests of artifacts share: a tool whose result is too large for the log, and one that returns anything."""

from collections.abc import Awaitable, Callable

from pydantic import JsonValue

import planwarden
from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.core.tool import CallContext
from tests.server.mcp.support import Document

PAGES = 3_000


@planwarden.tool(risk="read", effect="read")
async def crawl(pages: int = PAGES, start: int = 0) -> dict[str, JsonValue]:
    """Find many pages."""
    return {"results": [{"url": f"https://a.test/{start + n}", "text": "é" * 50} for n in range(pages)]}


def stand_in_of(step: planwarden.Step) -> Document:
    """Returns the stand-in that the step shows as its result."""
    assert isinstance(step.result, dict) and is_stand_in(step.result)
    return step.result


def build_constant_call(value: object) -> Callable[[dict[str, JsonValue], CallContext], Awaitable[object]]:
    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        return value

    return call
