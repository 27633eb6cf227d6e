"""The page of one plan: what it is, what happened, and what a person does: go on, change inputs, keep the plan."""

import re
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.inbox.pages import execution as execution_page
from planwarden.server.views import plan_graph
from planwarden.server.views.fields import derive_key
from planwarden.storage.location import StoreLocation
from tests.kit import Execution, Ledger, Settings, confirm, plan, requirement, says, tool_step, warden
from tests.server.inbox.support import Browser, Form, Inbox, Page, inbox, open_inbox, visit

FIND = tool_step("find", "find", {"topic": "x"})
NOTE = tool_step("note", "note", {"text": "x"})
ERASE = tool_step("erase", "erase", {"ids": [1]}, dependencies=["find"])


async def _open(browser: Browser, execution_id: str) -> Page:
    return await browser.open(f"/inbox/executions/{execution_id}")


@asynccontextmanager
async def _visit_run(
    *steps: dict[str, JsonValue],
    approved: bool = False,
    schema: JsonValue = None,
    inputs: dict[str, JsonValue] | None = None,
) -> AsyncGenerator[tuple[Inbox, Browser, Execution]]:
    async with visit() as (found, browser):
        document = {**plan(*steps), **({} if schema is None else {"inputs": schema})}
        run = await found.warden.execute_plan(document, inputs=inputs)
        await browser.decide(run.suspensions[0].suspension_id, "approve" if approved else "reject")
        yield found, browser, run


async def _wait(found: Inbox, execution_id: str) -> None:
    await found.warden.service.wait(await found.warden.service.find(execution_id), 60)


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


async def test_the_page_and_the_list_count_the_same_steps_as_done() -> None:
    async with _visit_run(FIND, ERASE, {**NOTE, "dependencies": ["erase"]}) as (_, browser, asked):
        for path in (f"/inbox/executions/{asked.execution_id}", "/inbox/plans"):
            assert "1 of 3 steps" in (await browser.open(path)).words, path


@requirement("console:plan")
async def test_a_large_result_is_a_file_that_no_browser_runs() -> None:
    large, small = ("<script>alert(1)</script>" * times for times in (20_000, 1_000))

    @planwarden.tool(risk="read", effect="read")
    async def fetch(is_large: bool) -> JsonValue:
        """Fetch a page."""
        return large if is_large else small

    async with inbox(tools=[fetch]) as found:
        steps = [tool_step(name, "fetch", {"is_large": is_large}) for name, is_large in (("a", True), ("b", False))]
        done = await found.warden.execute_plan(plan(*steps), wait_seconds=60)
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


@requirement("console:steer")
async def test_a_person_cancels_a_plan() -> None:
    async with visit() as (found, browser):
        asked = await found.ask(FIND, ERASE)
        page = await _open(browser, asked.execution_id)
        assert (await browser.submit(page.form("/cancel"))).run_id == asked.execution_id
        stored = await found.current_execution(asked)
        assert stored.status == "cancelled" and found.ledger.lines == []
        shown = (await _open(browser, asked.execution_id)).words
        assert "cancelled in the inbox by ann" in shown and "2 steps: 1 done, 1 skipped" in shown
        assert "waits" not in shown and [step.status for step in stored.steps] == ["completed", "skipped"]


@pytest.mark.parametrize("words", ["All is done. " * 60, "All is done. " * 7_000, "完了" * 49_000])
async def test_the_final_text_of_the_model_is_shown_whole_line_by_line(words: str) -> None:
    text = f"{words}\nThe end."
    async with warden(Ledger(), script=[says(text, "synthesize")]) as made:
        options: dict[str, JsonValue] = {"synthesize": True}
        done = await made.execute_plan(plan(FIND), options=options, wait_seconds=60)
        browser = await open_inbox(made).log_in()
        assert '<span class="line">The end.</span>' in (await _open(browser, done.execution_id)).text


async def test_a_full_page_marks_each_text_of_a_model_that_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_page, "MAX_PAGE_BYTES", 5)
    async with warden(Ledger(), script=[says("All is done.")]) as made:
        writes: dict[str, JsonValue] = {"id": "write", "description": "Say what was done"}
        done = await made.execute_plan(plan(FIND, writes), wait_seconds=60)
        page = await _open(await open_inbox(made).log_in(), done.execution_id)
        assert 'The agent says (unverified)"…"' in page.said and "All is done" not in page.words


async def test_a_title_from_right_to_left_is_whole_in_the_name_of_the_page_and_a_long_detail_is_closed() -> None:
    async with visit() as (found, browser):
        goal = "\u05d0" * 100
        asked = await found.ask(goal=goal)
        await found.warden.cancel_execution(asked.thread_id, reason="\u05d0" * 300)
        page = await _open(browser, asked.execution_id)
        assert f"<title>\u2067{goal}\u2069 · planwarden</title>" in page.text
        assert "\u05d0\u2069…" in page.words and r"\u2067" not in page.words


