"""axe-core finds nothing on any page of the inbox: light, dark and on a phone, with no, one and many rows."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core import events as ev
from planwarden.agent.ports.listing import ExecutionFilter
from planwarden.server.api.grants import GrantRequest
from planwarden.server.inbox.questions import PAGE_SIZE
from planwarden.storage.sqlite.store import SqliteStore
from tests.requirements import requirement
from tests.storage.suite import Scribe
from tests.support.axe import find_violations, read_axe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM
from tests.support.many import copy_execution
from tests.support.scene import CLEAN_UP, LETTER, PAY, InboxScene, launch_browser, open_scene
from tests.support.wardens import tool_step

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

pytestmark = DRIVES_CHROMIUM

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
        "device_scale_factor": 2,
        "color_scheme": "dark",
    },
}
ANN = Authority(assurance="human", channel="inbox", principal="ann")
LISTS = ("", "/plans", "/history", "/grants", "/keys")


@asynccontextmanager
async def _open() -> AsyncGenerator[tuple[InboxScene, "Browser"]]:
    assert CHROMIUM is not None
    with anyio.fail_after(300):
        async with open_scene() as found, launch_browser(CHROMIUM) as browser:
            yield found, browser


async def _find_everywhere(found: InboxScene, browser: "Browser", paths: Sequence[str]) -> list[str]:
    """Every finding on these pages in every look, each with its page."""
    program = read_axe()
    findings: list[str] = []
    for look, options in LOOKS.items():
        context = await browser.new_context(**options)
        page: Page = await context.new_page()
        link = await found.make_link()
        await page.goto(link)
        findings += [f"{look} /pair {finding}" for finding in await find_violations(page, program)]
        await page.click("main button[type=submit]")
        await page.wait_for_selector("nav")
        for path in paths:
            await page.goto(f"{found.url}{path}")
            findings += [f"{look} {path} {finding}" for finding in await find_violations(page, program)]
        await context.close()
    return findings


async def _decide(found: InboxScene, suspension_id: str, decision: Decision) -> str:
    """Decides as a person, and returns the id of the execution."""
    row = await found.warden.service.engine.store.find_suspension(suspension_id)
    assert row is not None
    await found.warden.service.answer(row.thread_id, suspension_id, decision, ANN, wait_seconds=60, principal=None)
    return row.execution_id


@requirement("inbox:accessible")
async def test_axe_finds_nothing_on_pages_without_rows() -> None:
    """spec: console, axe-core has no finding on any page"""
    async with _open() as (found, browser):
        assert await _find_everywhere(found, browser, [*LISTS, "/plans?q=x", "/suspensions/none", "/review"]) == []


@requirement("inbox:accessible")
async def test_axe_finds_nothing_on_any_page_of_questions_of_every_kind() -> None:
    """spec: console, axe-core has no finding on any page"""
    async with _open() as (found, browser):
        ids = await found.ask_every_kind()
        ids["covers"] = await found.run_to_question(
            tool_step("ask", "displayConfirmation", {"action": "Pay both?"}, confirms=["one", "two"]),
            {**PAY, "id": "one", "dependencies": ["ask"]},
            {**PAY, "id": "two", "dependencies": ["ask"]},
        )
        pay = await found.warden.service.engine.store.find_suspension(ids["pay"])
        assert pay is not None
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        edit = Decision(
            approved=True, modified_args={"invoice": "x", "amount": 1, "currency": "EUR", "account": "\u202eother"}
        )
        await found.warden.service.answer(pay.thread_id, ids["pay"], edit, claimed, wait_seconds=60, principal=None)
        rejected = await found.run_to_question(LETTER)
        done = await found.run_to_question(*CLEAN_UP, goal="Clean the CRM")
        execution_id = await _decide(found, rejected, Decision(approved=False, reason="not now"))
        await _decide(found, done, Decision(approved=True))
        await found.warden.service.grants.make(
            GrantRequest(tool_name="pay_invoice", arguments={"currency": "EUR"}, uses=2, expires_in_s=600), ANN
        )
        paths = [f"/suspensions/{suspension_id}" for suspension_id in (*ids.values(), rejected, done)]
        paths += [f"/suspensions/{ids['pay']}/grant", f"/executions/{execution_id}", f"/executions/{pay.execution_id}"]
        paths += [f"/review?id={ids['delete']}&id={ids['pay']}&id={ids['hostile']}&id={ids['form']}&id={ids['covers']}"]
        assert await _find_everywhere(found, browser, [*LISTS, *paths]) == []


@requirement("inbox:accessible")
async def test_axe_finds_nothing_on_lists_of_several_pages() -> None:
    """spec: console, with many rows"""
    async with _open() as (found, browser):
        for number in range(PAGE_SIZE + 1):
            asked = await found.run_to_question(PAY, goal=f"Pay invoice {number}")
            if number % 2:
                await _decide(found, asked, Decision(approved=number % 3 == 0))
        for number in range(PAGE_SIZE + 1):
            await found.run_to_question(LETTER, goal=f"Write letter {number}")
            await found.warden.service.grants.make(
                GrantRequest(tool_name="pay_invoice", arguments={"invoice": str(number)}, uses=2, expires_in_s=600), ANN
            )
        assert await _find_everywhere(found, browser, LISTS) == []


@requirement("inbox:accessible", "inbox:plans")
async def test_axe_finds_nothing_on_the_list_of_ten_thousand_runs(tmp_path: Path) -> None:
    """spec: console, with 10,000 rows"""
    assert CHROMIUM is not None
    database = tmp_path / "planwarden.db"
    store = SqliteStore.open(database)
    failed = Scribe.on(store, "failed")
    await failed.start()
    await failed.write(ev.ExecutionFailed(code="x", message="The CRM answered 503"))
    await Scribe.on(store, "running").start()
    copy_execution(database, "failed", 10_000)
    with anyio.fail_after(300):
        async with open_scene(store=store) as found, launch_browser(CHROMIUM) as browser:
            page = await store.list_executions(ExecutionFilter(), limit=PAGE_SIZE)
            paths = [
                "/plans",
                f"/plans?after={page.next_cursor}",
                "/plans?state=failed&tool=book&q=go",
                "/plans?state=running",
                "/plans?q=none",
            ]
            assert await _find_everywhere(found, browser, paths) == []
    await store.close()
