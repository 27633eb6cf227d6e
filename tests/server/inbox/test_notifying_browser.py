"""Notifications in a real Chromium: while the page is open, and by a message that a push service would bring.

A headless Chromium has no push service, so nothing here subscribes at one: `PushManager.subscribe` returns what a test
made, and messages are handed to the worker through the browser's own debugging protocol. It draws no notifications
either: tests ask what it would draw, and a click is an event in the worker.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import JsonValue

from planwarden.storage.ports.browsers import NotifiedBrowser, browsers_of
from tests.requirements import requirement
from tests.support.axe import find_violations, read_axe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM
from tests.support.push_service import BrowserDouble, encode
from tests.support.scene import LETTER, InboxScene, launch_browser, open_scene

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Page, Route

pytestmark = DRIVES_CHROMIUM

ENDPOINT = "https://push.example/send/1"
LOOK_AWAY = "document.hasFocus = () => false; null"
LOOK_BACK = "document.hasFocus = () => true; null"
NO_SERVICE = "PushManager.prototype.subscribe = async () => { throw new DOMException('', 'AbortError'); }"
SUBSCRIBED = """([endpoint, p256dh, auth]) => {
    const found = { endpoint, toJSON: () => ({ endpoint, keys: { p256dh, auth } }), unsubscribe: async () => {
        sessionStorage.removeItem("test.subscribed");
        return true;
    } };
    PushManager.prototype.subscribe = async function (options) {
        if (options.applicationServerKey.length !== 65 || !options.userVisibleOnly) throw new TypeError("options");
        sessionStorage.setItem("test.subscribed", "yes");
        return found;
    };
    PushManager.prototype.getSubscription = async () => sessionStorage.getItem("test.subscribed") ? found : null;
}"""
RECORD = """
    // A browser takes a notification away by itself after a while, so what it agreed to show is written down.
    const show = ServiceWorkerRegistration.prototype.showNotification;
    ServiceWorkerRegistration.prototype.showNotification = async function (title, options) {
        await show.call(this, title, options);
        (self.shown ??= []).push({ title, body: options.body, tag: options.tag });
    };
