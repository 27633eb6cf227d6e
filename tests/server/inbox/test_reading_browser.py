"""The page of plans in a real Chromium: live, by keyboard, without script, on a phone, and when nothing answers."""

import re
from typing import TYPE_CHECKING

import pytest

from tests.requirements import requirement
from tests.server.inbox.test_browser import FAINT, MOVED, UNLABELLED, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, LETTER, PAY
from tests.support.wardens import plan, tool_step

if TYPE_CHECKING:
    from playwright.async_api import Route

pytestmark = DRIVES_CHROMIUM


@requirement("inbox:plans", "inbox:live")
async def test_a_run_appears_by_itself_and_the_focus_stays_where_it_was() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        asked = await d.found.run_to_question(LETTER, goal="Close idle accounts")
        await d.log_in(target="/inbox/plans")
        answer = d.page.locator(f"a[href$='/suspensions/{asked}']")
        await answer.focus()
        await d.found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        await d.page.wait_for_selector("text=Clean the CRM")
        await expect(answer).to_be_focused()
        await expect(d.page.locator(".plans .open")).to_have_text(["Clean the CRM", "Close idle accounts"])
        await answer.click()
        await d.page.click("button.reject")
        await d.page.click("text=Open the plan")
        await d.page.click(".crumb a")
        await expect(d.page.locator(".plans .status >> nth=0")).to_have_text("rejected")


@requirement("inbox:plans", "inbox:keyboard")
async def test_keys_move_through_the_runs_and_open_one() -> None:
    async with open_browser() as d:
        for number in range(3):
            await d.found.run_to_question(PAY, goal=f"Pay invoice {number}")
        await d.log_in(target="/inbox/plans")
        for key in "jjjk":
            await d.page.keyboard.press(key)
        assert "Pay invoice 1" in await d.focused()
        await d.page.keyboard.press("Enter")
        await d.page.wait_for_selector("h1:has-text('Pay invoice 1')")
        await d.page.go_back()
        # Letters in the field of the search are letters.
        await d.page.get_by_label("Search").focus()
        await d.page.keyboard.type("jk invoice 2")
        assert await d.page.get_by_label("Search").input_value() == "jk invoice 2"


@requirement("inbox:plans", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_a_person_searches_filters_and_shows_all_again(script: bool) -> None:
    from playwright.async_api import expect

    async with open_browser(java_script_enabled=script) as d:
        await d.found.run_to_question(PAY, goal="Pay the invoice")
        find = tool_step("find", "crm_find", {"older_than_days": 3})
        await d.found.warden.execute_plan(plan(find), goal="Look for the invoice", wait_seconds=60)
        await d.log_in(target="/inbox/plans")
        rows = d.page.locator(".plans .open")
        await expect(rows).to_have_count(2)
        await d.page.get_by_label("Search").fill("INVOICE")
        await d.page.get_by_label("State").select_option("completed")
        await d.page.get_by_label("Tool").select_option("crm_find")
        await d.page.keyboard.press("Enter")
        await d.page.get_by_role("button", name="Show").click()
        await expect(rows).to_have_text(["Look for the invoice"])
        await expect(d.page.get_by_label("Search")).to_have_value("INVOICE")
        await expect(d.page.get_by_label("State")).to_have_value("completed")
        await d.page.get_by_role("link", name="Show all runs").click()
        await expect(rows).to_have_count(2)


@requirement("inbox:unreachable")
async def test_a_page_that_cannot_be_refreshed_says_from_when_it_is_until_it_can() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        await d.log_in(target="/inbox/plans")
        banner = d.page.locator("#unreachable")
        await expect(banner).to_be_hidden()
        await expect(banner).to_have_attribute("role", "status")

        async def lose(route: "Route") -> None:
            await route.abort("connectionrefused")

        async def fail(route: "Route") -> None:
            await route.fulfill(status=503, body="no store")

        for lost, words in ((lose, "cannot be reached"), (fail, "cannot answer now")):
            await d.page.route("**/plans/list**", lost)
            from_when = rf"^planwarden {words}\. This page is from \d\d:\d\d; run planwarden inbox\.$"
            await expect(banner).to_have_text(re.compile(from_when))
            await expect(banner).to_be_visible()
            await d.page.unroute("**/plans/list**")
            await expect(banner).to_be_hidden()
        # What the browser and htmx write of the two.
        assert all(re.search("ERR_CONNECTION_REFUSED|503|^htmx:", text) for text in d.complaints), d.complaints
        d.complaints.clear()


@requirement("inbox:plans", "inbox:phone", "inbox:hostile", "shown:right-to-left")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_list_fits_a_phone_whatever_the_goals_are(scheme: str) -> None:
    size = {"width": 360, "height": 740}
    script = "<img src=x onerror=alert(1)>{{7*7}}"
    async with open_browser(viewport=size, is_mobile=True, has_touch=True, color_scheme=scheme) as d:
        for goal in (script, "x" * 10_000, "clean /אבג/12 \u202enow", "\u200b"):
            await d.found.run_to_question(LETTER, goal=goal)
        await d.log_in(target="/inbox/plans")
        for path in ("/plans", "/plans?q=clean&state=waiting&tool=send_mail"):
            await d.page.goto(f"{d.found.url}{path}")
            assert await d.page.evaluate("document.documentElement.scrollWidth") <= 360, path
            assert await d.page.evaluate(UNLABELLED) == [] and await d.page.evaluate(FAINT) == [], path
            assert await d.page.evaluate(MOVED) == [], path
            shown = await d.page.inner_text("main")
            assert "alert(1)>49" not in shown and "x" * 200 not in shown and "/12" in shown
            assert await d.page.locator("main img[src=x]").count() == 0
