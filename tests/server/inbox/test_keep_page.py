"""A person keeps the plan of a finished run as a saved plan, from its page: the file that was shown, no other."""

import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.core.plan import Plan, plan_to_json
from planwarden.storage.location import StoreLocation
from tests.kit import Ledger, Settings, plan, requirement, tool_step, warden
from tests.server.inbox.support import Browser, Form, Inbox, Page, open_inbox, visit

pytestmark = pytest.mark.anyio

GOAL = "Remind Ada about invoice 30\nwith care"
NOTE = tool_step("tell", "note", {"text": "Ada"})
ADD = tool_step("add", "find", {"topic": "invoice", "limit": 30})


@asynccontextmanager
async def _open(home: Path) -> AsyncGenerator[tuple[Inbox, Browser]]:
    async with visit(settings=Settings(home=home)) as (found, browser):
        yield found, browser


async def _run(found: Inbox, *steps: dict[str, JsonValue], goal: str | None = GOAL) -> planwarden.Execution:
    return await found.warden.execute_plan(plan(*(steps or (NOTE, ADD))), goal=goal, wait_seconds=60)


async def _form(browser: Browser, run: planwarden.Execution) -> tuple[Page, Form]:
    page = await browser.open(f"/inbox/executions/{run.execution_id}/keep")
    return page, page.form("/keep/write")


def _files(home: Path) -> list[str]:
    folder = home / "plans"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@requirement("inbox:keep")
async def test_a_finished_run_becomes_a_saved_plan_that_runs_with_other_inputs(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        run = await _run(found)
        shown = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert f'href="/inbox/executions/{run.execution_id}/keep"' in shown.text
        before = plan_to_json((await found.warden.service.engine.find(run.execution_id)).plan or Plan(steps=()))
        page, form = await _form(browser, run)
        assert form.fields["title"] == ["Remind Ada about invoice 30"]
        assert form.fields["name"] == ["remind-ada-about-invoice-30"]
        assert form.fields["input.0"] == ["yes"] and '"Ada" in step tell' in page.said
        kept = await browser.submit(form, press="keep")
        assert (kept.status, kept.headers["location"]) == (303, "/inbox/saved/remind-ada-about-invoice-30")
        path = tmp_path / "plans" / "remind-ada-about-invoice-30.yaml"
        text = path.read_text()
        assert text.startswith(f"# Kept in the inbox by ann from thread {run.thread_id}.\n")
        # The plan of the run itself is as it was.
        after = plan_to_json((await found.warden.service.engine.find(run.execution_id)).plan or Plan(steps=()))
        assert after == before and "$from" not in str(after)
        # What was shown is what was written.
        assert all(line in page.words for line in text.splitlines())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        inputs: dict[str, JsonValue] = {"text": "Bob", "limit": 2}
        again = await found.warden.run_plan("remind-ada-about-invoice-30", inputs, wait_seconds=60)
        assert again.status == "completed" and again.saved_plan is not None
        assert "Remind Ada about invoice 30" in (await browser.open(kept.headers["location"])).words


@requirement("inbox:keep")
async def test_a_form_that_describes_another_file_than_the_page_showed_writes_nothing_and_shows_it(
    tmp_path: Path,
) -> None:
    async with _open(tmp_path) as (found, browser):
        _, form = await _form(browser, await _run(found))
        other = await browser.submit(form, press="keep", title="Remind somebody", **{"input.0": None})
        assert other.status == 409 and "nothing was written" in other.words and _files(tmp_path) == []
        assert 'title: "Remind somebody"' in other.words or "title: Remind somebody" in other.words
        assert "pointer: /text" not in other.words and "input.0" not in other.form("/keep/write").fields
        seen = await browser.submit(other.form("/keep/write"), press="preview", name="reminder")
        assert seen.status == 200 and _files(tmp_path) == []
        assert (await browser.submit(seen.form("/keep/write"), press="keep")).status == 303
        assert _files(tmp_path) == ["reminder.yaml"]


@requirement("inbox:keep")
async def test_a_name_that_is_taken_or_unusable_is_refused_and_the_other_plan_stays(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    taken = tmp_path / "plans" / "taken.json"
    taken.write_text("{}")
    async with _open(tmp_path) as (found, browser):
        _, form = await _form(browser, await _run(found))
        for name in ("taken", "", "a b", "../x", "x" * 65, "é"):
            for press in ("keep", "preview"):
                refused = await browser.submit(form, press=press, name=name)
                assert refused.status == 422 and 'aria-invalid="true"' in refused.text, name
        assert _files(tmp_path) == ["taken.json"] and taken.read_text() == "{}"


@requirement("inbox:keep")
async def test_the_same_form_twice_at_once_and_later_keeps_one_plan(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        run = await _run(found)
        _, form = await _form(browser, run)
        answers: list[int] = []

        async def send() -> None:
            answers.append((await browser.submit(form, press="keep")).status)

        async with anyio.create_task_group() as tabs:
            tabs.start_soon(send)
            tabs.start_soon(send)
        await send()
        assert answers == [303] * 3 and len(_files(tmp_path)) == 1
        # Another run may not take the name.
        _, other = await _form(browser, await _run(found, ADD))
        assert (await browser.submit(other, press="keep")).status == 422


@requirement("inbox:keep")
async def test_what_cannot_be_kept_is_not_offered_and_says_why(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        waiting = (await found.ask()).execution_id
        assert "/keep" not in (await browser.open(f"/inbox/executions/{waiting}")).text
        refused = await browser.open(f"/inbox/executions/{waiting}/keep")
        assert refused.status == 422 and "has no finished run" in refused.words
        assert (await browser.open("/inbox/executions/none/keep")).status == 404
        assert _files(tmp_path) == []


@requirement("inbox:keep")
async def test_where_many_processes_share_a_database_the_page_says_what_to_run(tmp_path: Path) -> None:
    shared = StoreLocation(url="postgresql://planwarden@db/planwarden")
    async with warden(Ledger(), settings=Settings(home=tmp_path)) as made:
        found = open_inbox(made, home=tmp_path, store=shared)
        browser = await found.log_in()
        run = await _run(found)
        command = f"planwarden plans keep {run.thread_id} NAME"
        shown = await browser.open(f"/inbox/executions/{run.execution_id}")
        assert command in shown.words and "/keep" not in shown.text
        refused = await browser.open(f"/inbox/executions/{run.execution_id}/keep")
        assert refused.status == 422 and command in refused.words and _files(tmp_path) == []


async def test_hostile_words_of_a_goal_stay_words_in_the_page_and_the_file(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        run = await _run(found, goal="<b>x</b>: \u202e{{7*7}} # - 'q' Ada\n# second")
        page, form = await _form(browser, run)
        assert "<b>x</b>" not in page.text and "{{7*7}}" in page.words
        kept = await browser.submit(form, press="keep", name="odd")
        assert kept.status == 303
        [saved] = await found.warden.plans()
        assert saved.title is not None and saved.title.startswith("<b>x</b>: ")
