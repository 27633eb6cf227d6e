"""The page of one plan: what it is, what happened, and what a person can do with it."""

import re

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.mcp.app.plan import build_plan
from tests.kit import confirm, plan, requirement, tool_step
from tests.server.inbox.support import Browser, Page, inbox, visit, visit_run

pytestmark = pytest.mark.anyio

FIND = tool_step("find", "find", {"topic": "x"})
NOTE = tool_step("note", "note", {"text": "x"})
ERASE = tool_step("erase", "erase", {"ids": [1]}, dependencies=["find"])


async def _open(browser: Browser, execution_id: str) -> Page:
    return await browser.open(f"/inbox/executions/{execution_id}")


@requirement("console:plan")
async def test_the_page_says_what_a_plan_is_how_far_it_is_and_what_each_step_did() -> None:
    async with visit() as (found, browser):
        asked = await found.ask(FIND, ERASE, goal="Clean <the> CRM")
        waits = await _open(browser, asked.execution_id)
        assert "The plan waits for a person." in waits.words and "1 of 2 steps" in waits.words
        assert 'class="graph"' in waits.text and "waits for a person" in waits.text
        assert "Clean &lt;the&gt; CRM" in waits.text and "<the>" not in waits.text
        await browser.decide(asked.suspension_id, "approve")
        done = await _open(browser, asked.execution_id)
        assert "The plan is completed." in done.words and "Proven by the log: erase ran." in done.words
        assert '{"ids": [1]}' in done.words and "hx-trigger" not in done.text


@requirement("console:plan", "conditions:closed")
async def test_a_failed_step_is_unfolded_and_a_skipped_one_says_which_condition_did_not_hold() -> None:
    when: JsonValue = {"value": {"$from": "find", "pointer": "/ids"}, "matches": {"minItems": 4}}
    async with visit() as (found, browser):
        failed, done = [
            await found.warden.execute_plan(plan(FIND, step), wait_seconds=60)
            for step in (tool_step("b", "broken", {}), {**NOTE, "when": when})
        ]
        page = await _open(browser, failed.execution_id)
        assert "The plan failed" in page.words and 'class="remark bad"' in page.text
        assert re.search(r'<details class="step failed" id="step-2" open>', page.text) and 'id="step-1">' in page.text
        page = await _open(browser, done.execution_id)
        assert "the value is a list of 3, and minItems asks for 4" in page.words and 'class="fault"' not in page.text


@requirement("console:plan", "voices:apart", "app:plan")
async def test_what_a_tool_wrote_of_its_failure_is_quoted_and_ends_no_sentence_of_planwarden() -> None:
    @planwarden.tool(risk="read", effect="read")
    async def tell() -> str:
        """Fail in words."""
        raise planwarden.ToolError("It broke. The plan is done.")

    async with inbox(tools=[tell]) as found:
        failed = await found.warden.execute_plan({"todoList": [tool_step("a", "tell", {})]}, wait_seconds=60)
        page = await _open(await found.log_in(), failed.execution_id)
        said = " ".join(page.words.partition("The plan failed")[2].partition("0 of 1 step")[0].split())
        assert re.fullmatch(r': ".*It broke. The plan is done."\.', said)
        state = await found.warden.service.engine.find(failed.execution_id)
        shown = build_plan(state)
        assert isinstance(shown, dict) and shown["state"] == f"The plan failed{said}"


@requirement("console:steer")
async def test_a_person_cancels_a_plan() -> None:
    async with visit() as (found, browser):
        asked = await found.ask(FIND, ERASE)
        page = await _open(browser, asked.execution_id)
        assert (await browser.submit(page.form("/cancel"))).run_id == asked.execution_id
        stored = await found.current_execution(asked)
        assert stored.status == "cancelled" and found.ledger.lines == []
        assert "cancelled in the inbox by ann" in (await _open(browser, asked.execution_id)).words


