"""Allowing a step, keeping a plan and running it with other inputs in a real Chromium: by keyboard."""

import re
from pathlib import Path

import pytest

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.server.inbox.saved.list_page import SAVED_PATH
from tests.requirements import requirement
from tests.server.inbox.test_accessibility import ANN
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM

pytestmark = DRIVES_CHROMIUM

REMIND = """
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
    (tmp_path / "plans" / "remind.yaml").write_text(REMIND)
    (tmp_path / "plans" / "clean.yaml").write_text(CLEAN)
    return tmp_path


async def _run(d: BrowserTester, name: str) -> planwarden.Execution:
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


@requirement("inbox:step-grants", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_a_person_allows_a_step_for_a_week_and_later_runs_do_not_ask(home: Path, script: bool) -> None:
    from playwright.async_api import expect

    async with open_browser(home=home, java_script_enabled=script) as d:
        run = await _run(d, "clean")
        await d.page.goto(await d.found.make_link(target=f"/inbox/suspensions/{run.suspensions[0].suspension_id}"))
        await d.page.click("main button[type=submit]")
        await d.page.get_by_role("link", name="Approve, and allow this step").click()
        await d.page.get_by_label("At most so many calls a day").fill("2")
        until = d.page.get_by_label("Until the end of")
        await until.fill(await until.get_attribute("min") or "")
        await d.page.get_by_role("button", name="Approve and allow").click()
        await expect(d.page.locator(".standing")).to_contain_text("Allowed besides: crm_delete in step delete")
        await expect(d.page.locator(".standing")).to_contain_text("at most 2 calls a day (UTC), until")
        assert len(d.found.ledger.lines) == 1
        again = await d.found.warden.run_plan("clean", wait_seconds=60)
        assert again.status == "completed" and len(d.found.ledger.lines) == 2
        await d.page.get_by_role("link", name="Allowed", exact=True).first.click()
        await expect(d.page.locator(".grants")).to_contain_text("1 of 2 left today")
        await d.page.get_by_role("button", name="End permission 1, crm_delete").click()
        assert (await d.found.warden.run_plan("clean")).status == "suspended"


@requirement("inbox:keep", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_a_person_keeps_a_plan_and_arrives_at_the_form_that_starts_it(home: Path, script: bool) -> None:
    from playwright.async_api import expect

    async with open_browser(home=home, java_script_enabled=script) as d:
        run = await _run(d, "clean")
        await _answer(d, run, approved=True)
        await d.page.goto(await d.found.make_link(target=f"/inbox/executions/{run.execution_id}"))
        await d.page.click("main button[type=submit]")
        await d.page.get_by_role("link", name="Keep as a saved plan").click()
        await d.page.get_by_label("Name").fill("tidy")
        # Enter shows the file, and writes nothing.
        await d.page.get_by_label("Name").press("Enter")
        await expect(d.page.get_by_role("heading", name="The file")).to_be_visible()
        assert not (home / "plans" / "tidy.yaml").exists()
        await d.page.get_by_role("button", name="Keep").click()
        await d.page.wait_for_url(f"**{SAVED_PATH}/tidy")
        await expect(d.page.get_by_role("button", name="Start")).to_be_enabled()
        assert (home / "plans" / "tidy.yaml").exists()


@requirement("console:other-inputs", "inbox:keyboard", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_keys_alone_change_an_input_and_run_again_from_a_step(home: Path, script: bool) -> None:
    from playwright.async_api import expect

    async with open_browser(home=home, java_script_enabled=script) as d:
        run = await _run(d, "remind")
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
        run = await _run(d, "clean")
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