async def test_the_list_of_steps_says_how_many_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_graph, "MAX_ROWS", 1)
    async with visit() as (found, browser):
        page = await _open(browser, (await found.ask(FIND, NOTE, ERASE)).execution_id)
        assert "and 2 more steps; planwarden show" in page.said.partition("What it used")[0]


@requirement("console:steer")
async def test_a_retry_that_is_sent_twice_or_from_a_page_of_before_goes_on_once() -> None:
    async with _visit_run(NOTE, {**ERASE, "dependencies": ["note"]}) as (found, browser, asked):
        page = await _open(browser, asked.execution_id)
        for step in ("", None):
            refused = await browser.submit(page.form("/fork"), **{"from": step})
            assert refused.status == 422 and "'fromStep' is empty" in refused.words, "no fork turns into a retry"
        form, other = [(await _open(browser, asked.execution_id)).form("/retry") for _ in range(2)]
        first, second = (await browser.submit(form)).run_id, (await browser.submit(form)).run_id
        assert first == second != asked.execution_id
        page = await _open(browser, first)
        assert "taken over from an earlier run" in page.words and "this run goes on from it" in page.words
        assert found.ledger.lines == ["note x"]
        old = await _open(browser, asked.execution_id)
        assert "ended: rejected by ann (human, inbox)" in old.words
        assert not any(sent.action.endswith("/retry") for sent in old.forms)
        await found.warden.service.cancel(await found.warden.service.find(first), None)
        refused = await browser.submit(other)
        assert refused.status == 422 and "a later run of this thread exists" in refused.words.lower()
        assert "ended: rejected by ann" in refused.words
        assert f'<a href="/inbox/executions/{first}">Open the later run</a>' in refused.text
        assert (await browser.submit(form)).run_id == first


@requirement("console:steer")
async def test_a_fork_runs_from_the_chosen_step_on_again_and_a_rehearsal_changes_nothing() -> None:
    async with _visit_run(NOTE, confirm("ask", dependencies=["note"]), approved=True) as (found, browser, asked):
        page = await _open(browser, asked.execution_id)
        rehearsed = (await browser.submit(page.form("/rehearse"))).run_id
        await _wait(found, rehearsed)
        assert "was rehearsed: nothing was changed" in (await _open(browser, rehearsed)).words
        assert found.ledger.lines == ["note x"]
        starter = (await found.warden.service.find(rehearsed)).starter
        assert starter is not None and (starter.principal, starter.channel) == ("ann", "inbox")
        await _wait(found, (await browser.submit(page.form("/fork"), **{"from": "note"})).run_id)
        assert found.ledger.lines == ["note x", "note x"]
        refused = await browser.submit(page.form("/fork"), **{"from": "nowhere", "key": "another-key"})
        assert refused.status == 422 and found.ledger.lines == ["note x", "note x"]


def _take(name: str) -> JsonValue:
    return {"$from": "inputs", "pointer": f"/{name}"}


INPUTS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"topic": {"type": "string"}, "ids": {"type": "array"}, "limit": {"type": "integer", "default": 3}},
    "required": ["topic"],
    "additionalProperties": {"type": "integer"},
}
GIVEN: dict[str, JsonValue] = {"topic": "old", "ids": [7], "more": 1}
TOPIC, IDS, LIMIT = (f"arg.{derive_key(name)}" for name in ("topic", "ids", "limit"))


@asynccontextmanager
async def _visit_inputs(*, approved: bool) -> AsyncGenerator[tuple[Inbox, Browser, Execution, Form]]:
    steps = (
        tool_step("find", "find", {"topic": _take("topic"), "limit": _take("limit")}),
        tool_step("erase", "erase", {"ids": _take("ids")}),
    )
    async with _visit_run(*steps, approved=approved, schema=INPUTS, inputs=GIVEN) as (found, browser, run):
        page = await browser.open(f"/inbox/executions/{run.execution_id}/inputs")
        assert page.status == 200, page.words
        yield found, browser, run, page.form("/inputs/run")


@requirement("console:other-inputs")
async def test_a_retry_with_other_inputs_goes_on_with_them_and_keeps_what_was_not_changed() -> None:
    async with _visit_inputs(approved=False) as (found, browser, run, form):
        assert "Run again with other inputs" in (await _open(browser, run.execution_id)).words
        fields = form.fields
        assert (fields[TOPIC], fields[LIMIT], fields["from"]) == (["old"], ["3"], [""]) and "7" in fields[IDS][0]
        assert '"more": 1' in fields["more"][0]
        changes: dict[str, str | list[str] | None] = {IDS: "[8]", "more": '{"more": 2}'}
        answers = [await browser.submit(form, press="run", **changes) for _ in range(2)]
        assert answers[0].run_id == answers[1].run_id != run.execution_id
        retried = await found.warden.get_execution(run.thread_id)
        assert retried.execution_id == answers[0].run_id and retried.status == "suspended"
        state = await found.warden.service.find(retried.execution_id)
        assert state.inputs == {"topic": "old", "ids": [8], "limit": 3, "more": 2}
        assert state.starter is not None and (state.starter.principal, state.starter.channel) == ("ann", "inbox")


