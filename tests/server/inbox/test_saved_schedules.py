"""Schedules on pages: added, paused, resumed, run and removed there, each with what it did; and what each tick did."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

import planwarden
from planwarden.server.inbox.pages.saved_plan_forms import SHOWN_SCHEDULES as SHOWN_ON_PLAN
from planwarden.server.inbox.pages.saved_plans import PAGE_SIZE, SHOWN_SCHEDULES
from planwarden.storage.schedules import PlanSchedule, ScheduleStore, TickRecord
from tests.kit import ManualClock, MemoryStore, PausingTool, acting, requirement, save_plan
from tests.server.inbox.support import Browser, Form, Inbox, Page
from tests.server.inbox.test_saved_plans import NOTE, Opened, field, opened
from tests.server.schedules.support import ADDED, add_schedule

SLOW = "todoList: [{id: a, description: x, toolCalls: [{toolName: gate}]}]"


def _open(home: Path, *tools: object, clock: ManualClock | None = None) -> AbstractAsyncContextManager[Opened]:
    # A clock that stands still: the ticker of the warden finds nothing to do that a test does not want.
    store = MemoryStore(clock or ManualClock())
    return opened(home, *tools, store=store, plain=NOTE % "hi", slow=SLOW)


async def list_stored(found: Inbox) -> tuple[PlanSchedule, ...]:
    return await ScheduleStore(found.warden.service.store).all()


async def fill(browser: Browser, name: str = "remind", **fields: str) -> Form:
    """The form that adds a schedule, filled in for Mondays at nine."""
    form = (await browser.open(f"/inbox/saved/{name}/schedule")).form("/add")
    form.fields |= {"cron": ["0 9 * * 1"], "timezone": ["Europe/Berlin"]}
    form.fields |= {key: [text] for key, text in fields.items()}
    return form


async def press(browser: Browser, schedule_id: str, button: str) -> Page:
    """Opens the page of the schedule, presses a button, and follows to the page that says what it did."""
    page = await browser.open(f"/inbox/schedules/{schedule_id}")
    answer = await browser.submit(page.form(f"/{button}"))
    return answer if answer.status != 303 else await browser.open(answer.headers["location"])


async def read_audit(found: Inbox) -> list[tuple[str, object, object]]:
    rows = await found.warden.service.store.audit_rows()
    return [
        (row.entry.kind, row.entry.facts["principal"], row.entry.facts["channel"])
        for row in rows
        if row.entry.kind.startswith("schedule_") and "principal" in row.entry.facts
    ]


@requirement("saved:schedules")
async def test_a_schedule_is_added_paused_resumed_and_removed_by_buttons_that_say_what_they_did(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        form = await fill(browser, **{field("customer"): "Ada"})
        shown = await browser.submit(form, press="times")
        assert "It would start at" in shown.words and "Mon 20" in shown.words and " 09:00 CE" in shown.words
        assert shown.form("/add").fields["cron"] == ["0 9 * * 1"] and await list_stored(found) == ()
        answer = await browser.submit(shown.form("/add"), press="add")
        assert answer.status == 303, answer.words
        [stored] = await list_stored(found)
        assert (stored.plan, stored.cron, stored.timezone) == ("remind", "0 9 * * 1", "Europe/Berlin")
        assert (stored.inputs, stored.owner, stored.created_by) == ({"customer": "Ada", "times": 1}, "local", "ann")
        page = await browser.open(answer.headers["location"])
        assert "Added: it starts the plan" in page.words and '"Ada"' in page.words and "added by ann" in page.words
        assert 'class="exact local" datetime="' in page.text and " 09:00 CE" in page.words
        assert "Paused: it starts nothing" in (await press(browser, stored.schedule_id, "pause")).words
        assert (await list_stored(found))[0].paused_at is not None
        assert "paused" in (await browser.open("/inbox/saved")).words
        assert "Resumed: it ticks again" in (await press(browser, stored.schedule_id, "resume")).words
        assert (await list_stored(found))[0].paused_at is None
        assert "The schedule is removed" in (await press(browser, stored.schedule_id, "remove")).words
        assert await list_stored(found) == ()
        kinds = ("schedule_added", "schedule_paused", "schedule_resumed", "schedule_removed")
        assert await read_audit(found) == [(kind, "ann", "inbox") for kind in kinds]


@requirement("saved:schedules", "saved:once")
async def test_run_now_pressed_twice_starts_one_run_and_links_to_what_it_did(tmp_path: Path) -> None:
    clock = ManualClock()
    async with _open(tmp_path, clock=clock) as (found, browser):
        made = await add_schedule(found.warden.service.store, plan="plain")
        form = (await browser.open(f"/inbox/schedules/{made.schedule_id}")).form("/run")
        answer = await browser.submit(form)
        assert "Started: it" in (await browser.open(answer.headers["location"])).words
        [record] = (await list_stored(found))[0].recent
        service = found.warden.service
        await service.wait(await service.find(record.execution_id or ""), 60)
        for path in (f"/inbox/schedules/{made.schedule_id}", "/inbox/saved", "/inbox/saved/plain"):
            shown = await browser.open(path)
            assert "completed" in shown.words and f"/inbox/executions/{record.execution_id}" in shown.text
        assert await read_audit(found) == [("schedule_run", "ann", "inbox")]
        clock.advance(2)
        again = await browser.submit(form)
        assert again.status == 409 and "changed since you looked" in again.words
        assert found.ledger.lines == ["note hi"]
        assert (await browser.submit(again.form("/run"))).status == 303
        assert len((await list_stored(found))[0].recent) == 2
        for wrong in ("", "x", "9" * 30, "١"):
            assert (await browser.submit(form, version=wrong)).status == 422


async def test_a_run_that_a_button_of_a_schedule_started_and_that_failed_is_never_green(tmp_path: Path) -> None:
    @planwarden.tool(risk="read", effect="read")
    async def print_out() -> str:
        raise planwarden.ToolError("out of paper")

    async with _open(tmp_path, print_out) as (found, browser):
        save_plan(tmp_path, "print", "todoList: [{id: a, description: x, toolCalls: [{toolName: print_out}]}]")
        made = await add_schedule(found.warden.service.store, plan="print")
        answer = await browser.submit((await browser.open(f"/inbox/schedules/{made.schedule_id}")).form("/run"))
        service = found.warden.service
        [record] = (await list_stored(found))[0].recent
        await service.wait(await service.find(record.execution_id or ""), 60)
        page = await browser.open(answer.headers["location"])
        assert '<p class="remark bad" role="status">Started: it failed.</p>' in page.text, page.text


@requirement("approval:starter")
@pytest.mark.parametrize("added_by", ["ann", "bob"])
async def test_who_started_a_plan_by_its_own_page_or_its_schedules_cannot_approve_its_critical_calls(
    tmp_path: Path, added_by: str
) -> None:
    lines: list[str] = []
    async with _open(tmp_path, acting("wipe", lines, "critical")) as (found, browser):
        save_plan(tmp_path, "plain", "todoList: [{id: a, description: x, toolCalls: [{toolName: wipe}]}]")
        store = found.warden.service.store
        made = await add_schedule(store, plan="plain", created_by=added_by)
        await press(browser, made.schedule_id, "run")
        started = await browser.submit((await browser.open("/inbox/saved/plain")).form("/start"), press="start")
        assert started.status == 303
        service = found.warden.service
        for header in await store.executions(None, 10):
            await service.wait(await service.find(header.execution_id), 60)
        rows = (await store.suspensions(addressee="human", limit=10)).rows
        assert len(rows) == 2
        carol = await found.log_in("carol")
        scheduled = {record.execution_id for record in (await list_stored(found))[0].recent}
        bob = await found.log_in("bob")
        refused = [(browser, row) for row in rows]
        # Who added the schedule chose the inputs of the run, also if another person asked for it.
        refused += [(bob, row) for row in rows if row.execution_id in scheduled and added_by == "bob"]
        for person, row in refused:
            form = (await person.open_question(row)).form("/decision")
            assert ("decision", "approve", True) not in form.buttons
            form.fields["decision"] = ["approve"]
            assert (await person.send(form.action, form.fields)).status == 409 and lines == []
        assert (await carol.decide(rows[0].suspension_id, "approve")).status == 303
        await service.wait(await service.find(rows[0].execution_id), 60)
        assert lines == ["wipe"]


async def test_run_now_says_why_it_started_nothing(tmp_path: Path) -> None:
    gate = PausingTool()
    async with _open(tmp_path, gate.tool()) as (found, browser):
        store = found.warden.service.store
        skips = await add_schedule(store, plan="slow", schedule_id="s1")
        waits = await add_schedule(store, plan="slow", schedule_id="s2", overlap="queue")
        gone = await add_schedule(store, plan="gone", schedule_id="s3")
        for made in (skips, waits):
            await press(browser, made.schedule_id, "run")
        page = await press(browser, skips.schedule_id, "run")
        assert "Nothing was started: the last run" in page.words and "skipped" in page.words
        assert "this one starts after it" in (await press(browser, waits.schedule_id, "run")).words
        refused = await press(browser, gone.schedule_id, "run")
        assert "Nothing was started: unknown_plan" in refused.words and "did not start" in refused.words
        for path in ("/inbox/saved", "/inbox/saved/slow"):
            listed = (await browser.open(path)).words
            assert "skipped" in listed and "running" in listed
        assert "Schedules without a plan" in (await browser.open("/inbox/saved")).words
        gate.opened.set()


@requirement("saved:once")
async def test_a_form_that_is_sent_twice_adds_one_schedule(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        form = await fill(browser, "plain")

        async def send() -> None:
            assert (await browser.submit(form, press="add")).status == 303

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(send)
        save_plan(tmp_path, "plain", NOTE % "changed")
        await send()
        assert len(await list_stored(found)) == 1 and len(await read_audit(found)) == 1
        form.fields["cron"] = ["0 8 * * 1"]
        form.fields["digest"] = (await fill(browser, "plain")).fields["digest"]
        await send()
        assert len(await list_stored(found)) == 2


@requirement("saved:faults")
async def test_a_schedule_that_cannot_be_is_refused_at_its_field(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        for name, text, said in (
            ("cron", "<b> * * * *", "is not a cron expression"),
            ("cron", "0 0 30 2 *", "never ticks"),
            ("timezone", "../../etc/passwd", "zone"),
            (field("customer"), "", "this field is required"),
            (field("times"), "7", "greater than the maximum"),
        ):
            form = await fill(browser, **{field("customer"): "Ada", name: text})
            page = await browser.submit(form, press="add")
            assert page.status == 422 and said in page.words and "<b>" not in page.text, page.words
        assert await list_stored(found) == ()


@requirement("saved:as-shown")
async def test_a_plan_that_changed_gets_no_schedule_before_it_was_seen_again(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        form = await fill(browser, "plain")
        save_plan(tmp_path, "plain", NOTE % "other")
        page = await browser.submit(form, press="add")
        assert page.status == 409 and "no schedule was added" in page.words and await list_stored(found) == ()
        assert page.form("/add").fields["cron"] == ["0 9 * * 1"]
        assert (await browser.submit(page.form("/add"), press="add")).status == 303
        save_plan(tmp_path, "plain", "todoList: [")
        assert (await browser.open("/inbox/saved/plain/schedule")).status == 404


@requirement("inbox:hostile")
async def test_hostile_and_broken_schedules_stay_text_and_do_not_hide_the_others(tmp_path: Path) -> None:
    nasty = "<script>\u202ex"
    async with _open(tmp_path) as (found, browser):
        store = found.warden.service.store
        schedules = ScheduleStore(store)
        made = await add_schedule(store, plan="plain", schedule_id="s1", owner=nasty, created_by=nasty)
        ticked = TickRecord(tick_at=1, outcome="failed", reason=nasty)
        gone = TickRecord(tick_at=2, outcome="started", execution_id="e" * 32, thread_id="t")
        assert await schedules.change(replace(made, recent=(ticked, gone)))
        await add_schedule(store, plan=nasty, schedule_id="s2", inputs={nasty: [nasty]})
        await schedules.add(replace(made, schedule_id="s3", timezone="Gone/Zone"), ADDED)
        for path in ("saved", "saved/plain", "schedules/s1", "schedules/s2", "schedules/s3"):
            page = await browser.open(f"/inbox/{path}")
            assert page.status == 200 and "<script>x" not in page.text and "\u202e" not in page.text, path
            assert "&lt;script&gt;" in page.text or path.endswith(("plain", "s3"))
        assert "its run was deleted since" in (await browser.open("/inbox/schedules/s1")).words
        unusable = (await browser.open("/inbox/schedules/s3")).words
        assert "Gone/Zone" in unusable and "If the last run is unfinished" in unusable


@requirement("inbox:paged")
async def test_many_schedules_are_counted_and_a_few_shown(tmp_path: Path) -> None:
    async with _open(tmp_path) as (found, browser):
        store = found.warden.service.store
        for number in range(SHOWN_ON_PLAN + 5):
            await add_schedule(store, plan="plain", schedule_id=f"p{number}")
            await add_schedule(store, plan="gone", schedule_id=f"g{number}")
        listed = await browser.open("/inbox/saved")
        assert listed.text.count('href="/inbox/schedules/p') == SHOWN_SCHEDULES
        assert f"{SHOWN_ON_PLAN + 5 - SHOWN_SCHEDULES} more" in listed.words
        assert listed.text.count('href="/inbox/schedules/g') == PAGE_SIZE
        own = await browser.open("/inbox/saved/plain")
        assert own.text.count('href="/inbox/schedules/p') == SHOWN_ON_PLAN and "5 more" in own.words
