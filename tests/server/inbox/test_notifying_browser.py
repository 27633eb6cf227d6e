"""Notifications in a real Chromium while the page is open.

A headless Chromium draws none: tests ask what it would draw, and send the event of a click.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from tests.requirements import requirement
from tests.support.axe import find_violations, read_axe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM
from tests.support.scene import LETTER, InboxScene, launch_browser, open_scene

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Page, Route

pytestmark = DRIVES_CHROMIUM

LOOK_AWAY = "document.hasFocus = () => false; null"
LOOK_BACK = "document.hasFocus = () => true; null"
RECORD = """
    // A browser takes a notification away by itself after a while, so each is kept here.
    window.shown = [];
    if (window.Notification) window.Notification = class extends Notification {
        constructor(title, options) {
            super(title, options);
            window.shown.push(this);
        }
    };
"""
SHOWN = "window.shown.map(({ title, body, tag }) => ({ title, body, tag }))"
WAIT_SHOWN = f"""async () => {{
    while (!window.shown.length) await new Promise((resolve) => setTimeout(resolve, 50));
    return {SHOWN};
}}"""
CLICK = "window.shown[0].dispatchEvent(new Event('click'))"


@dataclass
class Reader:
    """A person in front of the page of what waits."""

    scene: InboxScene
    context: "BrowserContext"
    page: "Page"
    complaints: list[str] = field(default_factory=list[str])

    async def log_in(self) -> None:
        await self.page.goto(await self.scene.make_link())
        await self.page.click("main button[type=submit]")
        await self.page.wait_for_selector("nav")

    async def allow(self) -> None:
        await self.context.grant_permissions(["notifications"], origin=self.scene.url.removesuffix("/inbox"))

    async def choose(self) -> None:
        await self.page.click("text=Notify me in this browser")

    async def says(self, text: str) -> None:
        await self.page.wait_for_selector(f"[data-notifying-says]:has-text('{text}')")

    async def wait_for_notification(self) -> list[dict[str, str]]:
        """Return what the browser shows, as soon as it shows something."""
        return await self.page.evaluate(WAIT_SHOWN)


@asynccontextmanager
async def read_inbox(home: Path, *scripts: str, **options: Any) -> AsyncGenerator[Reader]:
    """A fresh browser; leaving checks that its console has no complaint."""
    assert CHROMIUM is not None
    with anyio.fail_after(180):
        async with open_scene(home=home) as scene, launch_browser(CHROMIUM) as browser:
            context = await browser.new_context(**options)
            for script in (*scripts, RECORD):
                await context.add_init_script(script)
            reader = Reader(scene, context, await context.new_page())

            def logged(message: "ConsoleMessage") -> None:
                reader.complaints.append(message.text)

            reader.page.on("console", logged)
            reader.page.on("pageerror", lambda error: reader.complaints.append(str(error)))
            reader.page.set_default_timeout(60_000)
            yield reader
            assert reader.complaints == []


@requirement("notification:page", "notification:discreet")
async def test_a_page_that_is_open_elsewhere_notifies_of_a_question_and_a_click_opens_it(tmp_path: Path) -> None:
    async with read_inbox(tmp_path, LOOK_AWAY) as reader:
        await reader.allow()
        await reader.log_in()
        stop = reader.page.get_by_text("Stop in this browser")
        assert not await stop.is_visible()
        await reader.choose()
        await reader.says("notified while this page is open")
        assert await stop.is_visible()
        asked = await reader.scene.run_to_question(LETTER)
        assert await reader.wait_for_notification() == [
            {
                "title": "Decision needed: send_mail",
                "body": "planwarden asks; risk dangerous; needs human; decide in the inbox or at the terminal. "
                f"Question {asked}",
                "tag": asked,
            }
        ]
        await reader.page.evaluate(CLICK)
        await reader.page.wait_for_url(f"**/inbox/suspensions/{asked}")


@requirement("notification:page")
async def test_nobody_is_notified_who_did_not_choose_it_stopped_it_or_looks_at_the_page(tmp_path: Path) -> None:
    async with read_inbox(tmp_path) as reader:
        await reader.allow()
        await reader.log_in()
        listed = reader.page.locator("#waiting li.question")

        async def ask(number: int) -> None:
            await reader.scene.run_to_question(LETTER)
            await listed.nth(number - 1).wait_for()
            assert await reader.page.evaluate(SHOWN) == []

        await reader.page.evaluate(LOOK_AWAY)
        await ask(1)
        await reader.choose()
        await reader.says("notified while this page is open")
        await reader.page.evaluate(LOOK_BACK)
        await ask(2)
        await reader.page.evaluate(LOOK_AWAY)
        await reader.page.click("text=Stop in this browser")
        await ask(3)


@requirement("notification:page")
async def test_many_questions_at_once_are_one_notification(tmp_path: Path) -> None:
    async with read_inbox(tmp_path, LOOK_AWAY) as reader:
        await reader.allow()
        await reader.log_in()
        await reader.choose()
        await reader.says("notified while this page is open")

        async def answer_no_news(route: "Route") -> None:
            await route.fulfill(status=204)

        await reader.page.route("**/inbox?*seen=*", answer_no_news)
        for _ in range(5):
            await reader.scene.run_to_question(LETTER)
        await reader.page.unroute("**/inbox?*seen=*")
        [shown] = await reader.wait_for_notification()
        assert shown == {"title": "planwarden waits for you: 5 questions", "body": "", "tag": "waiting"}


@requirement("notification:page")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("null", "This browser blocks notifications of this page. Allow them for this site"),
        (
            "Object.defineProperty(window, 'isSecureContext', { value: false })",
            "only for pages over https or on this machine",
        ),
        ("delete window.Notification", "This browser has no notifications of pages"),
    ],
)
async def test_a_browser_that_cannot_notify_says_what_to_do(tmp_path: Path, script: str, said: str) -> None:
    async with read_inbox(tmp_path, script) as reader:
        await reader.log_in()
        if script == "null":
            await reader.choose()
        await reader.says(said)


@requirement("notification:page", "inbox:accessible")
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_the_section_that_is_blocked_or_chosen(tmp_path: Path, color_scheme: str) -> None:
    phone = {"width": 390, "height": 844}
    async with read_inbox(tmp_path, color_scheme=color_scheme, viewport=phone) as reader:
        program = read_axe()
        await reader.log_in()
        await reader.choose()
        await reader.says("This browser blocks")
        assert await find_violations(reader.page, program) == []
        await reader.allow()
        await reader.page.reload()
        await reader.choose()
        await reader.says("notified while this page is open")
        assert await find_violations(reader.page, program) == []
