"""Saved plans in a real Chromium: started with and without script, by keyboard, in the reader's zone."""

import re
from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM

pytestmark = DRIVES_CHROMIUM

CLEAN = """
title: Clean the CRM
description: Finds records that nobody has touched, and deletes them once a person agrees.
inputs:
  properties:
    older_than_days: {type: integer, default: 400, minimum: 30, description: Only records older than so many days}
    reason: {type: string, description: Why they go}
    notify: {type: boolean}
    regions: {type: array, items: {type: string}}
  required: [reason]
todoList:
  - id: find
    description: Find stale records
    toolCalls: [{toolName: crm_find, arguments: {older_than_days: {$from: inputs, pointer: /older_than_days}}}]
  - id: delete
    description: Delete them
    toolCalls:
      - toolName: crm_delete
        arguments: {ids: {$from: find, pointer: /ids}, reason: {$from: inputs, pointer: /reason}}
"""
LOOK = "todoList: [{id: a, description: Look, toolCalls: [{toolName: crm_find, arguments: {older_than_days: 3}}]}]"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a plan that asks, one that does not, and a file that cannot be used."""
    (tmp_path / "plans").mkdir()
    for name, text in {"clean": CLEAN, "look": LOOK, "broken": "todoList: 3"}.items():
        (tmp_path / "plans" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


async def wait_for_text(d: BrowserTester, where: str, text: str) -> None:
    """Waits until an element found there contains the text."""
    await d.page.locator(where, has_text=text).first.wait_for()


async def count_runs(d: BrowserTester) -> int:
    return len(await d.found.warden.service.engine.store.executions(None, 100))


@requirement("saved:once")
@pytest.mark.parametrize("script", [True, False])
async def test_a_double_click_starts_one_run_and_leads_to_it(home: Path, script: bool) -> None:
    async with open_browser(home=home, java_script_enabled=script) as d:
        await d.log_in(target="/inbox/saved/look")
        await d.page.dblclick("button.primary", no_wait_after=True)
        await d.page.wait_for_url("**/inbox/executions/*")
        await wait_for_text(d, "h1", "look")
        assert await count_runs(d) == 1


@requirement("inbox:keyboard")
async def test_enter_in_a_field_forecasts_and_the_focus_reaches_start_last(home: Path) -> None:
    async with open_browser(home=home) as d:
        await d.log_in(target="/inbox/saved/clean")
        await d.page.get_by_label("reason").fill("stale")
        await d.page.get_by_label("reason").press("Enter")
        await wait_for_text(d, ".forecast", "With the inputs of the form")
        assert await count_runs(d) == 0
        await d.page.get_by_label("regions").focus()
        reached: list[str] = []
        for _ in range(3):
            await d.page.keyboard.press("Tab")
            reached.append((await d.focused()).split()[-1])
        assert reached == ["Forecast", "Rehearse", "Start"]
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_url("**/inbox/executions/*")


@requirement("saved:schedules")
async def test_a_schedule_is_made_in_the_zone_of_the_reader_and_shown_in_it(home: Path) -> None:
    async with open_browser(home=home, timezone_id="America/New_York") as d:
        await d.log_in(target="/inbox/saved/look/schedule")
        assert await d.page.get_by_label("Time zone").input_value() == "America/New_York"
        await d.page.get_by_label("Times").fill("0 9 * * 1")
        await d.page.get_by_label("Times").press("Enter")
        await wait_for_text(d, "form [role=status] li", "Mon")
        await d.page.get_by_label("Time zone").fill("Europe/Berlin")
        await d.page.get_by_role("button", name="Add the schedule").click()
        await d.page.wait_for_url("**/inbox/schedules/**")
        shown = d.page.locator("time.local").first
        assert re.search(r":00 E[SD]T$", await shown.inner_text())
        assert "09:00 CE" in (await shown.get_attribute("title") or "")
        await d.page.get_by_role("button", name="Pause").click()
        await wait_for_text(d, ".remark", "Paused")
        await d.page.get_by_role("button", name="Resume").click()
        await wait_for_text(d, ".remark", "Resumed")
        await d.page.get_by_role("button", name="Run now").click()
        await wait_for_text(d, ".remark", "Started")
        await wait_for_text(d, ".runs", "completed")
        await d.page.get_by_role("button", name="Remove").click()
        await wait_for_text(d, ".remark", "removed")