@requirement("console:other-inputs")
async def test_optional_inputs_can_be_taken_back_when_a_run_is_run_again() -> None:
    kinds: dict[str, JsonValue] = {
        "topic": {"type": "string"},
        "n": {"type": "integer"},
        "mood": {"enum": ["calm", "wild"]},
        "note": {"type": "string"},
    }
    schema: dict[str, JsonValue] = {"type": "object", "properties": kinds, "additionalProperties": {"type": "integer"}}
    given: dict[str, JsonValue] = {"topic": "old", "n": 7, "mood": "calm", "note": "x", "more": 1}
    find = tool_step("find", "find", {"topic": _take("topic")})
    async with _visit_run(find, ERASE, schema=schema, inputs=given) as (found, browser, run):
        page = await browser.open(f"/inbox/executions/{run.execution_id}/inputs")
        key = {name: f"arg.{derive_key(name)}" for name in kinds}
        changes = {key["n"]: "", key["mood"]: "", f"omit.{key['note']}": "yes", "more": ""}
        assert page.text.count("leave this out") == 2 and "not set" in page.words, page.words
        answer = await browser.submit(page.form("/inputs/run"), press="run", **changes)
        assert (await found.warden.service.find(answer.run_id)).inputs == {"topic": "old"}


@requirement("console:other-inputs")
async def test_values_that_do_not_fit_are_shown_at_their_fields_and_enter_starts_nothing() -> None:
    async with _visit_inputs(approved=False) as (found, browser, run, form):
        checked = await browser.submit(form, press="check", **{TOPIC: "new"})
        assert checked.status == 200 and "nothing was started" in checked.words
        assert checked.form("/inputs/run").fields[TOPIC] == ["new"]
        for limit in ("many", "2.5"):
            answer = await browser.submit(form, press="run", **{LIMIT: limit})
            assert answer.status == 422 and 'aria-invalid="true"' in answer.text
        assert (await browser.submit(form, press="run", key="x")).status == 422
        assert (await browser.submit(form, press="run", **{"from": "nowhere"})).status == 422
        assert (await browser.submit(form, decision="start")).status == 422
        # A later run went on in the meantime: what was written stays.
        later = await found.warden.retry(run.thread_id)
        answer = await browser.submit(form, press="run", **{TOPIC: "a long new topic"})
        assert answer.status == 422 and "nothing was started" in answer.words
        assert f"/inbox/executions/{later.execution_id}" in answer.text
        kept = answer.form("/inputs/run")
        assert kept.fields[TOPIC] == ["a long new topic"] and "from" not in kept.fields
        assert (await found.warden.get_execution(run.thread_id)).execution_id == later.execution_id


@requirement("console:other-inputs")
async def test_a_run_that_cannot_go_on_or_takes_no_inputs_offers_no_form() -> None:
    async with _visit_inputs(approved=False) as (found, browser, run, _):
        waiting = (await found.ask()).execution_id
        plain = await found.warden.execute_plan(plan(NOTE), wait_seconds=60)
        await found.warden.retry(run.thread_id)
        for execution_id in (waiting, plain.execution_id, run.execution_id):
            assert "Run again with" not in (await _open(browser, execution_id)).words
            refused = await browser.open(f"/inbox/executions/{execution_id}/inputs")
            assert refused.status == 422 and "cannot be run again with other inputs" in refused.words


GOAL = "Remind Ada about invoice 30\nwith care"
TELL = tool_step("tell", "note", {"text": "Ada"})
ADD = tool_step("add", "find", {"topic": "invoice", "limit": 30})


@asynccontextmanager
async def _visit_keeping(home: Path, goal: str = GOAL) -> AsyncGenerator[tuple[Inbox, Browser, Execution, Page]]:
    async with visit(settings=Settings(home=home)) as (found, browser):
        run = await found.warden.execute_plan(plan(TELL, ADD), goal=goal, wait_seconds=60)
        yield found, browser, run, await browser.open(f"/inbox/executions/{run.execution_id}/keep")


def _files(home: Path) -> list[str]:
    folder = home / "plans"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@requirement("inbox:keep")