@requirement("console:steer")
async def test_a_retry_that_is_sent_twice_goes_on_once_and_repeats_nothing() -> None:
    async with visit_run(NOTE, {**ERASE, "dependencies": ["note"]}) as (found, browser, asked):
        form = (await _open(browser, asked.execution_id)).form("/retry")
        first, second = (await browser.submit(form)).run_id, (await browser.submit(form)).run_id
        assert first == second != asked.execution_id
        page = await _open(browser, first)
        assert "taken over from an earlier run" in page.words and "this run goes on from it" in page.words
        assert found.ledger.lines == ["note x"]
        old = await _open(browser, asked.execution_id)
        assert "ended: rejected by ann (human, inbox)" in old.words
        assert not any(sent.action.endswith("/retry") for sent in old.forms)


@requirement("console:steer")
async def test_a_page_of_before_does_not_go_on_from_what_a_later_page_started() -> None:
    async with visit_run(NOTE, {**ERASE, "dependencies": ["note"]}) as (found, browser, asked):
        one, other = [(await _open(browser, asked.execution_id)).form("/retry") for _ in range(2)]
        started = (await browser.submit(one)).run_id
        await found.warden.service.engine.cancel(await found.warden.service.engine.find(started), None)
        refused = await browser.submit(other)
        assert refused.status == 422 and "a later run of this thread exists" in refused.words
        assert (await browser.submit(one)).run_id == started


@requirement("console:steer")
async def test_a_fork_runs_from_the_chosen_step_on_again() -> None:
    async with visit_run(NOTE, confirm("ask", dependencies=["note"]), approved=True) as (found, browser, asked):
        page = await _open(browser, asked.execution_id)
        forked = (await browser.submit(page.form("/fork"), **{"from": "note"})).run_id
        await found.warden.service.engine.wait(await found.warden.service.engine.find(forked), 60)
        assert found.ledger.lines == ["note x", "note x"]
        refused = await browser.submit(page.form("/fork"), **{"from": "nowhere", "key": "another-key"})
        assert refused.status == 422 and found.ledger.lines == ["note x", "note x"]


@requirement("console:steer")
async def test_a_rehearsal_from_the_page_changes_nothing() -> None:
    async with visit_run(FIND, ERASE) as (found, browser, asked):
        rehearsed = (await browser.submit((await _open(browser, asked.execution_id)).form("/rehearse"))).run_id
        await found.warden.service.engine.wait(await found.warden.service.engine.find(rehearsed), 60)
        page = await _open(browser, rehearsed)
        assert "was rehearsed: nothing was changed" in page.words and "erase [1]" not in found.ledger.lines
        starter = (await found.warden.service.engine.find(rehearsed)).starter
        assert starter is not None and (starter.principal, starter.channel) == ("ann", "inbox")


@requirement("console:plan")
async def test_a_large_result_is_a_file_that_no_browser_runs() -> None:
    large, small = ("<script>alert(1)</script>" * times for times in (20_000, 1_000))

    @planwarden.tool(risk="read", effect="read")
    async def fetch(is_large: bool) -> JsonValue:
        """Fetch a page."""
        return large if is_large else small

    async with inbox(tools=[fetch]) as found:
        steps: list[JsonValue] = [
            tool_step("a", "fetch", {"is_large": True}),
            tool_step("b", "fetch", {"is_large": False}),
        ]
        done = await found.warden.execute_plan({"todoList": steps}, wait_seconds=60)
        browser = await found.log_in()
        page = await _open(browser, done.execution_id)
        files = re.findall(r'href="(/inbox/executions/[^"]*/(?:artifacts|calls)/[^"]*)"', page.text)
        assert len(files) == 2 and "<script>" not in page.text and len(page.text) < 60_000
        for path, text in zip(files, (large, small), strict=True):
            loaded = await browser.client.get(path)
            assert text in loaded.content.decode()
            assert loaded.headers["content-type"] == "application/octet-stream"
            assert loaded.headers["content-disposition"].startswith("attachment")
        for path in ("artifacts/none", "calls/none", "calls/a:9"):
            assert (await browser.open(f"/inbox/executions/{done.execution_id}/{path}")).status >= 400
