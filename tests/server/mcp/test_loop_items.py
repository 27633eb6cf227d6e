"""What a client sees of a long loop: that its result is cut, and every item by pages."""

from pathlib import Path

import pytest
from mcp import Client
from pydantic import JsonValue

import planwarden
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, ok, refused, served
from tests.support.wardens import plan, tool_step

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@planwarden.tool(risk="read", effect="read")
async def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@requirement("loops:pages")
async def test_a_client_reads_all_items_by_pages_and_is_told_that_there_are_more(tmp_path: Path, era: Era) -> None:
    items: list[JsonValue] = [*range(130)]
    step = tool_step("double", "double", {"number": {"$from": "item"}}, forEach=items, maxItems=130, maxConcurrent=32)
    async with served(tmp_path, tools=[double]) as found, Client(found.server, mode=era) as client:
        done = await ok(client, "execute_plan", plan=plan(step), options={"waitSeconds": 60})
        [shown] = done["steps"]
        assert done["status"] == "completed" and len(shown["result"]) == 100 and shown["items"]["next"] == 100
        first = await client.call_tool("get_execution", {"threadId": done["threadId"], "stepId": "double"})
        text = getattr(first.content[0], "text", "")
        assert "more of its 130 items: get_execution with stepId double and itemsFrom 100" in text
        rest = await ok(client, "get_execution", threadId=done["threadId"], stepId="double", itemsFrom=100)
        [step_view] = rest["steps"]
        assert [item["result"] for item in step_view["itemResults"]] == [2 * n for n in range(100, 130)]
        assert "next" not in step_view["items"] and "result" not in step_view
        wrong = await refused(client, "get_execution", threadId=done["threadId"], stepId="double", itemsFrom=130)
        assert "items 0 to 129" in wrong["message"]
