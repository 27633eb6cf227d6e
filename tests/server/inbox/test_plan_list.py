"""The page of plans: what runs and ran, in words; search, filters, pages; and that nothing of it reads a log."""

import re

import pytest

from planwarden.agent.core import events as ev
from planwarden.agent.core.audit import AuditEntry
from planwarden.server.inbox.pages.plan_list import PAGE_SIZE
from planwarden.storage.ports.schedules import PlanSchedule
from tests.kit import MemoryStore, plan, requirement, tool_step
from tests.server.inbox.support import ERASE, CountingStore, Page, inbox, visit
from tests.storage.suite import Scribe

pytestmark = pytest.mark.anyio

FIND = tool_step("look", "find", {"topic": "x"})


def titles(page: Page) -> list[str]:
    """The titles of the rows, in their order, with their markup."""
    return re.findall(r'<a class="open" href="[^"]+">(.*?)</a>', page.text)


def rows(page: Page) -> list[str]:
    """The words of each row."""
    shown = re.findall(r'<li class="question" id="x-\w+">(.*?)</li>', page.text, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in shown]


@requirement("inbox:plans")
async def test_the_page_says_what_runs_and_ran_how_far_it_is_and_who_is_asked() -> None:
    async with visit() as (found, browser):
        page = await browser.open("/inbox/plans")
        assert page.status == 200 and "Nothing has run yet." in page.words
        await found.warden.execute_plan(plan(FIND), goal="Look around", wait_seconds=60)
        await found.warden.execute_plan(plan(tool_step("one", "broken", {})), wait_seconds=60)
        asked = await found.ask(FIND, {**ERASE, "dependencies": ["look"]}, goal="Clean <up>")
        page = await browser.open("/inbox/plans")
        waiting, failed, done = rows(page)
        assert "Clean &lt;up&gt;" in waiting and "waits for a person 1 of 2 steps" in waiting
        assert f'href="/inbox/suspensions/{asked.suspension_id}">Answer its question</a>' in page.text
        assert "failed 0 of 1 step" in failed and titles(page)[1].startswith("<q>")
        assert "Look around" in done and "completed 1 step" in done and "Answer" not in done
        for view in ("/inbox", "/inbox/history", "/inbox/plans"):
            assert 'href="/inbox/plans"' in (await browser.open(view)).text
        assert re.search(r'href="/inbox/plans" aria-current="page">Runs', page.text)
        assert 'href="/inbox/saved">Saved plans' in page.text


@requirement("inbox:plans")
async def test_search_and_filters_find_runs_and_say_when_nothing_fits() -> None:
    async with visit() as (found, browser):
        store = found.warden.service.engine.store
        await found.warden.execute_plan(plan(FIND), goal="Look around", wait_seconds=60)
        await found.ask(goal="Erase it")
        scribe = Scribe.on(store, "saved")
        version = ev.PlanVersion(name="month & end", digest="d")
        await scribe.write(ev.ExecutionCreated(goal="Report", host="Claude Code", saved_plan=version))
        for query, expected in (
            ("q=AROUND", ["Look around"]),
            ("q=month", ["Report"]),
            ("q=erase&state=waiting", ["Erase it"]),
            ("q=erase&state=done", []),
            ("tool=find", ["Look around"]),
            ("host=Claude%20Code", ["Report"]),
            ("plan=month+%26+end", ["Report"]),
            ("plan=month", []),
            ("state=running", ["Report"]),
            ("host=%00&tool=%0a&plan=%ff&q=%ff", []),
            ("q=" + "x" * 5_000, []),
        ):
            page = await browser.open(f"/inbox/plans?{query}")
            assert [title.removeprefix("<q>").removesuffix("</q>") for title in titles(page)] == expected, query
            assert ("No run fits." in page.words) == (not expected)
        page = await browser.open("/inbox/plans?plan=month+%26+end&q=rep")
        form = page.form("/plans")
        assert form.fields == {"q": ["rep"], "state": [""], "tool": [""], "host": [""], "plan": ["month & end"]}
        assert "Runs of month & end" in page.words and "Claude Code" in page.words
        page = await browser.open("/inbox/plans?state=asleep")
        assert page.status == 422 and "choose one of running" in page.words


