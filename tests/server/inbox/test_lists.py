"""The pages that list: what waits, what was decided and what runs; each bounded, and none of it a door for markup."""

import re
from pathlib import Path

from pydantic import JsonValue

import planwarden
from planwarden.server.inbox.questions import PAGE_SIZE
from planwarden.server.inbox.questions import PAGE_SIZE as RUNS_PER_PAGE
from planwarden.storage.sqlite.store import SqliteStore
from tests import kit
from tests.kit import ManualClock, MemoryStore, Settings, by, confirm, decide, ev, plan, requirement, tool_step
from tests.server.inbox.support import ERASE, CountingStore, Page, visit
from tests.server.inbox.test_saved_plans import NOTE
from tests.server.schedules.support import add_schedule
from tests.storage.suite import Scribe
from tests.storage.test_sqlite import edit
from tests.support.scene import call_through_gate

FIND = tool_step("look", "find", {"topic": "x"})
FORM: JsonValue = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
LOOP = tool_step("wipe", "erase", {"ids": [{"$from": "item"}]}, forEach=[7, 8, 9])


@planwarden.tool
async def send(to: str, body: str = "", tags: dict[str, str] | None = None) -> str:
    """Send."""
    return "sent"


def _questions(page: Page) -> list[str]:
    return re.findall(r'id="q-(\w+)"', page.text)


@requirement("inbox:all-threads", "inbox:layout", "notification:page")
async def test_questions_of_every_thread_and_owner_are_listed_danger_first_and_then_the_oldest() -> None:
    async with visit() as (found, browser):
        await found.warden.run_goal("think", wait_seconds=60)
        older = [(await found.ask(confirm(f"a{number}"))).suspension_id for number in range(PAGE_SIZE - 1)]
        other = await found.warden.execute_plan(plan(confirm("c")), principal="bob")
        older.append(other.suspensions[0].suspension_id)
        dangerous = (await found.ask()).suspension_id
        page = await browser.open("/inbox")
        rest = await browser.open(f"/inbox?after={older[-2]}")
        assert _questions(page) == [dangerous, *older[:-1]] and f"{PAGE_SIZE + 1} waiting" in page.words
        assert f"after={older[-2]}" in page.text and _questions(rest) == [older[-1]]
        assert "Notify me in this browser" in page.words and "Notifications need JavaScript" in page.words
        assert f"{PAGE_SIZE} others" in (await browser.open(f"/inbox/suspensions/{dangerous}")).words


@requirement("inbox:hostile")
async def test_hostile_text_can_start_no_line_no_element_and_no_field() -> None:
    nasty = "\n" * 5_000 + "\x1b[31m\u202e[Approve]\u200b\U000e0041</td><script>alert(1)</script>{{7*7}}"
    arguments: dict[str, JsonValue] = {"to": nasty, "body": nasty, "tags": {nasty: nasty}}
    async with visit(tools=[send]) as (found, browser):
        first = await found.ask(confirm("c<b>", nasty), goal=nasty)
        second = await found.ask(tool_step("s", "send", arguments, description=nasty[:19_000]))
        await browser.decide(first.suspension_id, "reject", reason=nasty[-1_000:])
        scribe = Scribe.on(found.warden.service.store, "e")
        version = ev.PlanVersion(name=nasty, digest="d")
        await scribe.write(ev.ExecutionCreated(goal=nasty, host=nasty, saved_plan=version))
        await scribe.write(ev.ExecutionFailed(code="x", message=nasty))
        paths = ["", "/history", "/plans", f"/review?id={second.suspension_id}", f"/suspensions/{first.suspension_id}"]
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


@requirement("inbox:unknown")
async def test_unknown_ids_and_questions_to_the_model_give_the_same_answer_and_missing_pages_an_error_page(
    tmp_path: Path,
) -> None:
    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    async with visit(store=store) as (found, browser):
        asked = await found.warden.run_goal("think", wait_seconds=60)
        other, shown = await found.ask(), await found.ask()
        # A row whose question no log has hides no other question.
        edit(path, "UPDATE suspensions SET suspension_id = 'x' WHERE suspension_id = ?", other.suspension_id)
        assert _questions(await browser.open("/inbox")) == [shown.suspension_id]
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
    await store.close()


@requirement("inbox:paged")
async def test_pages_are_read_with_a_bounded_number_of_store_calls_however_much_waits() -> None:
    store = CountingStore(MemoryStore())
    calls = store.calls
    async with visit(store=store) as (found, browser):
        for _ in range(PAGE_SIZE * 2 + 1):
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
            seen += _questions(page)
            onward = re.search(r'rel="next" href="([^"]+)"', page.text)
            where = onward[1] if onward else None
        assert len(seen) == len(set(seen)) == PAGE_SIZE * 2 + 1


