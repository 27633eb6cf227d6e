"""The inbox in a real Chromium: what people do in it, with and without script, by keyboard, on a phone, and no
complaint of its policy in the console.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import JsonValue

from tests.kit import requirement, save_plan, tool_step
from tests.server.inbox.test_accessibility import LOOK
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM, launch_browser, log_in
from tests.support.scene import CLEAN_UP, HOSTILE, LETTER, PAY, InboxScene, open_scene

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = DRIVES_CHROMIUM


@dataclass
class BrowserTester:
    found: InboxScene
    page: "Page"
    complaints: list[str] = field(default_factory=list[str])
    """What stood in the console."""

    async def log_in(self, name: str = "ann", target: str = "/inbox") -> None:
        await log_in(self.page, await self.found.make_link(name, target))

    async def focused(self) -> str:
        """What has the focus, as text of its tag, class and words."""
        return await self.page.evaluate(
            "(() => { const e = document.activeElement; return `${e.tagName} ${e.className} ${e.innerText}`.trim() })()"
        )


@asynccontextmanager
async def open_browser(
    tools: Sequence[object] = (), home: Path = Path("/nonexistent"), *, scripts: Sequence[str] = (), **options: Any
) -> AsyncGenerator[BrowserTester]:
    """A fresh browser that begins each page with the scripts; leaving checks that nothing was refused or broken."""
    from playwright.async_api import expect

    assert CHROMIUM is not None
    # On a busy machine a browser takes its time; nothing here depends on it.
    expect.set_options(timeout=60_000)
    with anyio.fail_after(300):
        async with open_scene(tools, home=home) as found, launch_browser(CHROMIUM) as browser:
            context = await browser.new_context(**options)
            for script in scripts:
                await context.add_init_script(script)
            made = BrowserTester(found, await context.new_page())
            made.page.on("console", lambda message: made.complaints.append(message.text))
            made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
            made.page.set_default_timeout(60_000)
            yield made
            assert made.complaints == []


@requirement("inbox:hostile")
async def test_hostile_text_is_text() -> None:
    script = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    async with open_browser() as d:
        asked = await d.found.run_to_question(HOSTILE, goal=script)
        mail: dict[str, JsonValue] = {
            "to": script,
            "subject": "</textarea><button>Approve</button>",
            "body": f"{script}\n{{{{1234*5678}}}}",
        }
        second = await d.found.run_to_question(tool_step("m", "send_mail", mail))
        await d.log_in()
        review = f"/review?id={asked}&id={second}"
        for path in ("", "/plans", f"/suspensions/{asked}", f"/suspensions/{second}", review):
            await d.page.goto(f"{d.found.url}{path}")
            assert await d.page.locator("main img[src=x]").count() == 0
            assert "7006652" not in await d.page.inner_text("main")
        await d.page.goto(f"{d.found.url}/suspensions/{second}")
        assert await d.page.get_by_role("button", name="Approve").count() == 1
        await d.page.click("text=Edit the arguments first")
        assert await d.page.get_by_label("subject").input_value() == mail["subject"]


async def test_a_click_on_a_link_in_another_site_keeps_the_session() -> None:
    async with open_browser() as d:
        asked = await d.found.run_to_question(PAY)
        await d.log_in()
        elsewhere = d.found.url.replace("127.0.0.1", "localhost").rpartition("/inbox")[0]
        link = f"<a href='{d.found.url}/suspensions/{asked}'>x</a>"

        async def chat(route: "Route") -> None:
            await route.fulfill(body=link, content_type="text/html")

        await d.page.route(f"{elsewhere}/chat", chat)
        await d.page.goto(f"{elsewhere}/chat")
        await d.page.click("a")
        await d.page.wait_for_selector("button.approve")


MOVED = """() => {
  const moved = [];
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    let before = null;
    for (let at = 0; at < node.data.length; at += 1) {
      if (/[\\u0590-\\u08ff\\u2066-\\u2069\\s]/.test(node.data[at])) continue;
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + 1);
      const box = range.getBoundingClientRect();
      if (!box.width || box.width <= 1) continue;
      if (before && Math.abs(before.top - box.top) < 4 && box.left < before.left) moved.push(node.data);
      before = box;
    }
  }
  return [...new Set(moved)];
}"""
"""The texts of which a character stands left of one that comes before it."""


@requirement("shown:right-to-left")
async def test_right_to_left_words_move_no_character_beside_them() -> None:
    async with open_browser() as d:
        step = tool_step(
            "delete",
            "crm_delete",
            {"ids": [4021], "reason": "/invoices/אבג/123.pdf"},
            description='Delete "אבג" (12) and /ערך/7/عربي/٣',
        )
        asked = await d.found.run_to_question(step, goal="clean /אבג/12")
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        shown = await d.page.inner_text("main")
        assert "/invoices/" in shown and "/123.pdf" in shown
        assert await d.page.evaluate(MOVED) == []
        await d.page.goto(d.found.url)
        assert "/123.pdf" in await d.page.inner_text("main") and await d.page.evaluate(MOVED) == []


SCROLL = """async () => {
  for (let at = 0; at <= document.body.scrollHeight; at += 200) {
    window.scrollTo(0, at);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
}"""
"""Scrolls through the page, as slowly as it is drawn."""
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 560}, "is_mobile": True, "has_touch": True}


@requirement("inbox:seen-first")
async def test_on_a_phone_approve_waits_until_all_that_it_covers_was_on_the_screen() -> None:
    from playwright.async_api import expect

    async with open_browser(**PHONE) as d:
        asked = await d.found.run_to_question(LETTER)
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        approve, note = d.page.locator("button.approve"), d.page.locator("#until-seen")
        await expect(approve).to_have_attribute("aria-disabled", "true")
        await expect(approve).to_have_attribute("aria-describedby", "until-seen")
        await expect(note).to_have_attribute("role", "status")
        await expect(note).to_have_text("Scroll through all that this approves; then the button becomes active.")
        # Jumping over the facts does not count, nor does a press: it goes back to where the person stopped reading.
        await approve.scroll_into_view_if_needed()
        await approve.dispatch_event("click")
        await expect(approve).to_have_attribute("aria-disabled", "true")
        assert d.found.ledger.lines == []
        await d.page.evaluate(SCROLL)
        await expect(approve).not_to_have_attribute("aria-disabled", "true")
        await expect(note).to_have_text("All of it was on the screen: the button is active.")
        await approve.click()
        await d.page.wait_for_selector("text=approved by ann")
        assert d.found.ledger.lines == ["send_mail team@acme.example Your account will be closed normal 1"]


@requirement("inbox:seen-first")
async def test_on_a_phone_every_page_that_approves_waits_also_when_the_phone_is_turned() -> None:
    from playwright.async_api import expect

    async with open_browser(**PHONE) as d:
        first, second = await d.found.run_to_question(LETTER), await d.found.run_to_question(*CLEAN_UP)
        rows = tool_step("all", "crm_delete", {"ids": [{"$from": "item"}]}, forEach=[*range(9)])
        asked = await d.found.run_to_question(rows)
        await d.log_in()
        for path in (f"/review?id={first}&id={second}", f"/suspensions/{asked}", f"/suspensions/{first}/grant"):
            await d.page.set_viewport_size(PHONE["viewport"])
            await d.page.goto(f"{d.found.url}{path}")
            approve = d.page.locator("button.approve")
            await expect(approve).to_have_attribute("aria-disabled", "true")
            await d.page.set_viewport_size({"width": 844, "height": 390})
            await expect(approve).to_have_attribute("aria-disabled", "true")
            await approve.dispatch_event("click")
            assert d.found.ledger.lines == []
            await d.page.evaluate(SCROLL)
            await expect(approve).not_to_have_attribute("aria-disabled", "true")


@requirement("inbox:seen-first")
async def test_on_a_phone_rows_on_pages_that_were_not_opened_hold_the_button_back() -> None:
    from playwright.async_api import expect

    async with open_browser(**PHONE) as d:
        rows = tool_step("all", "crm_delete", {"ids": [{"$from": "item"}]}, forEach=[*range(60)])
        asked = await d.found.run_to_question(rows)
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        approve, note = d.page.locator("button.approve"), d.page.locator("#until-seen")
        await expect(note).to_have_text("Open the other pages of rows first; then the button becomes active.")
        await d.page.locator("button[name=page][value='2']").first.click()
        await d.page.wait_for_selector("text=Page 2 of 2")
        await expect(note).to_have_text("Scroll through all that this approves; then the button becomes active.")
        await d.page.evaluate(SCROLL)
        await expect(approve).not_to_have_attribute("aria-disabled", "true")
        assert d.found.ledger.lines == []


@requirement("inbox:seen-first")
async def test_without_script_the_button_stands_below_all_that_it_covers() -> None:
    async with open_browser(**PHONE, java_script_enabled=False) as d:
        asked = await d.found.run_to_question(LETTER)
        await d.log_in()
        for path in (f"/suspensions/{asked}", f"/review?id={asked}", f"/suspensions/{asked}/grant"):
            await d.page.goto(f"{d.found.url}{path}")
            covered = await d.page.locator("[data-covered]").bounding_box()
            button = await d.page.locator("button.approve").bounding_box()
            assert covered is not None and button is not None
            assert button["y"] >= covered["y"] + covered["height"] > PHONE["viewport"]["height"]


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
        own = f"/executions/{await d.found.find_execution(asked)}"
        for path in ("", "/plans", "/history", f"/suspensions/{decided}", own):
            await d.page.goto(f"{d.found.url}{path}")
            await d.page.wait_for_selector("main time", state="attached")
            found: list[list[str]] = await d.page.evaluate(TIMES)
            for text, title in found:
                said = f"{text} {title}"
                assert SAYS_ZONE.search(title) and "UTC" not in text if script else "UTC" in said, (path, text, title)
            count += len(found)
        assert count > 12
        if script:
            # A fortnight passes in the browser, and what is long ago is a date.
            await d.page.clock.set_fixed_time(d.found.warden.service.store.clock.now() * 1_000 + 14 * 86_400_000)
            await d.page.goto(d.found.url)
            shown = d.page.locator("main time").first
            text = await shown.inner_text()
            assert SAYS_ZONE.search(text) and re.search(r"\d{4}", text)


@requirement("saved:schedules")
async def test_a_schedule_is_made_in_the_zone_of_the_reader_and_shown_in_it(tmp_path: Path) -> None:
    save_plan(tmp_path, "look", LOOK)
    async with open_browser(home=tmp_path, timezone_id="America/New_York") as d:
        await d.log_in(target="/inbox/saved/look/schedule")
        assert await d.page.get_by_label("Time zone").input_value() == "America/New_York"
        await d.page.get_by_label("Times").fill("0 9 * * 1")
        await d.page.get_by_label("Times").press("Enter")
        await d.page.locator("form [role=status] li", has_text="Mon").first.wait_for()
        await d.page.get_by_label("Time zone").fill("Europe/Berlin")
        await d.page.get_by_role("button", name="Add the schedule").click()
        await d.page.wait_for_url("**/inbox/schedules/**")
        shown = d.page.locator("time.local").first
        assert re.search(r":00 E[SD]T$", await shown.inner_text())
        assert "09:00 CE" in (await shown.get_attribute("title") or "")
