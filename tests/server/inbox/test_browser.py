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

import planwarden
from tests.kit import requirement, tool_step
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, HOSTILE, LETTER, PAY, InboxScene, launch_browser, open_scene

if TYPE_CHECKING:
    from playwright.async_api import ConsoleMessage, Error, Page, Route

pytestmark = DRIVES_CHROMIUM


@dataclass
class BrowserTester:
    """A person's browser in front of an inbox."""

    found: InboxScene
    page: "Page"
    complaints: list[str] = field(default_factory=list[str])
    """What stood in the console."""

    async def log_in(self, name: str = "ann", target: str = "/inbox") -> None:
        await self.page.goto(await self.found.make_link(name, target))
        await self.page.click("main button[type=submit]")
        await self.page.wait_for_selector("nav")

    async def focused(self) -> str:
        """What has the focus, as text of its tag, class and words."""
        return await self.page.evaluate(
            "(() => { const e = document.activeElement; return `${e.tagName} ${e.className} ${e.innerText}`.trim() })()"
        )


@asynccontextmanager
async def open_browser(
    tools: Sequence[object] = (), home: Path = Path("/nonexistent"), **options: Any
) -> AsyncGenerator[BrowserTester]:
    """A fresh browser; leaving checks that nothing was refused, missing or broken in it."""
    from playwright.async_api import expect

    assert CHROMIUM is not None
    # On a busy machine a browser takes its time; nothing here depends on it.
    expect.set_options(timeout=60_000)
    with anyio.fail_after(300):
        async with open_scene(tools, home=home) as found, launch_browser(CHROMIUM) as browser:
            context = await browser.new_context(**options)
            made = BrowserTester(found, await context.new_page())

            def logged(message: "ConsoleMessage") -> None:
                made.complaints.append(message.text)

            def failed(error: "Error") -> None:
                made.complaints.append(str(error))

            made.page.on("console", logged)
            made.page.on("pageerror", failed)
            made.page.set_default_timeout(60_000)
            yield made
            assert made.complaints == []


@requirement("inbox:no-script")
async def test_everything_works_without_script() -> None:
    async with open_browser(java_script_enabled=False) as d:
        first, second = await d.found.run_to_question(LETTER), await d.found.run_to_question(PAY)
        await d.log_in()
        await d.page.click(f"#q-{first} a.open")
        await d.page.click("text=Edit the arguments first")
        await d.page.get_by_label("copies").fill("2")
        await d.page.click("button.approve")
        await d.page.click("text=Approve with these changes")
        assert "approved by ann" in await d.page.inner_text(".standing")
        await d.page.goto(d.found.url)
        await d.page.check(f"input[value='{second}']")
        await d.page.click("text=Review selected")
        await d.page.click("button.reject")
        assert "1 of 1 rejected" in await d.page.inner_text("h1")
        await d.page.click("text=Log out")
        assert "Log in" in await d.page.inner_text("h1")
        assert d.found.ledger.lines == ["send_mail team@acme.example Your account will be closed normal 2"]


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
async def test_the_focus_reaches_every_control_in_reading_order_and_reject_before_approve() -> None:
    async with open_browser() as d:
        asked = await d.found.run_to_question(PAY)
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        seen: list[str] = []
        for _ in range(16):
            await d.page.keyboard.press("Tab")
            seen.append(await d.focused())
        order = ["Skip", "planwarden", "Waiting", "Log out", "the plan", "Edit the arguments", "Reject", "Approve"]
        places = [next(i for i, text in enumerate(seen) if word in text) for word in order]
        assert places == sorted(places), seen
        assert not any(text.startswith("BUTTON unseen") for text in seen)