@requirement("inbox:layout")
async def test_history_says_who_decided_what_and_never_calls_less_than_a_person_a_person() -> None:
    async with visit() as (found, browser):
        assert "No question has been decided yet" in (await browser.open("/inbox/history")).words
        await browser.decide((await found.ask()).suspension_id, "reject", reason="no need")
        await decide(found.warden, await found.ask(confirm("c")), authority=by("local", "client", "elicitation"))
        await found.warden.cancel_execution((await found.ask()).thread_id)
        words = (await browser.open("/inbox/history")).words
        verdicts = ("Withdrawn", "approved by local", "rejected by ann", "no need")
        places = [words.index(text) for text in verdicts]
        assert places == sorted(places) and "(a person" not in words[places[1] : places[2]]
        asked = await found.ask(tool_step("ask", "requestInput", {"message": "Where to?", "form": FORM}))
        form = (await browser.open_question(asked)).form("/decision")
        city = next(name for name in form.fields if name.startswith("arg."))
        await browser.submit(form, press="approve", **{city: "Bremen <b>"})
        for chosen in ({"row": ["0", "2"]}, {}):
            await browser.decide((await found.ask(LOOP)).suspension_id, "approve", **chosen)
        history = await browser.open("/inbox/history")
        assert '{"city": "Bremen <b>"}' in history.words and "<b>}" not in history.text
        assert "rows 1, 3 of 3, without row 2" in history.words and "all 3 rows" in history.words


async def test_lists_say_how_many_arguments_they_leave_out() -> None:
    @planwarden.tool
    async def many(a: int = 1, b: int = 1, c: int = 1, d: int = 1, e: int = 1) -> str:
        """Take a lot."""
        return "taken"

    async with visit(tools=[many]) as (found, browser):
        await browser.decide((await found.ask(tool_step("s", "many", {}))).suspension_id, "approve")
        assert "and 1 more argument " in (await browser.open("/inbox/history")).said


@requirement("inbox:live", "inbox:plans")
async def test_an_open_page_gets_news_when_there_are_some_and_nothing_before(tmp_path: Path) -> None:
    async with visit(store=MemoryStore(ManualClock()), settings=Settings(home=tmp_path)) as (found, browser):
        kit.save_plan(tmp_path, "plain", NOTE % "hi")
        asked = await found.ask(confirm("c"), goal="Clean")
        made = await add_schedule(found.warden.service.store, plan="plain")
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
        kit.save_plan(tmp_path, "another", NOTE % "hi")
        await browser.submit(pages[f"/inbox/schedules/{made.schedule_id}"].form("/run"))
        for path, words in news.items():
            fresh = await browser.refresh(pages[path])
            assert fresh.status == 200 and words in fresh.words and "<html" not in fresh.text, (path, fresh.words)


def _titles(page: Page) -> list[str]:
    return re.findall(r'<a class="open" href="[^"]+">(.*?)</a>', page.text)


def _rows(page: Page) -> list[str]:
    shown = re.findall(r'<li class="question" id="x-\w+">(.*?)</li>', page.text, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in shown]


@requirement("inbox:plans")
async def test_the_page_of_runs_says_what_ran_how_far_it_is_and_who_is_asked() -> None:
    async with visit() as (found, browser):
        assert "Nothing has run yet." in (await browser.open("/inbox/plans")).words
        await found.warden.execute_plan(plan(FIND), goal="Look around", wait_seconds=60)
        await found.warden.execute_plan(plan(tool_step("one", "broken", {})), wait_seconds=60)
        asked = await found.ask(FIND, {**ERASE, "dependencies": ["look"]}, goal="Clean <up>")
        page = await browser.open("/inbox/plans")
        waiting, failed, done = _rows(page)
        assert "Clean &lt;up&gt;" in waiting and "waits for a person 1 of 2 steps" in waiting
        assert f'href="/inbox/suspensions/{asked.suspension_id}">Answer its question</a>' in page.text
        assert "failed 0 of 1 step" in failed and _titles(page)[1].startswith("<q>")
        assert "Look around" in done and "completed 1 step" in done and "Answer" not in done
        assert re.search(r'href="/inbox/plans" aria-current="page">Runs', page.text)


@requirement("inbox:plans")
async def test_search_and_filters_find_runs_and_say_when_nothing_fits() -> None:
    async with visit() as (found, browser):
        await found.warden.execute_plan(plan(FIND), goal="Look around", wait_seconds=60)
        await found.ask(goal="Erase it")
        version = ev.PlanVersion(name="month & end", digest="d")
        created = ev.ExecutionCreated(goal="Report", host="Claude Code", saved_plan=version)
        await Scribe.on(found.warden.service.store, "saved").write(created)
        for query, expected in (
            ("q=AROUND", ["Look around"]),
            ("q=erase&state=waiting", ["Erase it"]),
            ("q=erase&state=completed", []),
            ("tool=find", ["Look around"]),
            ("host=Claude%20Code", ["Report"]),
            ("plan=month+%26+end", ["Report"]),
            ("plan=month", []),
            ("host=%00&tool=%0a&plan=%ff&q=%ff", []),
            ("q=" + "x" * 5_000, []),
        ):
            page = await browser.open(f"/inbox/plans?{query}")
            assert [title.removeprefix("<q>").removesuffix("</q>") for title in _titles(page)] == expected, query
            assert ("No run matches." in page.words) == (not expected)
        page = await browser.open("/inbox/plans?plan=month+%26+end&q=rep")
        form = page.form("/plans")
        assert form.fields == {"q": ["rep"], "state": [""], "tool": [""], "host": [""], "plan": ["month & end"]}
        assert "Runs of month & end" in page.words and "Claude Code" in page.words
        page = await browser.open("/inbox/plans?state=asleep")
        assert page.status == 422 and "choose one of running" in page.words


