"""The way of a person without a mouse or without eyes: keys, the focus, and what a screen reader is given of pages."""

from pathlib import Path
from typing import Any

from tests.kit import Decision, by, plan, requirement, save_plan, tool_step
from tests.server.inbox.test_accessibility import CLEAN
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, LETTER, PAY

pytestmark = DRIVES_CHROMIUM

FOCUSED = """() => {
  const at = document.activeElement;
  const name = at.getAttribute("aria-label") || [...(at.labels ?? [])].map((label) => label.textContent).join(" ");
  return (name || at.textContent).replace(/\\s+/g, " ").trim();
}"""
IN_SIGHT = """(element) => new Promise((done) => new IntersectionObserver(
  (seen) => seen.some((entry) => entry.intersectionRatio === 1) && done(), { threshold: 1 }).observe(element))"""
"""Waits until all of the element is on the screen, because a browser scrolls in its own time."""
MAX_TABS = 400


async def reach(d: BrowserTester, name: str, key: str = "Tab") -> None:
    """Presses the key until what is called so has the focus, and can be seen there."""
    passed: list[str] = []
    for _ in range(MAX_TABS):
        await d.page.keyboard.press(key)
        passed.append(await d.page.evaluate(FOCUSED))
        if passed[-1].startswith(name):
            assert await d.page.evaluate("document.activeElement.matches(':focus-visible')"), name
            return
    raise AssertionError(f"{name} is not among {list(dict.fromkeys(passed))}")


async def press(d: BrowserTester, name: str, then: str) -> None:
    """Goes to what is called so, presses Enter, and waits for the heading of the next page."""
    await reach(d, name)
    await d.page.keyboard.press("Enter")
    await d.page.get_by_role("heading", name=then, level=1).wait_for()


@requirement("inbox:keyboard", "console:plan")
async def test_tab_and_enter_lead_from_the_list_to_the_plan_its_graph_and_a_decision() -> None:
    async with open_browser() as d:
        await d.found.run_to_question(PAY, goal="Pay the invoice")
        asked = await d.found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        await d.page.goto(await d.found.make_link())
        # The browser gives the focus in its own time, after the page was loaded.
        await d.page.locator("button:focus", has_text="Open the inbox").wait_for()
        await d.page.keyboard.press("Enter")
        await d.page.get_by_role("heading", name="Waiting").wait_for()
        await press(d, "crm_delete", "Run crm_delete?")
        await press(d, "the plan, step delete", "Clean the CRM")
        await reach(d, "Graph of the plan")
        await reach(d, "Answer its question", "Shift+Tab")
        await d.page.keyboard.press("Enter")
        await d.page.get_by_role("heading", name="Run crm_delete?").wait_for()
        await reach(d, "Approve")
        assert d.found.ledger.lines == []
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_selector("text=approved by ann")
        assert await d.page.title() == "Approved: Run crm_delete? · planwarden"
        await press(d, "Open the plan", "Clean the CRM")
        assert d.page.url.endswith(await d.found.find_execution(asked))
        await reach(d, "✓ delete done")
        await d.page.keyboard.press("Enter")
        await d.page.get_by_text("Proven by the log: crm_delete ran.").wait_for()


@requirement("inbox:keyboard", "graph:readable")
async def test_the_graph_of_a_long_plan_scrolls_by_keys_within_its_own_place() -> None:
    steps = [tool_step(f"step-{number}", "crm_find", {"older_than_days": number}) for number in range(1, 50)]
    async with open_browser() as d:
        run = await d.found.warden.execute_plan(plan(*steps), goal="Look 49 times", wait_seconds=60)
        await d.log_in(target=f"/inbox/executions/{run.execution_id}")
        graph = d.page.get_by_role("group", name="Graph of the plan")
        box = await graph.bounding_box()
        assert box is not None and box["height"] < 600
        await reach(d, "Graph of the plan")
        await d.page.keyboard.press("End")
        last = await graph.get_by_text("step-49").element_handle()
        assert last is not None
        await d.page.evaluate(IN_SIGHT, last)


