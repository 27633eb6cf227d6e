"""The way of a person without a mouse, in a real Chromium: by Tab and Enter through all that a decision needs."""

import pytest

from tests.requirements import requirement
from tests.server.inbox.test_accessibility import ask_about_rows
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, PAY
from tests.support.wardens import plan, tool_step

pytestmark = DRIVES_CHROMIUM

FOCUSED = """() => {
  const at = document.activeElement;
  const name = at.getAttribute("aria-label") || [...(at.labels ?? [])].map((label) => label.textContent).join(" ");
  return (name || at.textContent).replace(/\\s+/g, " ").trim();
}"""
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
        row = await d.found.warden.service.engine.store.find_suspension(asked)
        assert row is not None and d.page.url.endswith(row.execution_id)
        await reach(d, "✓ delete done")
        await d.page.keyboard.press("Enter")
        await d.page.get_by_text("Proven by the log: crm_delete ran.").wait_for()


@requirement("inbox:keyboard", "inbox:rows")
async def test_tab_space_and_enter_choose_among_the_rows_of_several_pages() -> None:
    async with open_browser() as d:
        await ask_about_rows(d.found, 52)
        await d.log_in()
        await press(d, "Run send_mail 52 times?", "Run send_mail 52 times?")
        await reach(d, "row 1")
        await d.page.keyboard.press("Space")
        await reach(d, "Later rows")
        await d.page.keyboard.press("Enter")
        await d.page.get_by_label("row 51", exact=True).wait_for()
        await reach(d, "row 51")
        await d.page.keyboard.press("Space")
        await reach(d, "Approve the ticked rows")
        assert d.found.ledger.lines == []
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_selector("text=approved by ann")
        left_out = {f"send_mail office{row}@acme.example Reminder normal 1" for row in (0, 50)}
        assert len(d.found.ledger.lines) == 50 and not left_out & {*d.found.ledger.lines}


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
        # The browser scrolls in its own time.
        await d.page.wait_for_selector("#graph")
        last = graph.get_by_text("step-49")
        for _ in range(200):
            seen, place = await last.bounding_box(), await graph.bounding_box()
            assert seen is not None and place is not None
            if seen["y"] + seen["height"] <= place["y"] + place["height"] + 1:
                break
            await d.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        else:
            pytest.fail("the last step is not in sight")
