"""What an open page does by itself in a real Chromium: news appear and are said, and notifications are shown.

A headless Chromium draws no notification: tests ask what it would draw, and send the event of a click.
"""

import re
from typing import TYPE_CHECKING

import anyio
import pytest

import planwarden
from tests.kit import Decision, requirement, tool_step
from tests.server.inbox.test_browser import BrowserTester, open_browser
from tests.support.browser import DRIVES_CHROMIUM
from tests.support.scene import CLEAN_UP, LETTER, PAY

if TYPE_CHECKING:
    from playwright.async_api import Locator, Route

pytestmark = DRIVES_CHROMIUM


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


@requirement("inbox:screen-reader", "inbox:live", "inbox:keyboard")
async def test_a_plan_that_goes_on_is_said_and_leaves_the_focus_where_it_was() -> None:
    from playwright.async_api import expect

    async with open_browser() as d:
        asked = await d.found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        await d.log_in(target=f"/inbox/executions/{await d.found.find_execution(asked)}")
        news, graph = await _mark_news(d), d.page.get_by_role("group", name="Graph of the plan")
        await graph.focus()
        await d.found.answer(asked, Decision(approved=True))
        await expect(news).to_have_text("The plan is completed. 2 of 2 steps")
        assert await news.evaluate("(region) => region.isTheSame")
        await expect(graph).to_be_focused()
        await expect(graph.get_by_role("img")).to_have_accessible_name("2 steps: 2 done")


async def _mark_news(d: BrowserTester) -> "Locator":
    """The region in which news are said, marked, so that another one in its place has no mark."""
    news = d.page.locator("#news")
    assert await news.get_attribute("role") == "status"
    await news.evaluate("(region) => { region.isTheSame = true; }")
    return news


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


async def _allow(d: BrowserTester) -> None:
    origin = d.found.url.removesuffix("/inbox")
    await d.page.context.grant_permissions(["notifications"], origin=origin)


async def _choose(d: BrowserTester) -> None:
    await d.page.click("text=Notify me in this browser")


async def _says(d: BrowserTester, text: str) -> None:
    await d.page.wait_for_selector(f"[data-notifying-says]:has-text('{text}')")


@requirement("notification:page", "notification:discreet")
async def test_a_page_that_is_open_elsewhere_notifies_of_a_question_and_a_click_opens_it() -> None:
    async with open_browser(scripts=[LOOK_AWAY, RECORD]) as d:
        await _allow(d)
        await d.log_in()
        stop = d.page.get_by_text("Stop in this browser")
        assert not await stop.is_visible()
        await _choose(d)
        await _says(d, "notified while this page is open")
        assert await stop.is_visible()
        asked = await d.found.run_to_question(LETTER)
        assert await d.page.evaluate(WAIT_SHOWN) == [
            {
                "title": "Decision needed: send_mail",
                "body": "planwarden asks; risk dangerous; needs human; decide in the inbox or at the terminal. "
                f"Question {asked}",
                "tag": asked,
            }
        ]
        await d.page.evaluate(CLICK)
        await d.page.wait_for_url(f"**/inbox/suspensions/{asked}")


@requirement("notification:page")
async def test_nobody_is_notified_who_did_not_choose_it_stopped_it_or_looks_at_the_page() -> None:
    async with open_browser(scripts=[RECORD]) as d:
        await _allow(d)
        await d.log_in()
        listed = d.page.locator("#waiting li.question")

        async def ask(number: int) -> None:
            await d.found.run_to_question(LETTER)
            await listed.nth(number - 1).wait_for()
            assert await d.page.evaluate(SHOWN) == []

        await d.page.evaluate(LOOK_AWAY)
        await ask(1)
        await _choose(d)
        await _says(d, "notified while this page is open")
        await d.page.evaluate(LOOK_BACK)
        await ask(2)
        await d.page.evaluate(LOOK_AWAY)
        await d.page.click("text=Stop in this browser")
        await ask(3)


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
async def test_a_browser_that_cannot_notify_says_what_to_do(script: str, said: str) -> None:
    async with open_browser(scripts=[script]) as d:
        await d.log_in()
        if script == "null":
            await _choose(d)
        await _says(d, said)