@requirement("inbox:plans", "inbox:paged")
async def test_pages_of_runs_follow_the_filter_and_no_log_is_read_for_them() -> None:
    store = CountingStore(MemoryStore())
    calls = store.calls
    async with visit(store=store) as (found, browser):
        for number in range(RUNS_PER_PAGE + 1):
            await found.warden.execute_plan(plan(ERASE), goal=f"Erase {number}", wait_seconds=60)
        await found.warden.execute_plan(plan(FIND), goal="Look around", wait_seconds=60)
        seen: list[str] = []
        where: str | None = "/inbox/plans?q=erase&state=waiting"
        while where is not None:
            calls.clear()
            page = await browser.open(where)
            assert sorted(calls) == ["list_executions", "list_hosts"], calls
            seen += _titles(page)
            is_first = "after=" not in where
            assert is_first or 'href="/inbox/plans?q=erase&amp;state=waiting&amp;">Newest' in page.text
            onward = re.search(r'rel="next" href="([^"]+)"', page.text)
            where = onward[1].replace("&amp;", "&") if onward else None
        assert seen == [f"<q>Erase {number}</q>" for number in reversed(range(RUNS_PER_PAGE + 1))]
        assert (await browser.open("/inbox/plans?after=forged")).status == 422


@requirement("gate:people", "inbox:paged", "inbox:hostile")
async def test_the_page_of_calls_has_each_call_through_a_gate_with_its_outcome_and_plans_leave_it_out() -> None:
    store = CountingStore(MemoryStore())
    async with visit(store=store) as (found, browser):
        assert "No call was asked about yet." in (await browser.open("/inbox/calls")).words
        await found.ask(goal="gate-")
        service = found.warden.service
        made = await call_through_gate(service, {"path": "/data/a", "text": "hi <b>\u202e" + "x" * 5_000, "old": None})
        await browser.decide(made.suspensions[0].suspension_id, "approve")
        await browser.decide(
            (await call_through_gate(service, {}, name="move_file")).suspensions[0].suspension_id, "reject", reason="no"
        )
        await call_through_gate(service, {"path": "/data/b"}, host="Codex <i>\u202e")
        rows = _rows(await browser.open("/inbox/calls"))
        assert len(rows) == 3 and "waits for a person" in rows[0] and "Codex &lt;i&gt;\\u202e" in rows[0]
        assert "files_move_file" in rows[1] and "rejected by ann" in rows[1] and "Result" not in rows[1]
        assert all(
            text in rows[2] for text in ("files_write_file", "completed", "server &#34;files&#34;", "Claude Code")
        )
        assert "hi &lt;b&gt;\\u202exxx" in rows[2] and len(rows[2]) < 2_000 and "old null" in rows[2]
        assert "approved by ann" in rows[2] and "Successfully wrote" in rows[2]
        for query, count in (
            ("server=files", 3),
            ("server=file", 0),
            ("server=files&tool=files_move_file&state=rejected", 1),
            ("host=Claude+Code", 2),
            ("state=completed&q=write_file", 1),
        ):
            assert len(_rows(await browser.open(f"/inbox/calls?{query}"))) == count, query
        assert _titles(await browser.open("/inbox/plans")) == ["<q>gate-</q>"]
        for number in range(RUNS_PER_PAGE):
            await call_through_gate(service, {"path": str(number)})
        store.calls.clear()
        page = await browser.open("/inbox/calls?server=files")
        assert len(_rows(page)) == RUNS_PER_PAGE and store.calls.count("log") <= RUNS_PER_PAGE
        assert 'href="/inbox/calls?server=files&amp;after=' in page.text


@requirement("inbox:plans")
async def test_what_schedules_start_next_stands_above_the_first_page() -> None:
    async with visit(store=MemoryStore(ManualClock())) as (found, browser):
        store = found.warden.service.store
        for number in range(5):
            await add_schedule(store, f"{50 - number} * * * *", f"s{number}", plan=f"plan {number} <b>")
        await browser.submit((await browser.open("/inbox/schedules/s1")).form("/pause"))
        page = await browser.open("/inbox/plans")
        assert re.findall(r"plan (\d) &lt;b&gt;", page.text) == ["4", "3", "2"]
        assert 'href="/inbox/plans?plan=plan+4+%3Cb%3E"' in page.text
        assert "Scheduled next" not in (await browser.open("/inbox/plans?state=failed")).words
