"""Times on the pages: in the reader's zone where scripts run, and otherwise in UTC, which they say."""

import re

import pytest

from tests.requirements import requirement
from tests.server.inbox.test_browser import open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, LETTER, PAY

pytestmark = DRIVES_CHROMIUM

TIMES = """() => [...document.querySelectorAll("main time")].map((time) => [time.textContent.trim(), time.title])"""
SAYS_ZONE = re.compile("E[SD]T$|GMT-[45]$")


@requirement("inbox:times", "inbox:no-script")
@pytest.mark.parametrize("script", [True, False])
async def test_every_time_is_in_the_readers_zone_or_says_that_it_is_utc(script: bool) -> None:
    async with open_browser(timezone_id="America/New_York", java_script_enabled=script) as d:
        asked = await d.found.run_to_question(*CLEAN_UP)
        await d.found.run_to_question(PAY)
        decided = await d.found.run_to_question(LETTER)
        row = await d.found.warden.service.engine.store.find_suspension(asked)
        assert row is not None
        await d.page.goto(await d.found.make_link(target=f"/inbox/suspensions/{decided}"))
        await d.page.click("main button[type=submit]")
        await d.page.click("button.reject")
        await d.page.wait_for_selector("text=rejected by ann")
        count = 0
        for path in ("", "/plans", "/history", f"/suspensions/{decided}", f"/executions/{row.execution_id}"):
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