async def test_a_finished_run_becomes_a_saved_plan_that_runs_with_other_inputs(tmp_path: Path) -> None:
    async with _visit_keeping(tmp_path) as (found, browser, run, page):
        assert f'href="/inbox/executions/{run.execution_id}/keep"' in (await _open(browser, run.execution_id)).text
        form = page.form("/keep/write")
        assert form.fields["title"] == ["Remind Ada about invoice 30"]
        assert form.fields["name"] == ["remind-ada-about-invoice-30"]
        assert form.fields["input.0"] == ["yes"] and '"Ada" in step tell' in page.said
        kept = await browser.submit(form, press="keep")
        assert (kept.status, kept.headers["location"]) == (303, "/inbox/saved/remind-ada-about-invoice-30")
        path = tmp_path / "plans" / "remind-ada-about-invoice-30.yaml"
        text = path.read_text()
        assert text.startswith(f"# Kept in the inbox by ann from thread {run.thread_id}.\n")
        # What was shown is what was written.
        assert all(line in page.words for line in text.splitlines())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        inputs: dict[str, JsonValue] = {"text": "Bob", "limit": 2}
        again = await found.warden.run_plan("remind-ada-about-invoice-30", inputs, wait_seconds=60)
        assert again.status == "completed" and again.saved_plan is not None


@requirement("inbox:keep")
async def test_a_form_for_another_file_than_the_page_showed_writes_nothing_and_shows_it(tmp_path: Path) -> None:
    async with _visit_keeping(tmp_path) as (_, browser, _, page):
        other = await browser.submit(
            page.form("/keep/write"), press="keep", title="Remind somebody", **{"input.0": None}
        )
        assert other.status == 409 and "nothing was written" in other.words and _files(tmp_path) == []
        assert "Remind somebody" in other.words
        assert "pointer: /text" not in other.words and "input.0" not in other.form("/keep/write").fields
        long = await browser.submit(other.form("/keep/write"), press="keep", title="x" * 5_000)
        assert long.status == 422 and "The title is longer than " in long.words and _files(tmp_path) == []
        neither = await browser.submit(other.form("/keep/write"), decision="write")
        assert neither.status == 422 and _files(tmp_path) == []
        for name in ("", "../x", "x" * 65):
            refused = await browser.submit(other.form("/keep/write"), press="keep", name=name)
            assert refused.status == 422 and 'aria-invalid="true"' in refused.text, name
        seen = await browser.submit(other.form("/keep/write"), press="preview", name="reminder")
        assert seen.status == 200 and _files(tmp_path) == []
        assert (await browser.submit(seen.form("/keep/write"), press="keep")).status == 303
        kept = (tmp_path / "plans" / "reminder.yaml").read_text()
        again = await browser.submit(page.form("/keep/write"), press="preview", name="reminder")
        # The name is taken now.
        assert again.status == 422 and _files(tmp_path) == ["reminder.yaml"]
        assert (tmp_path / "plans" / "reminder.yaml").read_text() == kept


@requirement("inbox:keep")
async def test_the_same_form_at_once_and_later_keeps_one_plan_and_hostile_words_stay_words(tmp_path: Path) -> None:
    goal = "<b>x</b>: \u202e{{7*7}} # - 'q' Ada\n# second"
    async with _visit_keeping(tmp_path, goal) as (found, browser, _, page):
        assert "<b>x</b>" not in page.text and "{{7*7}}" in page.words
        answers: list[int] = []

        async def send() -> None:
            answers.append((await browser.submit(page.form("/keep/write"), press="keep", name="odd")).status)

        async with anyio.create_task_group() as tabs:
            tabs.start_soon(send)
            tabs.start_soon(send)
        await send()
        assert answers == [303] * 3
        [saved] = await found.warden.plans()
        assert saved.title is not None and saved.title.startswith("<b>x</b>: ")


@requirement("inbox:keep")
async def test_what_cannot_be_kept_is_not_offered_and_says_why(tmp_path: Path) -> None:
    async with visit(settings=Settings(home=tmp_path)) as (found, browser):
        waiting = (await found.ask()).execution_id
        assert "/keep" not in (await _open(browser, waiting)).text
        refused = await browser.open(f"/inbox/executions/{waiting}/keep")
        assert refused.status == 422 and "has no finished run" in refused.words
        assert (await browser.open("/inbox/executions/none/keep")).status == 404
    # Where many processes share a database, the page says what to run.
    shared = StoreLocation(url="postgresql://planwarden@db/planwarden")
    async with warden(Ledger(), settings=Settings(home=tmp_path)) as made:
        browser = await open_inbox(made, home=tmp_path, store=shared).log_in()
        run = await made.execute_plan(plan(TELL, ADD), goal=GOAL, wait_seconds=60)
        command = f"planwarden plans keep {run.thread_id} NAME"
        shown = await _open(browser, run.execution_id)
        assert command in shown.words and "/keep" not in shown.text
        refused = await browser.open(f"/inbox/executions/{run.execution_id}/keep")
        assert refused.status == 422 and command in refused.words
    assert _files(tmp_path) == []