@requirement("inbox:live")
async def test_a_new_question_appears_by_itself_and_ticks_stay() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        first = await d.found.run_to_question(LETTER)
        await d.log_in()
        await d.page.check(f"input[value='{first}']")
        second = await d.found.run_to_question(PAY)
        await d.page.wait_for_selector(f"#q-{second}")
        # Not by a function in the page, which its own policy does not let run.
        await expect(d.page).to_have_title(re.compile(r"^\(2\)"))
        assert await d.page.is_checked(f"input[value='{first}']")


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
        for path in ("", f"/suspensions/{asked}", f"/suspensions/{second}", f"/review?id={asked}&id={second}"):
            await d.page.goto(f"{d.found.url}{path}")
            assert await d.page.locator("main img[src=x]").count() == 0
            assert "7006652" not in await d.page.inner_text("main")
        await d.page.goto(f"{d.found.url}/suspensions/{second}")
        assert await d.page.get_by_role("button", name="Approve").count() == 1
        await d.page.click("text=Edit the arguments first")
        assert await d.page.get_by_label("subject").input_value() == mail["subject"]
        await d.page.click("button.approve")
        await d.page.wait_for_selector("text=approved by ann")
        assert d.found.ledger.lines == [f"send_mail {script} {mail['subject']} normal 1"]


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
        await d.page.click("text=Edit the arguments first")
        await d.page.get_by_label("reason", exact=True).fill("/אבג/7/דהו.pdf")
        await d.page.click("button.approve")
        await d.page.wait_for_selector("text=You changed 1 argument")
        assert await d.page.evaluate(MOVED) == []
        await d.page.goto(d.found.url)
        assert "/123.pdf" in await d.page.inner_text("main") and await d.page.evaluate(MOVED) == []


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
        await d.page.evaluate("window.scrollTo(0, 0)")
        for _ in range(12):
            await d.page.mouse.wheel(0, 300)
            await d.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await expect(approve).not_to_have_attribute("aria-disabled", "true")
        await expect(note).to_have_text("All of it was on the screen: the button is active.")
        await approve.click()
        await d.page.wait_for_selector("text=approved by ann")
        assert d.found.ledger.lines == ["send_mail team@acme.example Your account will be closed normal 1"]


@requirement("inbox:seen-first")
@pytest.mark.parametrize("place", ["review", "rows", "grant"])
async def test_on_a_phone_every_page_that_approves_waits_also_when_the_phone_is_turned(place: str) -> None:
    from playwright.async_api import expect

    async with open_browser(**PHONE) as d:
        first, second = await d.found.run_to_question(LETTER), await d.found.run_to_question(*CLEAN_UP)
        rows = tool_step("all", "crm_delete", {"ids": [{"$from": "item"}]}, forEach=[*range(9)])
        paths = {
            "review": f"/review?id={first}&id={second}",
            "rows": f"/suspensions/{await d.found.run_to_question(rows)}",
            "grant": f"/suspensions/{first}/grant",
        }
        await d.log_in()
        await d.page.goto(f"{d.found.url}{paths[place]}")
        approve, turned = d.page.locator("button.approve"), {"width": 844, "height": 390}
        await expect(approve).to_have_attribute("aria-disabled", "true")
        await d.page.set_viewport_size({"width": turned["width"], "height": turned["height"]})
        await expect(approve).to_have_attribute("aria-disabled", "true")
        await approve.dispatch_event("click")
        assert d.found.ledger.lines == []
        await d.page.evaluate("window.scrollTo(0, 0)")
        for _ in range(60):
            await d.page.mouse.wheel(0, 250)
            await d.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        await expect(approve).not_to_have_attribute("aria-disabled", "true")


@requirement("inbox:seen-first")
@pytest.mark.parametrize("path", ["/suspensions/{0}", "/review?id={0}", "/suspensions/{0}/grant"])
async def test_without_script_the_button_stands_below_all_that_it_covers(path: str) -> None:
    async with open_browser(**PHONE, java_script_enabled=False) as d:
        asked = await d.found.run_to_question(LETTER)
        await d.log_in()
        await d.page.goto(f"{d.found.url}{path.format(asked)}")
        covered = await d.page.locator("[data-covered]").bounding_box()
        button = await d.page.locator("button.approve").bounding_box()
        assert covered is not None and button is not None
        assert button["y"] >= covered["y"] + covered["height"] > PHONE["viewport"]["height"]


@requirement("inbox:outcome")
async def test_the_page_keeps_saying_what_became_of_an_approval() -> None:
    release = anyio.Event()

    @planwarden.tool
    async def transfer(to: str) -> str:
        """Send money."""
        await release.wait()
        raise RuntimeError("the bank said no")

    async with open_browser([transfer]) as d:
        asked = await d.found.run_to_question(
            tool_step("pay", "transfer", {"to": "Dune"}), tool_step("look", "crm_find", {"older_than_days": 1})
        )
        await d.log_in(target=f"/inbox/suspensions/{asked}")
        await d.page.click("button.approve")
        await d.page.wait_for_selector(".remark.busy >> text=Approved. Step 1 of 2 is running.")
        release.set()
        await d.page.wait_for_selector(".remark.bad >> text=Approved. Step 1 of 2 failed")
        assert "the bank said no" in await d.page.inner_text(".standing")
        assert await d.page.locator(".remark.good").count() == 0
        await d.page.goto(f"{d.found.url}/history")
        assert await d.page.locator(".dot.bad").count() == 1 and await d.page.locator(".dot.good").count() == 0
