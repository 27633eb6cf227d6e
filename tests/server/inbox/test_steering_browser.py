"""Allowing a step, keeping a plan and running it with other inputs in a real Chromium: by keyboard, on a phone."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.server.inbox.saved.list_page import SAVED_PATH
from tests.requirements import requirement
from tests.server.inbox.test_accessibility import ANN, LOOKS
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.axe import find_violations, read_axe
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.wardens import plan, tool_step

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
    """spec: console; with script and without"""
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
        await d.page.get_by_role("button", name="End", exact=True).click()
        assert (await d.found.warden.run_plan("clean")).status == "suspended"


@requirement("inbox:keep", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_a_person_keeps_a_plan_and_arrives_at_the_form_that_starts_it(home: Path, script: bool) -> None:
    """spec: console, Keep; with script and without"""
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
    """spec: keyboard all the way; Enter in a field starts nothing"""
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
    """spec: keyboard all the way; nothing starts before what it does was shown"""
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


@requirement("inbox:accessible", "inbox:phone", "inbox:seen-first")
@pytest.mark.parametrize("look", LOOKS)
async def test_the_pages_that_steer_are_accessible_and_fit(home: Path, look: str) -> None:
    """spec: axe-core has no finding on any page, light, dark, phone"""
    program, options = read_axe(), dict[str, Any](LOOKS[look])
    async with open_browser(home=home, **options) as d:
        loop, single, done = await _run(d, "remind"), await _run(d, "clean"), await _run(d, "remind")
        await _answer(d, done, approved=False)
        letter = await d.found.warden.execute_plan(
            plan(tool_step("find", "crm_find", {"older_than_days": 400})),
            goal="Find what is older than 400 days",
            wait_seconds=60,
        )
        await d.log_in()
        findings: list[str] = []

        async def look_at_it(where: str) -> None:
            findings.extend(f"{where} {found}" for found in await find_violations(d.page, program))
            wide = await d.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, where

        asked = f"/suspensions/{single.suspensions[0].suspension_id}"
        for path in (
            f"/suspensions/{loop.suspensions[0].suspension_id}/allow-step",
            asked,
            f"{asked}/allow-step",
            f"/executions/{done.execution_id}",
            f"/executions/{done.execution_id}/inputs",
            f"/executions/{letter.execution_id}/keep",
        ):
            await d.page.goto(f"{d.found.url}{path}")
            await look_at_it(path)
        await d.page.get_by_label("Name").fill("clean")
        await d.page.get_by_role("button", name="Keep").click()
        await d.page.wait_for_selector("[role=alert]")
        await look_at_it("a name that is taken")
        await d.page.goto(f"{d.found.url}/executions/{done.execution_id}/inputs")
        await d.page.get_by_label("days").fill("0")
        await d.page.get_by_role("button", name="Run again").click()
        await d.page.wait_for_selector("[role=alert]")
        await look_at_it("faults of inputs")
        await d.page.get_by_label("days").fill("60")
        await d.page.get_by_label("Run", exact=True).select_option("find")
        await d.page.get_by_role("button", name="Run again").click()
        await d.page.get_by_role("link", name="side by side").click()
        await d.page.wait_for_selector("#differs")
        await look_at_it("side by side")
        await d.page.goto(f"{d.found.url}/executions/{letter.execution_id}/plan")
        await look_at_it("a plan to change")
        await d.page.get_by_label("The plan").fill("{}")
        await d.page.get_by_role("button", name="Show what changes").click()
        await d.page.wait_for_selector("[role=alert]")
        await look_at_it("faults of a plan")
        changed = plan(
            tool_step("find", "crm_find", {"older_than_days": 9}),
            tool_step("wide", "crm_find", {"older_than_days": 1}, description="x" * 200),
        )
        await d.page.get_by_label("The plan").fill(json.dumps(changed))
        await d.page.get_by_label("Run", exact=True).select_option("find")
        await d.page.get_by_role("button", name="Show what changes").click()
        await d.page.wait_for_selector(".fates")
        await look_at_it("what a changed plan does")
        await d.page.goto(f"{d.found.url}{asked}/allow-step")
        approve = d.page.get_by_role("button", name="Approve and allow")
        await d.page.get_by_label("At most so many calls a day").fill("many")
        await approve.scroll_into_view_if_needed()
        await approve.click()
        await d.page.wait_for_selector("[role=alert]")
        await look_at_it("faults of terms")
        await d.page.get_by_label("At most so many calls a day").fill("3")
        await approve.scroll_into_view_if_needed()
        await approve.click()
        await d.page.wait_for_selector("text=Allowed besides")
        await look_at_it("allowed")
        await d.page.goto(f"{d.found.url}/grants")
        await look_at_it("/grants")
        # What the browser itself writes of an answer 422.
        d.complaints[:] = [said for said in d.complaints if "422" not in said]
        assert findings == []