"""
SHOWN = "self.shown ?? []"
WAIT_SHOWN = """async () => {
    while (!self.shown) await new Promise((resolve) => setTimeout(resolve, 50));
    return self.shown;
}"""
CLICK = """async (tag) => {
    const opened = [];
    // Only a click of a person may open a window.
    self.clients.openWindow = async (path) => opened.push(path);
    const event = new Event("notificationclick");
    event.notification = { tag, close: () => {} };
    let done = null;
    event.waitUntil = (promise) => { done = promise; };
    self.dispatchEvent(event);
    await done;
    return opened;
}"""


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
        await self.page.wait_for_selector(f"[data-browser-says]:has-text('{text}')")

    async def wait_for_notification(self) -> list[dict[str, str]]:
        """What the browser shows, as soon as it shows something."""
        return await self.page.evaluate(WAIT_SHOWN)

    async def list_browsers(self) -> list[NotifiedBrowser]:
        store = browsers_of(self.scene.warden.service.engine.store)
        return list(await store.all(self.scene.warden.service.engine.store.clock.now()))

    async def deliver(self, message: dict[str, JsonValue]) -> None:
        """Hand a message to the worker, as the browser does when its push service brings one."""
        # Its messages are dictionaries of anything.
        protocol: Any = await self.context.new_cdp_session(self.page)
        found: list[str] = []
        arrived = anyio.Event()

        def remember(event: dict[str, Any]) -> None:
            found.extend(item["registrationId"] for item in event["registrations"] if not item["isDeleted"])
            if found:
                arrived.set()

        protocol.on("ServiceWorker.workerRegistrationUpdated", remember)
        await protocol.send("ServiceWorker.enable")
        await arrived.wait()
        origin = self.scene.url.removesuffix("/inbox")
        await protocol.send(
            "ServiceWorker.deliverPushMessage",
            {"origin": origin, "registrationId": found[0], "data": json.dumps(message)},
        )


@asynccontextmanager
async def read_inbox(home: Path, *scripts: str, **options: Any) -> AsyncGenerator[Reader]:
    """A fresh browser; leaving checks that its console has no complaint."""
    assert CHROMIUM is not None
    with anyio.fail_after(180):
        async with open_scene(home=home) as scene, launch_browser(CHROMIUM) as browser:
            context = await browser.new_context(**options)
            for script in (RECORD, *scripts):
                await context.add_init_script(script)
            reader = Reader(scene, context, await context.new_page())

            def logged(message: "ConsoleMessage") -> None:
                reader.complaints.append(message.text)

            reader.page.on("console", logged)
            reader.page.on("pageerror", lambda error: reader.complaints.append(str(error)))
            reader.page.set_default_timeout(60_000)
            yield reader
            assert reader.complaints == []


@requirement("push:page", "push:discreet")
async def test_a_page_that_is_open_elsewhere_says_what_is_asked_in_a_notification(tmp_path: Path) -> None:
    async with read_inbox(tmp_path, LOOK_AWAY, NO_SERVICE) as reader:
        await reader.allow()
        await reader.log_in()
        stop = reader.page.get_by_text("Stop in this browser")
        assert not await stop.is_visible()
        await reader.choose()
        await reader.says("notified while this page is open, but not otherwise")
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


@requirement("push:page")
async def test_nobody_is_notified_who_did_not_choose_it_stopped_it_or_looks_at_the_page(tmp_path: Path) -> None:
    async with read_inbox(tmp_path, NO_SERVICE) as reader:
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


@requirement("push:page")
async def test_many_questions_at_once_are_one_notification(tmp_path: Path) -> None:
    async with read_inbox(tmp_path, LOOK_AWAY, NO_SERVICE) as reader:
        await reader.allow()
        await reader.log_in()
        await reader.choose()
        await reader.says("notified while this page is open")

        async def answer_no_news(route: "Route") -> None:
            await route.fulfill(status=204)

        await reader.page.route("**/inbox/waiting?*", answer_no_news)
        for _ in range(5):
            await reader.scene.run_to_question(LETTER)
        await reader.page.unroute("**/inbox/waiting?*")
        [shown] = await reader.wait_for_notification()
        assert shown == {"title": "planwarden waits for you: 5 questions", "body": "", "tag": "waiting"}


@requirement("push:page", "push:discreet", "push:own")
async def test_a_push_message_is_shown_and_a_click_opens_the_question(tmp_path: Path) -> None:
    double = BrowserDouble()
    given = json.dumps([ENDPOINT, double.p256dh, encode(double.auth)])
    async with read_inbox(tmp_path, f"({SUBSCRIBED})({given})") as reader:
        await reader.allow()
        await reader.log_in()
        await reader.choose()
        await reader.page.wait_for_selector("text=Your browsers that are notified")
        [stored] = await reader.list_browsers()
        assert (stored.principal, stored.endpoint, stored.p256dh) == ("ann", ENDPOINT, double.p256dh)
        asked = await reader.scene.run_to_question(LETTER)
        [worker] = reader.context.service_workers
        await worker.evaluate(f"() => {{ {RECORD} }}")
        await reader.deliver({"title": "Decision needed: send_mail", "message": "risk dangerous", "question": asked})
        assert await worker.evaluate(WAIT_SHOWN) == [
            {"title": "Decision needed: send_mail", "body": "risk dangerous", "tag": asked}
        ]
        assert await worker.evaluate(CLICK, asked) == [f"/inbox/suspensions/{asked}"]
        await reader.page.reload()
        await reader.says("This browser is notified, also while no page of the inbox is open")
        assert await reader.page.inner_text("[data-browser-here]") == "this browser"
        assert not await reader.page.is_visible("text=Notify me in this browser")
        await reader.page.click("[data-browser] button")
        await reader.page.wait_for_selector("text=Notify me in this browser")
        assert await reader.list_browsers() == []
        assert not await reader.page.evaluate("sessionStorage.getItem('test.subscribed')")


@requirement("push:page")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("null", "This browser blocks notifications of this page. Allow them for this site"),
        (
            "Object.defineProperty(window, 'isSecureContext', { value: false })",
            "only for pages over https or on this machine",
        ),
        ("delete window.Notification", "This browser has no notifications here"),
    ],
)
async def test_a_browser_that_cannot_notify_says_what_to_do(tmp_path: Path, script: str, said: str) -> None:
    async with read_inbox(tmp_path, script) as reader:
        await reader.log_in()
        if script == "null":
            await reader.choose()
        await reader.says(said)
        assert await reader.list_browsers() == []


@requirement("push:page", "inbox:accessible")
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_the_section_with_a_browser(tmp_path: Path, color_scheme: str) -> None:
    double = BrowserDouble()
    given = json.dumps([ENDPOINT, double.p256dh, encode(double.auth)])
    async with read_inbox(
        tmp_path, f"({SUBSCRIBED})({given})", color_scheme=color_scheme, viewport={"width": 390, "height": 844}
    ) as reader:
        program = read_axe()
        await reader.log_in()
        await reader.choose()
        await reader.says("This browser blocks")
        assert await find_violations(reader.page, program) == []
        await reader.allow()
        await reader.page.reload()
        await reader.choose()
        await reader.page.wait_for_selector("[data-browser-here]:visible")
        assert await find_violations(reader.page, program) == []
