"""No answer is larger than its limit, and while a large request is checked, others are answered."""

import json
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from mcp import Client
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan
from planwarden.server.mcp.results import LISTED_ROWS, MAX_STRUCTURED, make_presentable
from planwarden.server.mcp.text import MAX_TEXT
from tests.requirements import requirement
from tests.server.mcp.support import Document, served, text_of
from tests.support.wardens import Ledger, plan, tool_step, warden

pytestmark = pytest.mark.anyio


@requirement("mcp:bounded-answers")
async def test_a_list_of_questions_about_many_calls_has_the_first_rows_and_their_count(tmp_path: Path) -> None:
    rows = list[JsonValue](f"{number} {'x' * 500}" for number in range(90))
    step = tool_step("each", "send", {"to": {"$from": "item"}}, forEach=rows)

    @planwarden.tool
    async def send(to: str) -> str:
        """Send."""
        return to

    async with served(tmp_path, tools=[send]) as found, Client(found.server, mode="auto") as client:
        ids = {(await found.warden.execute_plan(plan(step))).suspensions[0].suspension_id for _ in range(30)}
        document: Document = {}
        listed, cursor = list[Document](), None
        while cursor is not None or not listed:
            page = await client.call_tool("list_suspensions", {"limit": 100} | ({"cursor": cursor} if cursor else {}))
            document = page.structured_content or {}
            assert len(json.dumps(document)) <= MAX_STRUCTURED and len(text_of(page)) <= MAX_TEXT
            listed, cursor = [*listed, *document["suspensions"]], document.get("nextCursor")
        assert document["total"] == 30 and {question["suspensionId"] for question in listed} == ids
        assert len(listed) == 30
        assert {(len(question["calls"]), question["callCount"]) for question in listed} == {(LISTED_ROWS, 90)}


@requirement("mcp:bounded-answers")
@pytest.mark.parametrize(
    ("entry", "count"), [(7, 300_000), ("x" * 1_500, 500), ({"result": "y" * 5_000}, 200), (["z" * 90_000], 9)]
)
def test_a_document_of_any_shape_is_cut_to_the_limit_and_lists_say_how_long_they_were(
    entry: JsonValue, count: int
) -> None:
    document: dict[str, JsonValue] = {"status": "completed", "steps": [{"id": "a", "found": [entry] * count}]}
    cut = make_presentable(document)
    assert len(json.dumps(cut, ensure_ascii=False)) <= MAX_STRUCTURED
    assert cut["status"] == "completed"
    [step] = cut["steps"]
    assert len(step["found"]) == count or step["foundCount"] == count


@requirement("mcp:bounded-answers")
async def test_while_a_large_plan_is_checked_other_requests_are_answered() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    zeros: list[JsonValue] = [0] * 1_000
    steps = [tool_step(f"s{number}", "find", {"topic": [zeros]}) for number in range(45)]
    async with warden(Ledger()) as w, anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        with pytest.raises(InvalidPlan):
            await w.execute_plan(plan(*steps))
        tasks.cancel_scope.cancel()
    # On the loop there would be none; a thread hands over every few milliseconds, more or less by version.
    assert turns > 5