@requirement("inbox:keyboard")
async def test_the_keyboard_moves_and_never_approves_by_accident() -> None:
    async with open_browser() as d:
        first, second = await d.found.run_to_question(LETTER), await d.found.run_to_question(PAY)
        await d.log_in()
        for key in "jjk":
            await d.page.keyboard.press(key)
        assert "send_mail" in await d.focused()
        await d.page.keyboard.press("x")
        assert await d.page.is_checked(f"input[value='{first}']")
        await d.page.keyboard.press("j")
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_url(f"**/{second}")
        assert (await d.focused()).startswith("BODY")
        await d.page.keyboard.press("Enter")
        await d.page.keyboard.press("r")
        assert "reject" in await d.focused()
        await d.page.keyboard.press("a")
        assert "approve" in await d.focused() and d.found.ledger.lines == []
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_selector("text=approved by ann")
        assert d.found.ledger.lines == ["pay_invoice 2026-1187 1840.5"]


@requirement("inbox:keyboard")
async def test_enter_in_a_field_shows_the_difference_and_decides_nothing() -> None:
    async with open_browser() as d:
        asked = await d.found.run_to_question(LETTER)
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        await d.page.click("text=Edit the arguments first")
        subject = d.page.get_by_label("subject")
        await subject.fill("aaa rrr jjj")
        await subject.press("Enter")
        await d.page.wait_for_selector("text=You changed 1 argument")
        reason = d.page.get_by_label("Reason")
        await reason.press("Enter")
        assert await reason.input_value() == "\n" and d.found.ledger.lines == []
        await d.page.click("button:not(.unseen):has-text('Keep editing')")
        await d.page.wait_for_selector("details.edit[open]")
        assert await d.page.get_by_label("subject").input_value() == "aaa rrr jjj" and d.found.ledger.lines == []


@requirement("inbox:keyboard")
async def test_enter_in_a_field_forecasts_and_the_focus_reaches_start_last(tmp_path: Path) -> None:
    save_plan(tmp_path, "clean", CLEAN)
    async with open_browser(home=tmp_path) as d:
        await d.log_in(target="/inbox/saved/clean")
        await d.page.get_by_label("reason").fill("stale")
        await d.page.get_by_label("reason").press("Enter")
        await d.page.locator(".forecast", has_text="For the inputs in the form").wait_for()
        assert len(await d.found.warden.service.store.executions(None, 100)) == 0
        await d.page.get_by_label("regions").focus()
        reached: list[str] = []
        for _ in range(3):
            await d.page.keyboard.press("Tab")
            reached.append((await d.focused()).split()[-1])
        assert reached == ["Forecast", "Rehearse", "Start"]
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_url("**/inbox/executions/*")


WAITING = """
- banner:
  - navigation "Inbox"
- main:
  - status
  - heading "Waiting for a decision" [level=1]
  - button "Review selected"
  - list:
    - listitem:
      - checkbox "Select pay_invoice, question 1"
      - paragraph:
        - link "pay_invoice"
- contentinfo
"""
QUESTION = """
- main:
  - article:
    - heading "Run pay_invoice?" [level=1]
    - group "planwarden found"
    - group "The call, as it will run":
      - table "Arguments of pay_invoice"
    - group "The agent says (unverified)"
  - form "Your decision":
    - textbox "Reason optional; the model sees it"
    - paragraph:
      - button "Reject"
      - button "Approve"
"""
PLAN = """
- main:
  - heading "Clean the CRM" [level=1]
  - paragraph: The plan waits for a person. 1 of 2 steps
  - region "Graph":
    - group "Graph of the plan":
      - 'img "2 steps: 1 done, 1 waits for a person"'
  - region "What you can do":
    - button "Cancel"
  - region "Steps":
    - group: find done use crm_find
  - region "What happened"
"""


@requirement("inbox:screen-reader", "voices:apart")
async def test_headings_voices_states_and_buttons_are_named_in_the_order_of_the_page() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        pay = await d.found.run_to_question({**PAY, "description": "Pay what is due"}, goal="Pay the invoice")
        edited: dict[str, Any] = {"invoice": "x", "amount": 1, "currency": "EUR", "account": "other"}
        await d.found.answer(pay, Decision(approved=True, modified_args=edited), by("local", "claimed", "mcp"))
        delete = await d.found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        await d.log_in()
        execution_id = await d.found.find_execution(delete)
        for path, tree in (("", WAITING), (f"/suspensions/{pay}", QUESTION), (f"/executions/{execution_id}", PLAN)):
            await d.page.goto(f"{d.found.url}{path}")
            await expect(d.page.locator("body")).to_match_aria_snapshot(tree)
