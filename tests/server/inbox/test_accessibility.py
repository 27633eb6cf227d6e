"""axe-core and a narrow screen find nothing on any page of the inbox: light, dark, with no, one and many rows.

Every page is on a tour here; one that is added without being on it fails.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode, urlsplit

import anyio
from starlette.routing import Match, Route

import planwarden
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.inbox.app import build_inbox_app
from planwarden.server.inbox.questions import PAGE_SIZE
from planwarden.server.inbox.site import InboxSite
from tests.kit import Decision, by, ev, plan, requirement, save_plan, tool_step
from tests.server.schedules.support import add_schedule
from tests.storage.suite import Scribe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM, find_violations, launch_browser, read_axe
from tests.support.scene import ANN, CLEAN_UP, LETTER, PAY, InboxScene, call_through_gate, open_scene

if TYPE_CHECKING:
    from playwright.async_api import Page, ViewportSize

pytestmark = [*DRIVES_CHROMIUM, requirement("inbox:accessible")]

LISTS = ("", "/plans", "/calls", "/history", "/grants", "/keys", "/saved", "/receipts")
NOT_PAGES = {
    "/": "leads to the inbox",
    "/inbox/": "is the same page without its slash",
    "/inbox/static/{name}": "a file",
    "/inbox/executions/{execution_id}/calls/{call_id}": "a file",
    "/inbox/executions/{execution_id}/artifacts/{artifact_id}": "a file",
}
MANY = 60
"""More than one page of anything."""


CLEAN = """
title: Clean the CRM
description: Finds records that nobody has touched, and deletes them once a person agrees.
inputs:
  properties:
    days: {type: integer, default: 400, minimum: 30, description: Only records older than so many days}
    reason: {type: string, default: stale, description: Why they go}
    notify: {type: boolean}
    regions: {type: array, items: {type: string}}
todoList:
  - id: find
    description: Find stale records
    toolCalls: [{toolName: crm_find, arguments: {older_than_days: {$from: inputs, pointer: /days}}}]
  - id: delete
    description: Delete them
    toolCalls:
      - toolName: crm_delete
        arguments: {ids: {$from: find, pointer: /ids}, reason: {$from: inputs, pointer: /reason}}
