"""The pages say where an execution comes from: its saved plan, the one that it goes on from, and those that went on."""

from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.settings.configuration import Settings
from tests.requirements import requirement
from tests.server.inbox.support import inbox, visit
from tests.support.wardens import plan, tool_step

pytestmark = pytest.mark.anyio

TIDY = """
title: Tidy up
todoList:
  - id: erase
    description: Erase it
    toolCalls: [{toolName: erase, arguments: {ids: [7]}}]
"""


@requirement("inbox:lineage")
async def test_a_question_of_a_saved_plan_names_it_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "tidy.yaml").write_text(TIDY)
    async with visit(settings=Settings(home=tmp_path)) as (found, browser):
        run = await found.warden.run_plan("tidy")
        assert run.saved_plan is not None and run.status == "suspended"
        version = run.saved_plan.version
        page = await browser.open(f"/inbox/suspensions/{run.suspensions[0].suspension_id}")
        assert "Step 1 of 1 of Tidy up" in page.words and f"tidy, version {version[:12]}" in page.words
        shown = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert f"tidy, version {version[:12]}" in shown.words
        await browser.submit(page.form("/decision"), press="approve")
        history = await browser.open("/inbox/history")
        assert f"Saved plan: tidy, version {version[:12]}" in history.words and "Step 1 of 1" in history.words


@requirement("inbox:lineage")
async def test_a_retry_and_the_execution_that_it_goes_on_from_lead_to_each_other() -> None:
    mended: list[bool] = []

    @planwarden.tool(name="mend", risk="read", effect="effect")
    async def mend() -> str:
        """Works once it is mended."""
        if not mended:
            raise planwarden.ToolError("it is broken")
        return "mended"

    steps: list[dict[str, JsonValue]] = [
        tool_step("a", "note", {"text": "a"}),
        tool_step("mend", "mend", dependencies=["a"]),
        tool_step("wipe", "erase", {"ids": [1]}, dependencies=["mend"]),
    ]
    async with visit(tools=[mend]) as (found, browser):
        first = await found.warden.execute_plan(plan(*steps), goal="Tidy up")
        mended.append(True)
        second = await found.warden.retry(first.thread_id)
        page = await browser.open(f"/inbox/suspensions/{second.suspensions[0].suspension_id}")
        assert "Step 3 of 3 of Tidy up" in page.words
        assert f"execution {first.execution_id}; took over from there: a" in page.words
        assert f'href="/inbox/executions/{first.execution_id}"' in page.text
        earlier = await browser.open(f"/inbox/executions/{first.execution_id}")
        assert "Went on as" in earlier.words and f'href="/inbox/executions/{second.execution_id}"' in earlier.text
        later = await browser.open(f"/inbox/executions/{second.execution_id}")
        assert "took over from there: a" in later.words and f"execution {first.execution_id}" in later.words


@requirement("inbox:lineage")
async def test_a_rehearsal_says_that_it_is_one() -> None:
    async with inbox() as found:
        run = await found.warden.execute_plan(
            plan(tool_step("wipe", "erase", {"ids": [1]})), options={"rehearse": True}
        )
        assert run.is_rehearsal is True
        browser = await found.log_in()
        shown = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert "Rehearsal" in shown.words and "nothing is done" in shown.words
