"""Signing in a real Chromium with its virtual authenticators (https://www.w3.org/TR/webauthn-3/#sctn-automation)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.inbox_port import InboxSockets, build_pairing_url, open_sockets
from planwarden.server.inbox.site import InboxSite
from planwarden.server.inbox.web_server import serve_app
from tests.kit import Ledger, OperatorPolicy, Settings, SqliteStore, requirement, verify_audit, warden
from tests.server.inbox.support import Inbox
from tests.server.inbox.test_accessibility import Tour
from tests.server.signatures.support import WIPE, wipe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM, launch_browser, log_in, read_axe
from tests.support.scene import InboxScene

if TYPE_CHECKING:
    from playwright.async_api import Page


pytestmark = DRIVES_CHROMIUM


@dataclass
class BrowserTester:
    """A person's browser with an authenticator, in front of an inbox."""

    inbox: Inbox
    listening: InboxSockets
    page: "Page"
    ledger: Ledger
    devtools: Any
    """A session of the DevTools protocol; the library does not say what is in its answers."""
    authenticator: str = ""
    complaints: list[str] = field(default_factory=list[str])

    async def log_in(self, target: str = "/inbox") -> None:
        codes = await self.inbox.site.access().make_codes("ann", "terminal")
        await log_in(self.page, build_pairing_url(f"{self.listening.origin}/inbox", codes.link, target))

    async def plug_in(self) -> None:
        """An authenticator that recognises its owner and is always touched."""
        await self.devtools.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        made = await self.devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        self.authenticator = made["authenticatorId"]

    async def recognise(self, *, is_verified: bool) -> None:
        given = {"authenticatorId": self.authenticator, "isUserVerified": is_verified}
        await self.devtools.send("WebAuthn.setUserVerified", given)

    async def add_key(self) -> None:
        await self.page.goto(f"{self.listening.origin}/inbox/keys")
        await self.page.fill("#label", "this laptop")
        await self.page.click("button[data-key]")
        await self.page.wait_for_selector("text=never signed")

    async def ask(self) -> str:
        return (await self.inbox.ask(WIPE)).suspension_id

    async def open(self, suspension_id: str) -> None:
        await self.page.goto(f"{self.listening.origin}/inbox/suspensions/{suspension_id}")

    async def says(self, words: str) -> None:
        await self.page.wait_for_selector(f"[data-key-says]:has-text('{words}')")


@asynccontextmanager
async def open_browser(folder: Path) -> AsyncGenerator[BrowserTester]:
    """A fresh browser; leaving checks that nothing was refused or broken in it, and that the audit is whole."""
    assert CHROMIUM is not None
    ledger, listening = Ledger(), open_sockets()
    store = SqliteStore.open(folder / "planwarden.db")
    settings = Settings(home=folder, policy=OperatorPolicy(same_person=frozenset({"local", "ann"})))
    with anyio.fail_after(300):
        async with (
            warden(tools=[wipe(ledger)], store=store, settings=settings) as made,
            launch_browser(CHROMIUM) as browser,
        ):
            site = InboxSite(service=lambda: made.service, settings=settings, origin=listening.origin)
            app = build_inbox_app(site, lambda: listening.host_headers)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_app, app, *listening.sockets)
                context = await browser.new_context()
                page = await context.new_page()
                page.set_default_timeout(60_000)
                found = BrowserTester(
                    Inbox(made, site, app), listening, page, ledger, await context.new_cdp_session(page)
                )
                page.on("console", lambda message: found.complaints.append(message.text))
                page.on("pageerror", lambda error: found.complaints.append(str(error)))
                yield found
                assert found.complaints == []
                verdict = await verify_audit(made.service.store)
                assert verdict.is_whole and verdict.signatures == len(ledger.lines), verdict.problems
                tasks.cancel_scope.cancel()
        await store.close()


@requirement("signed:page")
async def test_a_person_adds_a_key_and_approves_a_critical_call_with_it(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as d:
        await d.plug_in()
        asked = await d.ask()
        await d.log_in(f"/inbox/suspensions/{asked}")
        assert await d.page.is_disabled("button.approve")
        await d.page.click("text=Add one")
        await d.add_key()
        await d.open(asked)
        button = d.page.locator("button.approve")
        assert await button.inner_text() == "Approve with your key" and d.ledger.lines == []
        assert await d.page.is_hidden("[data-without-script]")
        await button.click()
        await d.page.wait_for_selector("text=approved by ann")
        assert d.ledger.lines == ["wipe old 1"]
        await d.page.goto(f"{d.listening.origin}/inbox/keys")
        await d.page.wait_for_selector("li >> text=signed")
        await d.page.fill("#label", "again")
        await d.page.click("button[data-key]")
        await d.says("added this key already")


@requirement("inbox:accessible", "inbox:phone")
async def test_axe_finds_nothing_on_the_pages_of_keys_and_of_what_is_signed(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as d:
        await d.plug_in()
        await d.log_in()
        found = InboxScene(d.inbox.warden, d.inbox.site, f"{d.listening.origin}/inbox", d.ledger)
        tour, asked = Tour(found, d.page, read_axe()), await d.ask()
        await tour.visit("/keys", f"/suspensions/{asked}")
        await d.add_key()
        await tour.look("with a key")
        await tour.visit(f"/suspensions/{asked}")
        assert not tour.findings, "\n".join(tour.findings)


@requirement("signed:page")
async def test_who_is_not_recognised_decides_nothing_and_may_try_again(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as d:
        await d.plug_in()
        await d.log_in()
        await d.add_key()
        await d.open(await d.ask())
        await d.recognise(is_verified=False)
        await d.page.click("button[data-key]")
        await d.says("No key answered")
        assert d.ledger.lines == []
        await d.recognise(is_verified=True)
        await d.page.click("button[data-key]")
        await d.page.wait_for_selector("text=approved by ann")
        assert d.ledger.lines == ["wipe old 1"]
