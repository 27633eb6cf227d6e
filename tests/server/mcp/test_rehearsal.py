"""A rehearsal over MCP: structured content and text each say what would have been done and whom it would have asked."""

from pathlib import Path

import pytest
from mcp import Client
from pydantic import JsonValue

from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Era, served, text_of
from tests.support.wardens import Ledger, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]


@requirement("rehearsal:record", "rehearsal:nothing-done")
async def test_a_rehearsed_plan_asks_nobody_and_says_what_it_would_need(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    written = plan(
        tool_step("find", "find", {"topic": "x"}),
        tool_step("erase", "erase", {"ids": {"$from": "find", "pointer": "/ids"}}),
        tool_step("note", "note", {"text": {"$from": "erase", "pointer": "/erased"}}),
    )
    options: JsonValue = {"rehearse": True}
    async with served(tmp_path, tools=ledger.tools()) as found, Client(found.server, mode=era) as client:
        result = await client.call_tool("execute_plan", {"plan": written, "options": options})
    document = result.structured_content
    assert document is not None and (document["status"], ledger.lines) == ("rehearsed", [])
    [call] = document["steps"][1]["actualToolCalls"]
    assert call["arguments"] == {"ids": [1, 2, 3]} and call["status"] == "rehearsed"
    assert call["rehearsal"] == {"risk": "dangerous", "asks": "approval", "needs": "human"}
    assert document["steps"][2]["skippedBecause"] == "erase" and "suspensions" not in document
    text = text_of(result)
    assert '"asks": "approval"' in text and "skipped after erase" in text and "nothing was changed" in text