@requirement("inbox:plans")
async def test_titles_are_escaped_and_cut_and_words_of_others_are_quoted() -> None:
    """issue: hostile texts; ours: a saved plan's name is no quotation"""
    async with visit() as (found, browser):
        store = found.warden.service.engine.store
        hostile = "<script>alert(1)</script>\u202e\u200b\n\0done" + "x" * 10_000
        for number, goal in enumerate((hostile, None)):
            scribe = Scribe.on(store, f"e{number}")
            version = ev.PlanVersion(name=hostile if goal else "monthly", digest="d")
            await scribe.write(ev.ExecutionCreated(goal=goal, host=hostile, saved_plan=version))
            await scribe.write(ev.ExecutionFailed(code="x", message=hostile))
        page = await browser.open("/inbox/plans")
        assert "<script>alert" not in page.text and "\u202e" not in page.words and "\u200b" not in page.words
        assert "\\u202e" in page.text and len(page.text) < 20_000
        assert titles(page)[0] == "monthly" and titles(page)[1].startswith("<q>&lt;script&gt;")
        assert "<q>&lt;script&gt;alert(1)" in page.text.split('class="why bad"')[1]
        links = re.findall(r'saved plan <a href="([^"]+)"', page.text)
        assert [len(titles(await browser.open(link))) for link in links] == [1, 1]


@requirement("inbox:plans", "inbox:paged")
async def test_pages_follow_the_filter_and_no_log_is_read_for_them() -> None:
    store = CountingStore(MemoryStore())
    calls = store.calls
    async with visit(store=store) as (found, browser):
        for number in range(2 * PAGE_SIZE + 1):
            await found.warden.execute_plan(plan(ERASE), goal=f"Erase {number}", wait_seconds=60)
        await found.warden.execute_plan(plan(FIND), goal="Look around", wait_seconds=60)
        seen: list[str] = []
        where: str | None = "/inbox/plans?q=erase&state=waiting"
        while where is not None:
            calls.clear()
            page = await browser.open(where)
            assert sorted(calls) == ["list_executions", "list_hosts"], calls
            seen += titles(page)
            is_first = "after=" not in where
            assert is_first or 'href="/inbox/plans?q=erase&amp;state=waiting&amp;">Newest' in page.text
            onward = re.search(r'rel="next" href="([^"]+)"', page.text)
            where = onward[1].replace("&amp;", "&") if onward else None
        assert seen == [f"<q>Erase {number}</q>" for number in reversed(range(2 * PAGE_SIZE + 1))]
        assert (await browser.open("/inbox/plans?after=forged")).status == 422


@requirement("inbox:plans")
async def test_what_schedules_start_next_stands_above_the_first_page() -> None:
    async with inbox(store=MemoryStore()) as found:
        store = found.warden.service.engine.store
        assert isinstance(store, MemoryStore)
        for number, paused_at in enumerate((None, 1.0, None, None, None)):
            schedule = PlanSchedule(
                schedule_id=f"s{number}",
                plan=f"plan {number} <b>",
                cron="* * * * *",
                timezone="UTC",
                inputs={},
                overlap="skip",
                missed="none",
                owner="ann",
                created_by="ann",
                created_at=0.0,
                paused_at=paused_at,
                next_at=4_000_000_000 - number,
            )
            await store.schedules.add(schedule, AuditEntry(kind="schedule_added", facts={}))
        browser = await found.log_in()
        page = await browser.open("/inbox/plans")
        assert re.findall(r"plan (\d) &lt;b&gt;", page.text) == ["4", "3", "2"]
        assert 'href="/inbox/plans?plan=plan+4+%3Cb%3E"' in page.text and "2096-10-02" in page.text
        assert "Scheduled next" not in (await browser.open("/inbox/plans?state=failed")).words
