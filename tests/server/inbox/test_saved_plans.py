"""Saved plans on pages: what is listed, what a form starts, and that it starts once what the person saw, or nothing."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from textwrap import dedent

import anyio
from pydantic import JsonValue

import planwarden
from planwarden.server.inbox.pages.saved_plans import PAGE_SIZE
from planwarden.server.views.fields import derive_key
from tests.kit import ManualClock, MemoryStore, Settings, ev, requirement, save_plan, tool_step
from tests.server.inbox.support import Browser, Form, Inbox, Page, visit

REMIND = """
title: Remind a customer
description: Writes one reminder, then cleans up.
inputs:
  properties:
    customer: {type: string, description: Whom to write to, minLength: 2}
    times: {type: integer, default: 1, maximum: 3}
    tone: {type: string, enum: [kind, firm]}
    tags: {type: array, items: {type: string}}
  required: [customer]
todoList:
  - id: write
    description: Write the reminder
    toolCalls:
      - toolName: note
        arguments: {text: {$from: inputs, pointer: /customer}}
  - id: clean
    description: Remove old ones
    toolCalls:
      - toolName: erase
        arguments: {ids: [1, 2]}
"""
NOTE = "todoList: [{id: a, description: x, toolCalls: [{toolName: note, arguments: {text: %s}}]}]"
Opened = tuple[Inbox, Browser]


@asynccontextmanager
async def opened(home: Path, *tools: object, store: MemoryStore | None = None, **files: str) -> AsyncGenerator[Opened]:
    for name, text in {"remind": REMIND, **files}.items():
        save_plan(home, name, text)
    async with visit(tools=tools, store=store, settings=Settings(home=home)) as found:
        yield found


def field(name: str) -> str:
    return f"arg.{derive_key(name)}"


async def fill(browser: Browser, name: str = "remind", **inputs: str) -> Form:
    form = (await browser.open(f"/inbox/saved/{name}")).form("/start")
    form.fields |= {field(key): [text] for key, text in inputs.items()}
    return form


async def count_runs(found: Inbox) -> int:
    return len(await found.warden.service.store.executions(None, 100))


async def find_run(found: Inbox, page: Page) -> planwarden.Execution:
    """The execution to which the answer leads, when it waits or has ended."""
    assert page.status == 303, page.words
    execution_id = page.headers["location"].removeprefix("/inbox/executions/")
    service = found.warden.service
    return service.build_view(await service.wait(await service.find(execution_id), 60))


@requirement("saved:started")
async def test_the_form_starts_the_plan_with_typed_values_and_leads_to_the_page_of_the_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as (found, browser):
        form = await fill(browser, customer="Ada", tone='"firm"', tags='["a"]')
        assert form.fields[field("times")] == ["1"]
        rehearsed = await find_run(found, await browser.submit(form, press="rehearse"))
        assert (rehearsed.status, found.ledger.lines) == ("rehearsed", [])
        answer = await browser.submit(form, press="start")
        run = await find_run(found, answer)
        assert run.execution_id != rehearsed.execution_id
        assert (run.status, found.ledger.lines) == ("suspended", ["note Ada"])
        page = await browser.open(answer.headers["location"])
        assert "inbox (ann)" in page.words and "belongs to local" in page.words
        [first, accepted, *_] = await found.warden.service.store.read(run.execution_id, 0)
        [row, _] = [r.entry for r in await found.warden.service.store.audit_rows() if r.entry.kind == "plan_run"]
    assert isinstance(first.event, ev.ExecutionCreated) and isinstance(accepted.event, ev.PlanAccepted)
    assert first.event.starter == ev.Starter(principal="ann", channel="inbox")
    assert accepted.event.inputs == {"customer": "Ada", "times": 1, "tone": "firm", "tags": ["a"]}
    assert (row.facts["plan"], row.facts["principal"], row.facts["channel"]) == ("remind", "ann", "inbox")


async def test_a_rehearsal_from_the_page_of_a_run_is_one_of_the_same_saved_plan(tmp_path: Path) -> None:
    async with opened(tmp_path, plain=NOTE % "hi") as (found, browser):
        run = await find_run(found, await browser.submit(await fill(browser, "plain"), press="start"))
        page = await browser.open(f"/inbox/executions/{run.execution_id}")
        rehearsed = await find_run(found, await browser.submit(page.form("/rehearse")))
    assert (rehearsed.status, rehearsed.saved_plan) == ("rehearsed", run.saved_plan) and run.saved_plan is not None


FAULTS: tuple[tuple[dict[str, str], str, str], ...] = (
    ({}, "customer", "this field is required"),
    ({"customer": "Ada", "times": "9"}, "times", "greater than the maximum of 3"),
    ({"customer": "Ada", "tags": '["a", 1]'}, "tags", 'is not of type "string"'),
)


@requirement("saved:faults")
async def test_what_the_plan_does_not_take_is_shown_at_its_field_and_nothing_starts(tmp_path: Path) -> None:
    async with opened(tmp_path) as (found, browser):
        for (inputs, name, said), press in product(FAULTS, ("start", "forecast")):
            page = await browser.submit(await fill(browser, **inputs), press=press)
            hint = page.text.partition(f'id="{field(name)}-hint"')[2].partition("</p>")[0]
            assert page.status == 422 and said in hint.replace("&#34;", '"'), (hint, page.words)
            assert "nothing was started" in page.words
            for typed, text in inputs.items():
                assert page.form("/start").fields[field(typed)] == [text]
        assert await count_runs(found) == 0 and found.ledger.lines == []


@requirement("saved:faults")
async def test_inputs_that_are_not_declared_go_into_a_json_field_where_the_schema_takes_them(tmp_path: Path) -> None:
    schema = """
    inputs:
      properties: {a: {type: string}, '': {type: string}, c: {$ref: "#/$defs/colour"}}
      additionalProperties: {type: integer}
      $defs: {colour: {enum: [red, blue]}}
    """
    async with opened(tmp_path, free=dedent(schema) + NOTE % "hi") as (found, browser):
        form = await fill(browser, "free", **{"a": "x", "": "nameless", "c": '"red"'})
        for text, said in (
            ("[1]", "write an object"),
            ('{"a": 1}', "a has a field of its own"),
            ('{"b": "x"}', "/b: "),
        ):
            page = await browser.submit(form, press="start", more=text)
            assert page.status == 422 and said in page.words, page.words
        run = await find_run(found, await browser.submit(form, press="start", more='{"b": 2}'))
        execution = await found.warden.service.find(run.execution_id)
        assert execution.inputs == {"a": "x", "": "nameless", "c": "red", "b": 2}


@requirement("saved:once")
async def test_a_form_starts_one_run_however_often_it_is_sent_and_whatever_became_of_the_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as (found, browser):
        form = await fill(browser, customer="Ada")
        places: list[str] = []

        async def press() -> None:
            places.append((await browser.submit(form, press="start")).headers["location"])

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(press)
        save_plan(tmp_path, "remind", REMIND.replace("old", "all"))
        await press()
        (tmp_path / "plans" / "remind.yaml").unlink()
        await press()
        assert len(set(places)) == 1 and await count_runs(found) == 1
        save_plan(tmp_path, "remind", REMIND)
        form.fields[field("customer")] = ["Eve"]
        await find_run(found, await browser.submit(form, press="start"))
        assert sorted(found.ledger.lines) == ["note Ada", "note Eve"], "other inputs are another run"
        (tmp_path / "plans" / "remind.yaml").unlink()
        assert "There is no saved plan yet" in (await browser.open("/inbox/saved")).words


@requirement("saved:once")
async def test_an_old_form_says_that_it_has_started_a_run_and_offers_a_new_one(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, store=MemoryStore(clock)) as (found, browser):
        form = await fill(browser, customer="Ada")
        first = await browser.submit(form, press="start")
        clock.advance(3600)
        again = await browser.submit(form, press="start")
        assert again.status == 409 and "has started a run before; nothing more was started" in again.words
        assert f'href="{first.headers["location"]}"' in again.text and await count_runs(found) == 1
        new = again.form("/start")
        assert new.fields[field("customer")] == ["Ada"] and new.fields["key"] != form.fields["key"]
        assert (await browser.submit(new, press="start")).status == 303 and await count_runs(found) == 2


@requirement("saved:as-shown")
async def test_a_file_that_changed_is_shown_again_with_what_was_typed_and_nothing_starts(tmp_path: Path) -> None:
    async with opened(tmp_path) as (found, browser):
        form = await fill(browser, customer="Ada")
        save_plan(tmp_path, "remind", REMIND.replace("[1, 2]", "[7]"))
        for press in ("start", "rehearse", "forecast"):
            page = await browser.submit(form, press=press)
            assert page.status == 409 and "changed since you looked" in page.words
        shown = page.form("/start")
        assert shown.fields[field("customer")] == ["Ada"]
        save_plan(tmp_path, "remind", "todoList: [")
        broken = await browser.submit(form, press="start")
        assert broken.status == 409 and "remind cannot be used" in broken.words
        (tmp_path / "plans" / "remind.yaml").unlink()
        assert (await browser.submit(form, press="start")).status == 404
        assert await count_runs(found) == 0 and found.ledger.lines == []
        save_plan(tmp_path, "remind", REMIND.replace("[1, 2]", "[7]"))
        assert (await browser.submit(shown, press="start")).status == 303


@requirement("saved:forecast")
async def test_the_forecast_says_which_calls_ask_whom_and_why_with_the_inputs_of_the_form(tmp_path: Path) -> None:
    asks = REMIND.replace("ids: [1, 2]", "ids: {$from: inputs, pointer: /ids}").replace(
        "properties:", "properties:\n    ids: {type: array}"
    )
    async with opened(tmp_path, asks=asks) as (found, browser):
        page = await browser.open("/inbox/saved/remind")
        assert "1 call will ask before it runs" in page.words
        assert "erase will ask a person, in the inbox or at a terminal: calls of this tool are dangerous" in page.words
        blank = await browser.open("/inbox/saved/asks")
        assert "only the run will know" in blank.words and "erase will ask" not in blank.words
        form = await fill(browser, "asks", customer="Ada", ids="[3]")
        page = await browser.submit(form, press="forecast")
        assert page.status == 200 and "erase will ask a person" in page.words
        assert page.form("/start").fields[field("ids")] == ["[3]"] and await count_runs(found) == 0


@requirement("saved:listed")
async def test_the_list_names_plans_with_origin_and_version_and_says_why_others_cannot_run(tmp_path: Path) -> None:
    odd = "todoList: [{id: a, description: x, toolCalls: [{toolName: gone, arguments: {}}]}]"
    async with opened(tmp_path, broken="todoList: 3", plain=NOTE % "hi", odd=odd) as (found, browser):
        page = await browser.open("/inbox/saved/odd")
        assert "It cannot start now" in page.words and "gone" in page.words
        form = page.form("/start")
        assert ("decision", "start", False) in form.buttons and ("decision", "rehearse", False) in form.buttons
        answer = await browser.send(form.action, {**form.fields, "decision": ["start"]})
        assert answer.status == 422 and "Nothing was started" in answer.words and await count_runs(found) == 0
        page = await browser.open("/inbox/saved")
        [version] = [plan.version for plan in await found.warden.plans() if plan.name == "remind"]
        for text in ("Remind a customer", "Writes one reminder", "your plans", version[:12], "plain", "Takes customer"):
            assert text in page.words, text
        assert str(tmp_path / "plans" / "broken.yaml") in page.words and "is not a list of steps" in page.words
        broken = await browser.open("/inbox/saved/broken")
        assert broken.status == 200 and "is not a list of steps" in broken.words and len(broken.forms) == 2
        for unknown in ("nothing", "..%2f..%2fetc", "a%00b", "x" * 300):
            assert (await browser.open(f"/inbox/saved/{unknown}")).status == 404


@requirement("saved:listed", "inbox:paged")
async def test_many_plans_are_shown_page_by_page(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, browser):
        for number in range(2 * PAGE_SIZE):
            save_plan(tmp_path, f"plan{number:03}", NOTE % number)
        for after, shown, hidden in (("", 0, PAGE_SIZE), (f"?after=plan{PAGE_SIZE - 1:03}", PAGE_SIZE, 0)):
            page = await browser.open(f"/inbox/saved{after}")
            assert f"plan{shown:03}" in page.words and f"plan{hidden:03}" not in page.words
        assert "No more plans" in (await browser.open("/inbox/saved?after=zzz")).words


@requirement("inbox:hostile")
async def test_hostile_plans_stay_text_on_every_page(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>\u202e[Start]\u202c\u200b"
    plan: dict[str, JsonValue] = {
        "title": f"T {nasty}",
        "description": f"D {nasty}\n" * 40,
        "inputs": {
            "title": nasty,
            "properties": {
                nasty: {"type": "string", "title": nasty, "description": nasty * 20, "default": nasty},
                "e": {"enum": [nasty, 1, {"a": nasty}]},
                "__proto__": {"type": "string"},
            },
        },
        "todoList": [tool_step("step", "erase", {"ids": [1]}, description=nasty)],
    }
    async with opened(tmp_path, broken=f"'{nasty}': [1]") as (found, browser):
        save_plan(tmp_path, "nasty", plan)
        save_plan(tmp_path, "<b>", "x")
        for path in ("", "/nasty", "/nasty/schedule", "/broken"):
            page = await browser.open(f"/inbox/saved{path}")
            assert page.status == 200
            assert "<script>alert" not in page.text and "\u202e" not in page.text and "\u200b" not in page.text
            assert "<b>.yaml" not in page.text
        form = await fill(browser, "nasty")
        page = await browser.submit(form, press="forecast")
        assert page.status == 200 and "\u202e" not in page.text and "<script>alert" not in page.text
        run = await find_run(found, await browser.submit(form, press="start"))
        execution = await found.warden.service.find(run.execution_id)
        assert execution.inputs[nasty] == nasty


@requirement("saved:as-shown")
async def test_a_form_that_no_page_sends_starts_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (found, browser):
        form = await fill(browser, customer="Ada")
        form.fields["decision"] = ["start"]
        for name, value, status in (
            ("key", "x", 422),
            ("key", "é" * 20, 422),
            ("digest", "0" * 64, 409),
            ("decision", "approve", 422),
        ):
            assert (await browser.send(form.action, {**form.fields, name: [value]})).status == status, (name, value)
        assert await count_runs(found) == 0 and found.ledger.lines == []
