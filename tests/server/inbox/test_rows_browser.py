"""The rows of one question in a real Chromium: by keyboard and on a phone."""

from pydantic import JsonValue

import planwarden
from tests.requirements import requirement
from tests.server.inbox.test_browser import PHONE, BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import InboxScene
from tests.support.wardens import tool_step

pytestmark = DRIVES_CHROMIUM

NAMES = ("Acme Ltd", "Borealis", "Cobalt & Sons", "Dune")


NAME = "the_long_name_that_somebody_gave_to_the_only_argument_of_this_tool"


@planwarden.tool
async def write_down(the_long_name_that_somebody_gave_to_the_only_argument_of_this_tool: str) -> str:
    """Write a text down."""
    return the_long_name_that_somebody_gave_to_the_only_argument_of_this_tool


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


@requirement("inbox:layout")
async def test_no_page_of_a_question_is_wider_than_a_phone_whatever_is_asked() -> None:
    long = "x" * 500
    step = tool_step("mail", "write_down", {NAME: long})
    async with open_browser([write_down], **PHONE) as d:
        asked = await d.found.run_to_question(step, goal="Write")
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        for where in (f"/inbox/suspensions/{asked}/grant", f"/inbox/suspensions/{asked}", "/inbox"):
            await d.page.goto(f"{d.found.url.removesuffix('/inbox')}{where}")
            await d.page.wait_for_selector("main")
            width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await d.page.evaluate(width) == 0, where