"""
LOOK = "todoList: [{id: a, description: Look, toolCalls: [{toolName: crm_find, arguments: {older_than_days: 3}}]}]"
Scheme = Literal["light", "dark"]
WIDE: "ViewportSize" = {"width": 1120, "height": 820}
NARROW: "ViewportSize" = {"width": 390, "height": 844}
OF_COLOURS = ("color-contrast", "link-in-text-block")
"""The rules whose verdict a colour scheme can change; a scheme changes nothing else."""


UNTITLED = """() => [...document.querySelectorAll("h1")].filter((title) => title.checkVisibility()).length === 1
  && document.title.trim() && document.title !== "planwarden" ? [] : ["not one h1, or no title of its own"]"""
TOO_WIDE = """() => document.documentElement.scrollWidth > document.documentElement.clientWidth
  ? [`${document.documentElement.scrollWidth} pixels wide`] : []"""


@dataclass
class Tour:
    found: InboxScene
    page: "Page"
    program: str
    """axe-core."""
    findings: list[str] = field(default_factory=list[str])
    seen: set[str] = field(default_factory=set[str])
    """Paths of routes."""

    async def log_in(self) -> None:
        await self.page.goto(await self.found.make_link())
        await self.look()
        await self.page.click("main button[type=submit]")
        await self.page.wait_for_selector("nav")

    async def visit(self, *paths: str) -> None:
        for path in paths:
            await self.page.goto(f"{self.found.url}{path}")
            await self.look()

    async def look(self, where: str = "") -> None:
        """Looks at the page that is open, in every look; `where` says what its address does not."""
        scope = {"type": "http", "method": "GET", "path": urlsplit(self.page.url).path}
        self.seen |= {route.path for route in list_routes(self.found.site) if route.matches(scope)[0] is Match.FULL}
        await self._find("wide light", where, WIDE, "light")
        await self._find("wide dark", where, WIDE, "dark", *OF_COLOURS)
        await self._find("narrow dark", where, NARROW, "dark")
        await self._set(WIDE, "light")

    async def _find(self, look: str, where: str, size: "ViewportSize", scheme: Scheme, *rules: str) -> None:
        await self._set(size, scheme)
        said = await find_violations(self.page, self.program, rules)
        for script in () if rules else (UNTITLED, TOO_WIDE):
            said += await self.page.evaluate(script)
        place = f"{look}, {urlsplit(self.page.url).path} {where}"
        self.findings += [f"{place}: {finding}" for finding in said]

    async def _set(self, size: "ViewportSize", scheme: Scheme) -> None:
        await self.page.set_viewport_size(size)
        await self.page.emulate_media(color_scheme=scheme)


def list_routes(site: InboxSite) -> list[Route]:
    routes: list[Any] = build_inbox_app(site, lambda: ()).routes
    return [route for route in routes if isinstance(route, Route) and "GET" in (route.methods or ())]


@planwarden.tool
async def lost() -> str:
    """Never hears of it again."""
    raise planwarden.OutcomeUnknown("the line went dead")


@asynccontextmanager
async def _open(home: Path) -> AsyncGenerator[Tour]:
    """Opens a browser in front of an inbox; at the end nothing may have been found."""
    assert CHROMIUM is not None
    with anyio.fail_after(900):
        async with open_scene([lost], home=home) as found, launch_browser(CHROMIUM) as browser:
            context = await browser.new_context(viewport=WIDE)
            tour = Tour(found, await context.new_page(), read_axe())
            tour.page.set_default_timeout(60_000)
            yield tour
            assert not tour.findings, "\n".join(tour.findings)


async def test_axe_finds_nothing_on_pages_without_rows(tmp_path: Path) -> None:
    async with _open(tmp_path) as tour:
        await tour.visit("/pair", "/elsewhere")
        await tour.log_in()
        await tour.page.click("text=Notify me in this browser")
        await tour.page.wait_for_selector("[data-notifying-says]:has-text('This browser blocks')")
        await tour.look("when notifications are blocked")
        empty = Scribe.on(tour.found.warden.service.store, "empty")
        await empty.write(ev.ExecutionCreated(goal="go"), ev.ExecutionFailed(code="x", message="no plan"))
        await tour.visit(*LISTS, "/plans?q=x", "/plans?state=none", "/executions/empty")
        await tour.visit("/suspensions/none", "/review", "/review?id=none", "/executions/none", "/saved/none")


@requirement("inbox:phone")
async def test_axe_finds_nothing_on_pages_with_one_row_and_of_every_kind(tmp_path: Path) -> None:
    async with _open(tmp_path) as tour:
        await tour.log_in()
        save_plan(tmp_path, "look", LOOK)
        await tour.found.run_to_question(LETTER, goal="Close idle accounts")
        await tour.visit(*LISTS[:2], LISTS[6])
        await _see_questions(tour)
        await _see_rows(tour)
        await _see_what_is_allowed(tour, tmp_path)
        await _see_saved_plans(tour, tmp_path)
        await _see_runs(tour)
        await tour.visit(*LISTS)
        pages = {route.path for route in list_routes(tour.found.site) if "POST" not in (route.methods or ())}
        assert pages - tour.seen - NOT_PAGES.keys() == set() and NOT_PAGES.keys() <= pages


async def _press(tour: Tour, button: str, then: str) -> None:
    async with tour.page.expect_navigation():
        await tour.page.get_by_role("main").get_by_role("button", name=button, exact=True).click()
    await tour.page.locator(then).first.wait_for()
    await tour.look(f"after {button}")


async def _see_questions(tour: Tour) -> None:
    found = tour.found
    ids = await found.ask_every_kind()
    ids["covers"] = await found.run_to_question(
        tool_step("ask", "displayConfirmation", {"action": "Pay both?"}, confirms=["one", "two"]),
        {**PAY, "id": "one", "dependencies": ["ask"]},
        {**PAY, "id": "two", "dependencies": ["ask"]},
    )
    ids["long"] = await found.run_to_question(
        tool_step("s", "send_mail", {"to": "x" * 500, "subject": "x" * 500, "body": "x"}), goal="x" * 500
    )
    ids["lost"] = await found.run_to_question(tool_step("s", "lost"))
    reviewed = await found.warden.execute_plan(plan(*CLEAN_UP, PAY), goal="Clean up", options={"review": "person"})
    ids["review"] = reviewed.suspensions[0].suspension_id
    edit = Decision(
        approved=True, modified_args={"invoice": "x", "amount": 1, "currency": "EUR", "account": "\u202eother"}
    )
    await found.answer(ids["pay"], edit, by("local", "claimed", "mcp"))
    ids["rejected"] = await found.run_to_question(LETTER)
    ids["done"] = await found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
    await found.answer(ids["rejected"], Decision(approved=False, reason="not now"))
    await found.answer(ids["done"], Decision(approved=True))
    await tour.visit(*(f"/suspensions/{suspension_id}" for suspension_id in ids.values()))
    long = await found.warden.service.store.find_suspension(ids["long"])
    assert long is not None
    await tour.visit(f"/executions/{long.execution_id}")
    together = "&".join(f"id={ids[name]}" for name in ("mail", "pay", "hostile", "form", "covers"))
    await tour.visit(f"/review?{together}")
    await _press(tour, "Reject selected", ".outcomes")
    await tour.visit(f"/suspensions/{ids['delete']}")
    await tour.page.get_by_text("Edit the arguments first").click()
    await tour.page.get_by_label("reason", exact=True).fill("older")
    await _press(tour, "Show the difference", ".changes")
    await tour.visit(f"/suspensions/{ids['form']}")
    await _press(tour, "Send", "[role=alert]")


async def _see_rows(tour: Tour) -> None:
    asked = await ask_about_rows(tour.found, 3)
    await tour.visit(f"/suspensions/{asked}")
    await tour.page.locator("#row-1 summary").click()
    await tour.look("with a row to edit")
    copies = tour.page.get_by_role("group", name="Row 2").get_by_label("copies")
    await copies.fill("many")
    await copies.press("Enter")
    await tour.page.get_by_text("Row 2 needs another look").wait_for()
    await tour.look("with a fault")
    await copies.fill("2")
    await copies.press("Enter")
    await tour.page.get_by_text("rows run as follows").wait_for()
    await tour.look("before the decision")
    await _press(tour, "Reject all", "text=rejected by ann")
    await tour.visit(f"/suspensions/{await ask_about_rows(tour.found, 1)}")


async def ask_about_rows(found: InboxScene, count: int) -> str:
    """The id of one question about as many calls."""
    step = tool_step(
        "remind",
        "send_mail",
        {"to": {"$from": "item"}, "subject": "Reminder", "body": "Please pay."},
        forEach=[f"office{number}@acme.example" for number in range(count)],
        maxItems=count,
    )
    return await found.run_to_question(step, goal=f"Remind {count} customers")


async def _see_what_is_allowed(tour: Tour, home: Path) -> None:
    save_plan(home, "clean", CLEAN)
    pay = await tour.found.run_to_question(PAY, goal="Pay the invoice")
    await tour.visit(f"/suspensions/{pay}/grant")
    await tour.page.get_by_label("How many more calls").fill("many")
    await _press(tour, "Approve and allow", "[role=alert]")
    await tour.page.get_by_label("How many more calls").fill("3")
    await _press(tour, "Approve and allow", "text=Also allowed")
    run = await tour.found.warden.run_plan("clean")
    await tour.visit(f"/suspensions/{run.suspensions[0].suspension_id}", "/grants")
    await tour.visit(f"/suspensions/{run.suspensions[0].suspension_id}/allow-step")
    await tour.page.get_by_label("Maximum calls a day").fill("many")
    await _press(tour, "Approve and allow", "[role=alert]")
    await tour.page.get_by_label("Maximum calls a day").fill("3")
    await _press(tour, "Approve and allow", "text=Also allowed")
    for grant in await tour.found.warden.service.grants.list():
        if grant.step is not None:
            await tour.found.warden.service.grants.revoke(grant.grant_id, ANN)


async def _see_saved_plans(tour: Tour, home: Path) -> None:
    save_plan(home, "broken", "todoList: 3")
    store = tour.found.warden.service.store
    await add_schedule(store, plan="clean", schedule_id="s1", timezone="Europe/Berlin")
    await add_schedule(store, plan="gone", schedule_id="lost")
    await tour.visit("/saved", "/saved/clean", "/saved/look", "/saved/broken", "/saved/clean/schedule", "/schedules/s1")
    await _press(tour, "Pause", ".remark:visible")
    await _press(tour, "Run now", ".remark:visible")
    await tour.page.goto(f"{tour.found.url}/saved/clean")
    await tour.page.get_by_label("days").fill("3")
    await _press(tour, "Start", "[role=alert]")
    await tour.page.goto(f"{tour.found.url}/saved/clean/schedule")
    await tour.page.get_by_label("Times").fill("x")
    await _press(tour, "Add the schedule", "[role=alert]")


async def _see_runs(tour: Tour) -> None:
    found = tour.found
    run = await found.warden.run_plan("clean", {"days": 60})
    rejected = await found.answer(run.suspensions[0].suspension_id, Decision(approved=False))
    failing = await found.warden.execute_plan(plan(tool_step("a", "crm_find", {"older_than_days": 3})), wait_seconds=60)
    called = await call_through_gate(found.warden.service, {"path": "/data/a", "text": "x" * 5_000})
    await found.answer(called.suspensions[0].suspension_id, Decision(approved=True))
    await tour.visit(f"/executions/{rejected}", f"/executions/{failing.execution_id}")
    await tour.visit(f"/executions/{failing.execution_id}/keep")
    await tour.page.get_by_label("Name").fill("clean")
    await _press(tour, "Keep", "[role=alert]")
    await tour.visit(f"/executions/{rejected}/inputs")
    await tour.page.get_by_label("days").fill("3")
    await _press(tour, "Run again", "[role=alert]")
    await tour.page.get_by_label("days").fill("90")
    await tour.page.get_by_label("Run", exact=True).select_option("find")
    await _press(tour, "Run again", "text=this run goes on from it")


async def test_axe_finds_nothing_on_full_pages_that_others_follow(tmp_path: Path) -> None:
    async with _open(tmp_path) as tour:
        store = tour.found.warden.service.store
        for number in range(MANY):
            await tour.found.run_to_question(PAY, goal="Pay the invoice")
            await add_schedule(store, "0 9 * * *", f"s{number}", plan="look")
            save_plan(tmp_path, f"plan{number}", LOOK)
        save_plan(tmp_path, "look", LOOK)
        waiting = await store.suspensions(addressee="human", limit=50)
        for row in waiting.rows[:30]:
            await tour.found.answer(row.suspension_id, Decision(approved=False))
        await tour.log_in()
        listed = await store.list_executions(ExecutionFilter(), limit=PAGE_SIZE)
        await tour.visit(*LISTS, f"/plans?after={listed.next_cursor}", "/plans?state=failed&q=invoice", "/saved/look")
        await tour.visit(f"/review?{urlencode([('id', row.suspension_id) for row in waiting.rows])}")
        asked = await ask_about_rows(tour.found, 1_000)
        await tour.visit(f"/suspensions/{asked}", f"/executions/{await tour.found.find_execution(asked)}")
