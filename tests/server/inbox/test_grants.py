"""Standing grants on pages: made from a question for exactly what was checked, shown, used up, and ended."""

import re

import pytest

from tests.requirements import requirement
from tests.server.inbox.support import ERASE, Browser, Inbox, Page, inbox
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio


async def _log_in(found: Inbox) -> Browser:
    browser = found.browser()
    await browser.log_in()
    return browser


async def _form(browser: Browser, found: Inbox) -> tuple[str, Page]:
    asked = await found.ask()
    return asked.suspension_id, await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")


def _fixed(page: Page) -> list[str]:
    return [name for name in page.form("/grant/make").fields if name.startswith("fix.")]


@requirement("inbox:grants")
async def test_calls_with_the_checked_values_run_without_asking_until_they_are_used_up() -> None:
    """spec: "allow this tool with these arguments, N times, until ..." """
    ledger = Ledger()
    async with inbox(ledger) as found:
        browser = await _log_in(found)
        asked, page = await _form(browser, found)
        assert len(_fixed(page)) == 1
        made = await browser.submit(page.form("/grant/make"), uses="2", minutes="60")
        assert (made.status, made.headers["location"]) == (303, f"/inbox/suspensions/{asked}")
        assert ledger.lines == ["erase [1, 2]"]
        for _ in range(2):
            assert (await found.warden.execute_plan(plan(ERASE))).status == "completed"
        assert (await found.warden.execute_plan(plan(ERASE))).status == "suspended"
        assert (await found.warden.execute_plan(plan(tool_step("e", "erase", {"ids": [9]})))).status == "suspended"
        assert ledger.lines == ["erase [1, 2]"] * 3
        words = (await browser.open("/inbox/grants")).words
        assert "0 of 2 left" in words and "Allowed by ann (a person, in the inbox)" in words and "Ended" in words


@requirement("inbox:grants")
async def test_a_value_that_was_unchecked_may_be_anything() -> None:
    """spec: those named must be equal"""
    ledger = Ledger()
    async with inbox(ledger) as found:
        browser = await _log_in(found)
        _, page = await _form(browser, found)
        form = page.form("/grant/make")
        del form.fields[_fixed(page)[0]]
        await browser.submit(form, uses="5", minutes="15")
        assert (await found.warden.execute_plan(plan(tool_step("e", "erase", {"ids": [9]})))).status == "completed"


@requirement("inbox:grants")
async def test_a_grant_is_ended_with_a_button() -> None:
    """spec: revoke"""
    async with inbox() as found:
        browser = await _log_in(found)
        _, page = await _form(browser, found)
        await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        grants = await browser.open("/inbox/grants")
        assert (await browser.submit(grants.form("/revoke"))).status == 303
        assert (await found.warden.execute_plan(plan(ERASE))).status == "suspended"
        kinds = [row.kind for row in (await found.warden.service.audit.read_page()).rows]
        assert "grant_made" in kinds and "grant_revoked" in kinds


@pytest.mark.parametrize(
    "changes",
    [
        {"uses": "0"},
        {"uses": "-1"},
        {"uses": "1001"},
        {"uses": "x"},
        {"uses": "٣"},
        {"minutes": "481"},
        {"minutes": ""},
    ],
)
async def test_numbers_that_are_not_usable_allow_nothing(changes: dict[str, str]) -> None:
    """ours: at most 8 hours"""
    async with inbox() as found:
        browser = await _log_in(found)
        _, page = await _form(browser, found)
        fields = {"uses": "5", "minutes": "60", **changes}
        answer = await browser.submit(page.form("/grant/make"), **fields)
        assert answer.status == 422 and await found.warden.service.grants.list() == ()


async def test_a_decided_or_revised_question_allows_nothing() -> None:
    """ours"""
    async with inbox() as found:
        browser = await _log_in(found)
        asked, page = await _form(browser, found)
        stale = await browser.submit(page.form("/grant/make"), uses="5", minutes="60", digest="0" * 64)
        assert stale.status == 409
        await browser.decide(asked, "reject")
        late = await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        assert late.status == 409 and await found.warden.service.grants.list() == ()


async def test_a_confirmation_cannot_be_allowed_in_advance_on_a_page() -> None:
    """spec: a grant is worth what its maker is worth"""
    async with inbox() as found:
        asked = await found.ask(confirm("c"))
        browser = await _log_in(found)
        page = await browser.open(f"/inbox/suspensions/{asked.suspension_id}")
        assert not re.search(r"/grant\b", page.text)
        assert (await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")).status == 422
