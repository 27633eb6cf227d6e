"""What a person reads in a real Chromium: runs as they come, on a phone, unreachable, and times in their zone."""

import re
from typing import TYPE_CHECKING

import pytest

from tests.requirements import requirement
from tests.server.inbox.test_browser import MOVED, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, LETTER, PAY

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
            await d.page.route("**/plans?*seen=*", lost)
            from_when = rf"^planwarden {words}\. This page is from \d\d:\d\d; run planwarden inbox\.$"
            await expect(banner).to_have_text(re.compile(from_when))
            await expect(banner).to_be_visible()
            await d.page.unroute("**/plans?*seen=*")
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

            assert await d.page.evaluate(MOVED) == [], path
            shown = await d.page.inner_text("main")
            assert "alert(1)>49" not in shown and "x" * 200 not in shown and "/12" in shown
            assert await d.page.locator("main img[src=x]").count() == 0


TIMES = """() => [...document.querySelectorAll("main time")].map((time) => [time.textContent.trim(), time.title])"""

SAYS_ZONE = re.compile("E[SD]T$|GMT-[45]$")


@requirement("inbox:times", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_every_time_is_in_the_readers_zone_or_says_that_it_is_utc(script: bool) -> None:
    async with open_browser(timezone_id="America/New_York", java_script_enabled=script) as d:
        asked = await d.found.run_to_question(*CLEAN_UP)
        await d.found.run_to_question(PAY)
        decided = await d.found.run_to_question(LETTER)
        await d.log_in(target=f"/inbox/suspensions/{decided}")
        await d.page.click("button.reject")
        await d.page.wait_for_selector("text=rejected by ann")
        count = 0
        for path in (
            "",
            "/plans",
            "/history",
            f"/suspensions/{decided}",
            f"/executions/{await d.found.find_execution(asked)}",
        ):
            await d.page.goto(f"{d.found.url}{path}")
            await d.page.wait_for_selector("main time", state="attached")
            found: list[list[str]] = await d.page.evaluate(TIMES)
            for text, title in found:
                said = f"{text} {title}"
                assert SAYS_ZONE.search(title) and "UTC" not in text if script else "UTC" in said, (path, text, title)
            count += len(found)
        assert count > 12


@requirement("inbox:times")
async def test_what_is_long_ago_is_a_date_in_the_readers_zone() -> None:
    async with open_browser(timezone_id="America/New_York") as d:
        await d.found.run_to_question(PAY)
        await d.log_in()
        # A fortnight passes in the browser.
        await d.page.clock.set_fixed_time(d.found.warden.service.engine.store.clock.now() * 1_000 + 14 * 86_400_000)
        await d.page.goto(d.found.url)
        shown = d.page.locator("main time").first
        text = await shown.inner_text()
        assert SAYS_ZONE.search(text) and re.search(r"\d{4}", text)
