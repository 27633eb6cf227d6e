"""The way of a person without a mouse, in a real Chromium: by Tab and Enter through all that a decision needs."""

import pytest
from pydantic import JsonValue

from tests.kit import plan, requirement, tool_step
from tests.server.inbox.test_browser import PHONE, BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, PAY, InboxScene

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


NAMES = ("Acme Ltd", "Borealis", "Cobalt & Sons", "Dune")


async def _ask(found: InboxScene, count: int) -> str:
    customers: list[JsonValue] = [
        {"to": f"office{n}@acme.example", "name": f"{NAMES[n % 4]} {n}", "due": 100 + n} for n in range(count)
    ]
    step = tool_step(
        "remind",
        "send_mail",
        {
            "to": {"$from": "item", "pointer": "/to"},
            "subject": {"$text": "Reminder for {name}", "with": {"name": {"$from": "item", "pointer": "/name"}}},
            "body": {"$text": "Please pay {due} EUR.", "with": {"due": {"$from": "item", "pointer": "/due"}}},
        },
        description="Remind every customer whose invoice is overdue",
        forEach=customers,
        maxItems=max(count, 1),
    )
    return await found.run_to_question(step, goal="Remind overdue customers")


async def _open(d: BrowserTester, count: int) -> None:
    asked = await _ask(d.found, count)
    await d.log_in(target=f"/inbox/suspensions/{asked}")


@requirement("inbox:rows")
async def test_a_row_is_left_out_and_another_edited_by_keyboard_alone() -> None:
    async with open_browser() as d:
        await _open(d, 3)
        await d.page.get_by_label("row 1", exact=True).focus()
        await d.page.keyboard.press("Space")
        await d.page.locator("#row-1 summary").focus()
        await d.page.keyboard.press("Enter")
        await d.page.keyboard.press("Tab")
        await d.page.keyboard.press("Tab")
        assert (await d.focused()).startswith("INPUT")
        await d.page.keyboard.press("ControlOrMeta+a")
        await d.page.keyboard.type("Last reminder")
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_selector("text=2 of 3 rows run as follows")
        assert '"Last reminder"' in await d.page.inner_text(".becomes") and d.found.ledger.lines == []
        await d.page.keyboard.press("a")
        assert "approve" in await d.focused()
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_selector("text=approved by ann")
    assert d.found.ledger.lines == [
        "send_mail office1@acme.example Last reminder normal 1",
        "send_mail office2@acme.example Reminder for Cobalt & Sons 2 normal 1",
    ]


@requirement("inbox:seen-first")
async def test_on_a_phone_rows_on_pages_that_were_not_opened_hold_the_button_back() -> None:
    from playwright.async_api import expect

    async with open_browser(**PHONE) as d:
        await _open(d, 60)
        approve, note = d.page.locator("button.approve"), d.page.locator("#until-seen")
        await expect(note).to_have_text("Open the other pages of rows first; then the button becomes active.")
        await d.page.locator("button[name=page][value='2']").first.click()
        await d.page.wait_for_selector("text=Page 2 of 2")
        await expect(note).to_have_text("Scroll through all that this approves; then the button becomes active.")
        for _ in range(40):
            await d.page.mouse.wheel(0, 300)
            await d.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await expect(approve).not_to_have_attribute("aria-disabled", "true")
        width = await d.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width == 0 and d.found.ledger.lines == []
