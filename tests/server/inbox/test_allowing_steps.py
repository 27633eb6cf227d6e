"""A person allows the calls of a saved plan's step from the question about one of them, in words, for days."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.core.tool import Risk
from planwarden.server.settings.configuration import Settings
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.memory import MemoryStore
from tests.requirements import requirement
from tests.server.inbox.support import Browser, Inbox, Page, open_inbox, visit
from tests.support.wardens import Ledger, calls, model_step, tool_step, warden

pytestmark = pytest.mark.anyio

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
FIND = tool_step("find", "find", {"topic": "old"})
PURGE = tool_step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}})
EACH: dict[str, JsonValue] = {
    **tool_step("each", "erase", {"ids": [{"$from": "item"}]}),
    "forEach": {"$from": "find", "pointer": "/ids"},
}


def _write_plan(home: Path, name: str = "weekly", *steps: dict[str, JsonValue], **extra: JsonValue) -> None:
    (home / "plans").mkdir(exist_ok=True)
    document = {"title": "Tidy up", **extra, "todoList": steps or (FIND, PURGE)}
    (home / "plans" / f"{name}.json").write_text(json.dumps(document))


@asynccontextmanager
async def _open(
    home: Path, ledger: Ledger | None = None, tools: tuple[object, ...] = ()
) -> AsyncGenerator[tuple[Inbox, Browser]]:
    store = MemoryStore(ManualClock(NOON))
    async with visit(ledger or Ledger(), tools=tools, store=store, settings=Settings(home=home)) as (found, browser):
        yield found, browser


async def _ask(found: Inbox, name: str = "weekly", inputs: dict[str, JsonValue] | None = None) -> str:
    """The address of the question of a new run."""
    run = await found.warden.run_plan(name, inputs)
    assert run.suspensions, run
    return f"/inbox/suspensions/{run.suspensions[0].suspension_id}"


@requirement("inbox:step-grants", "grants:step")
@pytest.mark.parametrize("risk", ["confirm", "dangerous"])
async def test_a_person_allows_a_step_of_a_saved_plan_from_its_question_and_answers_it(
    tmp_path: Path, risk: Risk
) -> None:
    ledger = Ledger()

    @planwarden.tool(risk=risk)
    async def post(ids: list[int], channel: str = "news") -> str:
        """Post."""
        ledger.lines.append(f"post {ids} {channel}")
        return "posted"

    _write_plan(tmp_path, "weekly", FIND, tool_step("purge", "post", {"ids": {"$from": "find", "pointer": "/ids"}}))
    async with _open(tmp_path, ledger, (post,)) as (found, browser):
        where = await _ask(found)
        assert "Approve, and allow this step in later runs of the saved plan" in (await browser.open(where)).words
        page = await browser.open(f"{where}/allow-step")
        said = page.said
        assert "post in step purge of the saved plan Tidy up (weekly) as it is today, version" in said
        assert "in runs of local" in said and "any value of step find" in said
        assert "Any change of the plan, the tool or the arguments’ source asks again" in said
        assert page.form("/allow-step/make").fields["until"] == ["2027-02-21"]
        made = await browser.submit(page.form("/allow-step/make"), uses="2")
        assert (made.status, made.headers["location"]) == (303, where)
        assert ledger.lines == ["post [1, 2, 3] news"]
        [grant] = await found.warden.service.grants.list()
        assert grant.step is not None and (grant.step.plan, grant.step.step_id) == ("weekly", "purge")
        assert (grant.uses, grant.uses_left, grant.owner, grant.arguments) == (2, 2, "local", {})
        assert (grant.assurance, grant.channel, grant.created_by) == ("human", "inbox", "ann")
        assert grant.expires_at - grant.created_at == timedelta(days=90)
        terms = (
            f"post in step purge of the saved plan Tidy up, version {grant.step.version[:12]}, with the arguments "
            "that the plan writes there, at most 2 calls a day (UTC), until 21 February 2027, in runs of local; any "
            "change of the plan, the tool or the arguments' source asks again. Allowed by ann (a person, in the inbox)."
        )
        assert f"Allowed besides: {terms}" in (await browser.open(where)).said
        listed = await browser.open("/inbox/grants")
        assert terms in listed.said
        assert "2 of 2 left today (UTC) ends" in listed.said
        for _ in range(2):
            assert (await found.warden.run_plan("weekly")).status == "completed"
        assert (await found.warden.run_plan("weekly")).status == "suspended"
        rows = (await found.warden.service.audit.read_page()).rows
        [row] = [row for row in rows if row.kind == "grant_made"]
        assert (row.facts["plan"], row.facts["step"], row.facts["per"], row.facts["uses"]) == (
            "weekly",
            "purge",
            "day",
            2,
        )
        _write_plan(tmp_path, description="changed")
        changed = await browser.open("/inbox/grants")
        assert "the saved plan has changed since, so new runs ask" in changed.words
        await browser.submit(changed.form("/revoke"))
        assert "Ended" in (await browser.open("/inbox/grants")).words
        assert (await found.warden.run_plan("weekly")).status == "suspended"


@requirement("inbox:step-grants")
async def test_a_loop_of_a_saved_plan_is_allowed_from_the_one_question_about_its_rows(tmp_path: Path) -> None:
    ledger = Ledger()
    _write_plan(tmp_path, "weekly", FIND, EACH)
    async with _open(tmp_path, ledger) as (found, browser):
        where = await _ask(found)
        page = await browser.open(f"{where}/allow-step")
        assert "Approve 3 calls of erase, and allow this step" in page.said and "the step is a loop" in page.words
        assert "row 1" in page.words and "any value of the item of the loop" in page.said
        assert (await browser.submit(page.form("/allow-step/make"), uses="4")).status == 303
        assert ledger.lines == ["erase [1]", "erase [2]", "erase [3]"]
        again = await found.warden.run_plan("weekly")
        assert again.status == "completed" and len(ledger.lines) == 6
        assert (await found.warden.run_plan("weekly")).status == "suspended"


@requirement("inbox:step-grants")
async def test_a_form_that_comes_twice_allows_once_and_one_of_a_decided_question_nothing(tmp_path: Path) -> None:
    _write_plan(tmp_path)
    async with _open(tmp_path) as (found, browser):
        where, other = await _ask(found), await _ask(found)
        form = (await browser.open(f"{where}/allow-step")).form("/allow-step/make")
        late = (await browser.open(f"{other}/allow-step")).form("/allow-step/make")
        await browser.decide(other.rpartition("/")[2], "approve")
        assert (await browser.submit(late)).status == 409
        assert await found.warden.service.grants.list() == ()
        assert [(await browser.submit(form, uses=uses)).status for uses in ("2", "9")] == [303, 303]
        [grant] = await found.warden.service.grants.list()
        assert grant.uses == 2


async def test_numbers_and_days_that_are_not_usable_decide_and_allow_nothing(tmp_path: Path) -> None:
    _write_plan(tmp_path)
    days = ("", "tomorrow", "2027-02-31", "20270221", "2026-11-22", "2027-02-22")
    async with _open(tmp_path) as (found, browser):
        form = (await browser.open(f"{await _ask(found)}/allow-step")).form("/allow-step/make")
        for name, texts in {"uses": ("0", "1001", "x", "٣"), "until": days}.items():
            for text in texts:
                answer = await browser.submit(form, **{name: text})
                assert answer.status == 422 and 'role="alert"' in answer.text
                assert not text or answer.form("/allow-step/make").fields[name] == [text], "what was typed stays"
        assert await found.warden.service.grants.list() == () and found.ledger.lines == []


async def test_the_chosen_day_is_part_of_the_time(tmp_path: Path) -> None:
    _write_plan(tmp_path)
    async with _open(tmp_path) as (found, browser):
        form = (await browser.open(f"{await _ask(found)}/allow-step")).form("/allow-step/make")
        await browser.submit(form, until="2026-11-30")
        [grant] = await found.warden.service.grants.list()
        assert grant.expires_at.isoformat() == "2026-12-01T00:00:00+00:00"
        assert "until 30 November 2026" in (await browser.open("/inbox/grants")).words


@requirement("inbox:step-grants")
async def test_what_a_step_grant_never_covers_is_not_offered_and_not_made(tmp_path: Path) -> None:
    @planwarden.tool(risk="critical")
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    _write_plan(tmp_path, "ship", tool_step("ship", "deploy", {}))
    _write_plan(tmp_path, "sure", tool_step("sure", "displayConfirmation", {"action": "Sure?"}))
    _write_plan(tmp_path)
    async with _open(tmp_path, tools=(deploy,)) as (found, browser):
        plain = f"/inbox/suspensions/{(await found.ask()).suspension_id}"
        edited = await _ask(found)
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        row = await found.warden.service.engine.store.find_suspension(edited.rpartition("/")[2])
        assert row is not None
        edit = planwarden.Decision(approved=True, modified_args={"ids": [7]})
        await found.warden.service.answer(row.thread_id, row.suspension_id, edit, claimed, principal=None)
        sure = await _ask(found, "sure")
        assert "/grant" not in (await browser.open(sure)).text.replace("/inbox/grants", "")
        assert (await browser.open(f"{sure}/grant")).status == 422
        for where in (await _ask(found, "ship"), sure, plain, edited):
            page = await browser.open(where)
            assert "allow-step" not in page.text, where
            refused = await browser.open(f"{where}/allow-step")
            assert refused.status == 422 and "cannot be allowed in advance" in refused.words, where
            sent = await browser.send(
                f"{where}/allow-step/make", {**_find_tokens(page), "uses": ["2"], "until": ["2026-11-25"]}
            )
            assert sent.status == 422, where
        assert await found.warden.service.grants.list() == ()


def _find_tokens(page: Page) -> dict[str, list[str]]:
    fields = page.form("/decision").fields
    return {"csrf": fields["csrf"], "digest": fields["digest"]}


@requirement("inbox:step-grants")
async def test_a_plan_that_changed_since_the_run_began_or_since_the_page_was_shown_allows_nothing(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    _write_plan(tmp_path)
    async with _open(tmp_path, ledger) as (found, browser):
        where = await _ask(found)
        form = (await browser.open(f"{where}/allow-step")).form("/allow-step/make")
        _write_plan(tmp_path, description="changed")
        for answer in (await browser.open(f"{where}/allow-step"), await browser.submit(form)):
            assert answer.status == 422 and "no longer what this run began with" in answer.words
        (tmp_path / "plans" / "weekly.json").unlink()
        assert (await browser.submit(form)).status == 422
        assert await found.warden.service.grants.list() == () and ledger.lines == []
        assert (await found.warden.list_suspensions()).total == 1


async def test_calls_that_a_model_writes_in_a_saved_plan_are_not_offered_for_days(tmp_path: Path) -> None:
    _write_plan(tmp_path, "weekly", model_step("purge", "erase"))
    script = [calls(("erase", {"ids": [1]}))]
    async with warden(Ledger(), script=script, settings=Settings(home=tmp_path)) as made:
        found = open_inbox(made)
        browser = await found.log_in()
        where = await _ask(found)
        assert "allow-step" not in (await browser.open(where)).text
        assert (await browser.open(f"{where}/allow-step")).status == 422
