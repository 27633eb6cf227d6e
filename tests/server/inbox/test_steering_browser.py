"""Allowing a step, keeping a plan and running it with other inputs in a real Chromium: by keyboard."""

import re
from pathlib import Path

import pytest

import planwarden
from planwarden.agent.approval.answers import Decision
from tests.requirements import requirement
from tests.server.inbox.test_accessibility import ANN
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM

pytestmark = DRIVES_CHROMIUM

REMIND_EACH = """
title: Remind overdue customers
inputs:
  properties:
    days: {type: integer, default: 30, minimum: 1, description: Overdue for so many days}
    subject: {type: string, default: A friendly reminder}
    reviewer: {type: string, description: Who reads the copies}
todoList:
  - id: find
    description: Find customers whose invoices are overdue
    toolCalls: [{toolName: crm_find, arguments: {older_than_days: {$from: inputs, pointer: /days}}}]
  - id: remind
    description: Write to each of them
    forEach: {$from: find, pointer: /names}
    toolCalls:
      - toolName: send_mail
        arguments:
          to: {$from: item}
          subject: {$from: inputs, pointer: /subject}
          body: {$text: "Dear {name}, your invoice is overdue.", with: {name: {$from: item}}}
"""
CLEAN = """
todoList:
  - id: find
    description: Find stale records
    toolCalls: [{toolName: crm_find, arguments: {older_than_days: 400}}]
  - id: delete
    description: Delete them
    toolCalls: [{toolName: crm_delete, arguments: {ids: {$from: find, pointer: /ids}, reason: stale for 400 days}}]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "remind.yaml").write_text(REMIND_EACH)
    (tmp_path / "plans" / "clean.yaml").write_text(CLEAN)
    return tmp_path


async def run_saved(d: BrowserTester, name: str) -> planwarden.Execution:
    run = await d.found.warden.run_plan(name)
    assert run.suspensions, run
    return run


async def _answer(d: BrowserTester, run: planwarden.Execution, *, approved: bool) -> None:
    await d.found.warden.service.answer(
        run.thread_id,
        run.suspensions[0].suspension_id,
        Decision(approved=approved),
        ANN,
        wait_seconds=60,
        principal=None,
    )


@requirement("console:other-inputs", "inbox:keyboard", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_keys_alone_change_an_input_and_run_again_from_a_step(home: Path, script: bool) -> None:
    from playwright.async_api import expect

    async with open_browser(home=home, java_script_enabled=script) as d:
        run = await run_saved(d, "remind")
        await _answer(d, run, approved=False)
        await d.page.goto(await d.found.make_link(target=f"/inbox/executions/{run.execution_id}"))
        await d.page.click("main button[type=submit]")
        await d.page.get_by_role("link", name="Run again with other inputs").focus()
        await d.page.keyboard.press("Enter")
        await d.page.get_by_label("days").fill("60")
        await d.page.get_by_label("days").press("Enter")
        await expect(d.page.get_by_role("alert")).to_have_text("These inputs fit the plan; nothing was started.")
        await expect(d.page.get_by_label("days")).to_have_value("60")
        await d.page.get_by_label("Run", exact=True).select_option("find")
        for _ in range(2):
            await d.page.keyboard.press("Tab")
        await d.page.get_by_role("button", name="Run again").focus()
        await d.page.keyboard.press("Enter")
        await d.page.get_by_role("link", name="side by side").click()
        await expect(d.page.get_by_role("heading", name="What differs")).to_be_visible()
        await expect(d.page.locator(".changes").first).to_contain_text("30")
        await expect(d.page.locator(".changes").first).to_contain_text("60")


@requirement("console:changed-plan", "inbox:keyboard", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_keys_alone_change_the_plan_and_start_what_was_shown(home: Path, script: bool) -> None:
    from playwright.async_api import expect

    async with open_browser(home=home, java_script_enabled=script) as d:
        run = await run_saved(d, "clean")
        await _answer(d, run, approved=False)
        await d.page.goto(await d.found.make_link(target=f"/inbox/executions/{run.execution_id}"))
        await d.page.click("main button[type=submit]")
        await d.page.get_by_role("link", name="Fork with a changed plan").focus()
        await d.page.keyboard.press("Enter")
        text = d.page.get_by_label("The plan")
        await text.fill((await text.input_value()).replace("stale for 400 days", "stale"))
        await text.press("Tab")
        await expect(d.page.get_by_label("Run", exact=True)).to_be_focused()
        await d.page.get_by_role("button", name="Show what changes").press("Enter")
        await expect(d.page.locator(".fates")).to_contain_text("done, not repeated")
        await expect(d.page.locator(".changes")).to_contain_text("stale for 400 days")
        await d.page.get_by_role("button", name="Keep editing").press("Enter")
        await expect(d.page.get_by_label("The plan")).to_have_value(re.compile('"reason": "stale"\n'))
        await d.page.get_by_role("button", name="Show what changes").press("Enter")
        await d.page.get_by_role("button", name="Start").press("Enter")
        await expect(d.page.locator("#timeline > .remark")).to_contain_text("The plan waits for a person.")
        await expect(d.page.get_by_role("link", name="side by side")).to_be_visible()
