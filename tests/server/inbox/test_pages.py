"""What the pages show: facts first and whole, hostile text as text, every question of the home, and what happened."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.inbox.questions import PAGE_SIZE
from tests.kit import ManualClock, MemoryStore, Settings, by, confirm, decide, plan, requirement, tool_step
from tests.server.inbox.support import CountingStore, inbox, visit
from tests.server.inbox.test_saved_plans import NOTE
from tests.server.inbox.test_saved_plans import write as write_plan
from tests.server.schedules.support import add_schedule

pytestmark = pytest.mark.anyio


@planwarden.tool
async def send(to: str, body: str = "", tags: dict[str, str] | None = None) -> str:
    """Send."""
    return "sent"


async def test_every_question_says_how_many_others_wait() -> None:
    async with visit() as (found, browser):
        asked = [await found.ask(tool_step("wipe", "erase", {"ids": [number]})) for number in range(4)]
        for question in asked:
            assert "3 others" in (await browser.open_question(question)).words
        await browser.decide(asked[0].suspension_id, "reject")
        assert "3 waiting" in (await browser.open_question(asked[0])).words


@requirement("notification:page")
async def test_the_page_of_what_waits_offers_notifications_and_says_that_they_need_a_script() -> None:
    async with visit() as (_, browser):
        page = await browser.open("/inbox")
        assert "Notify me in this browser" in page.words and "Notifications need JavaScript" in page.words


@requirement("inbox:facts-first")
async def test_a_question_shows_tool_source_arguments_origins_risk_and_then_what_the_agent_says() -> None:
    steps = (
        tool_step("look", "find", {"topic": "old"}),
        tool_step("wipe", "erase", {"ids": {"$from": "look", "pointer": "/ids"}}, description="Remove them"),
    )
    async with inbox() as found:
        asked = await found.ask(*steps, goal="Tidy up")
        words = (await (await found.log_in()).open(f"/inbox/suspensions/{asked.suspension_id}")).words
        wanted = (
            "Step 2 of 2 of",
            "Tidy up",
            "Run",
            "erase",
            "dangerous",
            "Python tool",
            "ids",
            "from the result of look at /ids",
            "The agent says (unverified)",
        )
        shown = words[words.index("Step 2 of 2 of") :]
        places = [shown.index(text) for text in wanted]
        assert places == sorted(places) and "Remove them" in shown[places[-1] :]


@requirement("inbox:facts-first")
async def test_long_values_are_cut_with_size_and_hash_in_the_list_and_whole_on_their_own_page() -> None:
    text, name = "x" * 3_000 + " the end", "n" * 900
    whole = json.dumps(text)
    async with visit(tools=[send]) as (found, browser):
        asked = await found.ask(tool_step("s", "send", {"to": "a", "body": text, "tags": {name: "x"}}))
        listed = await browser.open("/inbox")
        digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
        assert f"[{len(whole)} bytes, sha256 {digest}]" in listed.words and "the end" not in listed.words
        own = await browser.open_question(asked)
        assert (
            digest in own.words
            and "the end" in own.words
            and name in own.words
            and '<details class="long">' in own.text
        )


@requirement("inbox:hostile")
async def test_hostile_text_can_start_no_line_no_element_and_no_field() -> None:
    nasty = "\n" * 5_000 + "\x1b[31m\u202e[Approve]\u200b\U000e0041</td><script>alert(1)</script>{{7*7}}"
    arguments: dict[str, JsonValue] = {"to": nasty, "body": nasty, "tags": {nasty: nasty}}
    async with visit(tools=[send]) as (found, browser):
        first = await found.ask(confirm("c<b>", nasty), goal=nasty)
        second = await found.ask(tool_step("s", "send", arguments, description=nasty[:19_000]))
        await browser.decide(first.suspension_id, "reject", reason=nasty[-1_000:])
        paths = ["", "/history", f"/review?id={second.suspension_id}", f"/suspensions/{first.suspension_id}"]
        paths += [f"/suspensions/{second.suspension_id}", f"/executions/{first.execution_id}"]
        paths += [f"/suspensions/{second.suspension_id}/grant"]
        for path in paths:
            page = await browser.open(f"/inbox{path}")
            assert page.status == 200, (path, page.words[:200])
            assert "<script>alert" not in page.text and "</td><script" not in page.text, path
            outside = re.sub(r"<(textarea|option)[^>]*>.*?</\1>", "", page.text, flags=re.DOTALL)
            assert not re.search("[\u202e\u200b\x1b\U000e0041]", outside), path
        words = (await browser.open_question(first)).words
        assert "invisible or control characters" in words and len(words) < 20_000


@requirement("inbox:all-threads")
async def test_questions_of_every_thread_and_owner_are_listed_oldest_first() -> None:
    async with inbox() as found:
        first = await found.ask()
        await found.warden.run_goal("think", wait_seconds=60)
        other = await found.warden.execute_plan(plan(confirm("c")), principal="bob")
        page = await (await found.log_in()).open("/inbox")
        ids = re.findall(r'id="q-(\w+)"', page.text)
        assert ids == [first.suspension_id, other.suspensions[0].suspension_id]
        assert "2 waiting" in page.words


@requirement("inbox:unknown")
async def test_unknown_ids_and_questions_to_the_model_give_the_same_answer_and_missing_pages_an_error_page() -> None:
    async with visit() as (found, browser):
        asked = await found.warden.run_goal("think", wait_seconds=60)
        csrf = (await browser.open("/inbox")).forms[0].fields["csrf"]
        fields = {"csrf": csrf, "decision": ["approve"], "digest": ["0" * 64]}
        for path in ("", "/grant", "/decision"):
            answers: set[tuple[int, str]] = set()
            for suspension_id in (asked.suspensions[0].suspension_id, "0" * 32, "x", "%00", "a" * 5_000):
                where = f"/inbox/suspensions/{suspension_id}{path}"
                page = await (browser.send(where, fields) if path == "/decision" else browser.open(where))
                answers.add((page.status, page.words))
            assert [status for status, _ in answers] == [404], path
        for path in ("/executions/none", "/nowhere", "/suspensions", "/static/none", "/?after=forged"):
            page = await browser.open(f"/inbox{path}")
            assert page.status in (404, 422) and "To the inbox" in page.words and "Traceback" not in page.text


@requirement("inbox:paged")
async def test_pages_are_read_with_a_bounded_number_of_store_calls_however_much_waits() -> None:
    store = CountingStore(MemoryStore())
    calls = store.calls
    async with visit(store=store) as (found, browser):
        for _ in range(PAGE_SIZE * 3 + 1):
            await found.ask()
        for path, most in (("/inbox", PAGE_SIZE), ("/inbox/history", 0)):
            calls.clear()
            page = await browser.open(path)
            assert page.status == 200 and calls.count("header") <= most and calls.count("read") <= most
            assert len(calls) - calls.count("header") - calls.count("read") <= 3
        seen: list[str] = []
        where: str | None = "/inbox"
        while where is not None:
            page = await browser.open(where)
            seen += re.findall(r'id="q-(\w+)"', page.text)
            onward = re.search(r'rel="next" href="([^"]+)"', page.text)
            where = onward[1] if onward else None
        assert len(seen) == len(set(seen)) == PAGE_SIZE * 3 + 1


async def test_history_says_who_decided_what_and_never_calls_less_than_a_person_a_person() -> None:
    async with visit() as (found, browser):
        assert "No question has been decided yet" in (await browser.open("/inbox/history")).words
        asked = await found.ask()
        await browser.decide(asked.suspension_id, "reject", reason="no need")
        open_one = await found.ask(confirm("c"))
        await found.warden.resume_execution(
            open_one.thread_id, open_one.suspension_id, planwarden.Decision(approved=True), principal="local"
        )
        await found.warden.cancel_execution((await found.ask()).thread_id)
        words = (await browser.open("/inbox/history")).words
        places = [words.index(text) for text in ("Withdrawn", "approved by local", "rejected by ann", "no need")]
        assert places == sorted(places) and "a person" not in words[places[1] : places[2]]


async def test_what_a_confirmation_covers_is_shown_with_every_argument() -> None:
    steps = (confirm("c", "Go on?", confirms=["e"]), tool_step("e", "erase", {"ids": [7]}, dependencies=["c"]))
    async with visit() as (found, browser):
        asked = await found.ask(*steps)
        for path in (f"/suspensions/{asked.suspension_id}", f"/review?id={asked.suspension_id}"):
            words = (await browser.open(f"/inbox{path}")).words
            assert "also covers" in words and "erase" in words and "[7]" in words
        assert "covers 1 more call" in (await browser.open("/inbox")).words


@requirement("inbox:live", "inbox:plans")
async def test_an_open_page_gets_news_when_there_are_some_and_nothing_before(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    async with visit(store=MemoryStore(ManualClock()), settings=Settings(home=tmp_path)) as (found, browser):
        write_plan(tmp_path, "plain", NOTE % "hi")
        asked = await found.ask(confirm("c"), goal="Clean")
        made = await add_schedule(found.warden.service.engine.store, plan="plain")
        news = {
            "/inbox": "1 waiting",
            f"/inbox/suspensions/{asked.suspension_id}": "approved by local",
            f"/inbox/executions/{asked.execution_id}": "plan completed",
            "/inbox/plans?q=clean": "completed",
            "/inbox/saved": "another",
            f"/inbox/schedules/{made.schedule_id}": "open the run",
        }
        pages = {path: await browser.open(path) for path in news}
        assert {(await browser.refresh(page)).status for page in pages.values()} == {204}
        await decide(found.warden, asked, authority=by("local", "client", "elicitation"))
        await found.ask()
        write_plan(tmp_path, "another", NOTE % "hi")
        await browser.submit(pages[f"/inbox/schedules/{made.schedule_id}"].form("/run"))
        for path, words in news.items():
            fresh = await browser.refresh(pages[path])
            assert fresh.status == 200 and words in fresh.words and "<html" not in fresh.text, (path, fresh.words)
            if "suspensions" in path:
                assert "not proven to be a person" in fresh.words
            if "executions" in path:
                assert all(kind in fresh.words for kind in ("answer", "step completed"))
