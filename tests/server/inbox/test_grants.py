"""Permissions on pages: made from a question for exactly what was checked or for a step, shown, used up, and ended."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.agent.ports.budgets_and_keys import Grant
from planwarden.server.api.audit import read_audit_page
from planwarden.tools.base import Tool, define
from tests import kit
from tests.kit import Authority, Ledger, ManualClock, MemoryStore, Settings, decide, plan, requirement, tool_step
from tests.server.inbox.support import ERASE, Browser, Inbox, Page, visit

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
OTHER = tool_step("e", "erase", {"ids": [9]})
FIND = tool_step("find", "find", {"topic": "old"})
PURGE = tool_step("purge", "erase", {"ids": {"$from": "find", "pointer": "/ids"}})
EACH: dict[str, JsonValue] = {
    **tool_step("each", "erase", {"ids": [{"$from": "item"}]}),
    "forEach": {"$from": "find", "pointer": "/ids"},
}


class WatchedGrants(MemoryStore):
    """Says what stood in the log when a grant was stored, and fails to store it if asked to."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self._fails = fails
        self.before: list[str] = []

    async def add_grant(self, grant: Grant, entry: AuditEntry) -> None:
        row = await self.find_suspension(grant.grant_id)
        assert row is not None
        self.before = [type(recorded.event).__name__ for recorded in await self.read(row.execution_id)]
        if self._fails:
            raise StoreError("the disk is full")
        await super().add_grant(grant, entry)


async def _form(browser: Browser, found: Inbox) -> tuple[str, Page]:
    asked = await found.ask()
    return asked.suspension_id, await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")


def _write_plan(home: Path, name: str = "weekly", *steps: dict[str, JsonValue], **extra: JsonValue) -> None:
    kit.save_plan(home, name, {"title": "Tidy up", **extra, "todoList": [*(steps or (FIND, PURGE))]})


@asynccontextmanager
async def _open(home: Path, tools: tuple[object, ...] = ()) -> AsyncGenerator[tuple[Inbox, Browser]]:
    store = MemoryStore(ManualClock(NOON))
    async with visit(Ledger(), tools=tools, store=store, settings=Settings(home=home)) as (found, browser):
        yield found, browser


async def _ask(found: Inbox, name: str = "weekly") -> str:
    run = await found.warden.run_plan(name)
    assert run.suspensions, run
    return f"/inbox/suspensions/{run.suspensions[0].suspension_id}"


@requirement("inbox:grants")
async def test_allowing_approves_the_question_and_calls_with_the_checked_values_until_they_are_used_up() -> None:
    async with visit() as (found, browser):
        asked = await found.ask()
        where = f"/inbox/suspensions/{asked.suspension_id}"
        assert "Approve, and allow calls like this for a while" in (await browser.open(where)).words
        page = await browser.open(f"{where}/grant")
        for said in ("Approve erase, and run calls like it without asking", "calls of erase", "in plans of local"):
            assert said in page.said
        made = await browser.submit(page.form("/grant/make"), uses="2", minutes="60")
        assert (made.status, made.headers["location"]) == (303, where)
        assert "Approved." in (await browser.open(where)).said and found.ledger.lines == ["erase [1, 2]"]
        other = await found.ask(OTHER)
        assert other.found == ("A person allowed calls of erase beforehand, but this call is not among them.",)
        runs = [(await found.warden.execute_plan(plan(ERASE))).status for _ in range(3)]
        assert runs == ["completed", "completed", "suspended"] and found.ledger.lines == ["erase [1, 2]"] * 3
        words = (await browser.open("/inbox/grants")).words
        assert "0 of 2 left" in words and "Allowed by ann (a person, in the inbox)" in words and "Ended" in words


@requirement("inbox:grants")
async def test_a_value_that_was_unchecked_may_be_anything_until_the_grant_is_ended_with_a_button() -> None:
    async with visit() as (found, browser):
        _, page = await _form(browser, found)
        [checked] = [name for name in page.form("/grant/make").fields if name.startswith("fix.")]
        await browser.submit(page.form("/grant/make"), uses="5", minutes="15", **{checked: None})
        listed = await browser.open("/inbox/grants")
        assert "any value of ids, and no other argument; in plans of local" in listed.said
        assert (await found.warden.execute_plan(plan(OTHER))).status == "completed"
        assert (await browser.submit(listed.form("/revoke"))).status == 303
        assert (await found.warden.execute_plan(plan(OTHER))).status == "suspended"
        kinds = [row.kind for row in (await read_audit_page(found.warden.service.store)).rows]
        assert "grant_made" in kinds and "grant_revoked" in kinds


@requirement("inbox:grants")
@pytest.mark.parametrize("is_ticked", [False, True])
async def test_arguments_that_were_not_shown_are_allowed_only_by_a_tick_that_lists_them(is_ticked: bool) -> None:
    sent: list[object] = []

    async def handle(arguments: dict[str, JsonValue], context: CallContext) -> object:
        sent.append(arguments)
        return "sent"

    schema: dict[str, JsonValue] = {"type": "object", "properties": {name: {} for name in ("to", "bcc", "amount")}}
    definition = ToolDefinition(name="send", description="Send.", input_schema=schema, risk="dangerous")
    async with visit(tools=[Tool(define(definition), handle)]) as (found, browser):
        asked = await found.ask(tool_step("a", "send", {"to": "ann"}))
        page = await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")
        assert "Let calls have other arguments, too, with any value: bcc, amount" in page.said
        others = {"others": "yes"} if is_ticked else {}
        await browser.submit(page.form("/grant/make"), uses="5", minutes="15", **others)
        again = await found.warden.execute_plan(plan(tool_step("a", "send", {"to": "ann", "bcc": "eve"})))
        assert (again.status, len(sent)) == (("completed", 2) if is_ticked else ("suspended", 1))
        opened = " and any value of bcc, amount" if is_ticked else ""
        allowed = f"with exactly these values{opened}, and no other argument; in plans of local"
        assert allowed in (await browser.open("/inbox/grants")).said


async def test_the_answer_is_stored_first_and_the_grant_before_the_call_that_it_releases_is_made() -> None:
    store, ledger = WatchedGrants(), Ledger()

    @planwarden.tool
    async def look_back() -> str:
        """Writes down how many grants there are when it is called."""
        ledger.lines.append(f"{len(await store.grants(only_open=True))} open")
        return "looked"

    async with visit(ledger, tools=[look_back], store=store) as (found, browser):
        asked = await found.ask(tool_step("look", "look_back", {}))
        page = await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")
        await browser.submit(page.form("/grant/make"), uses="1", minutes="60")
        assert "SuspensionDecided" in store.before and "ToolReturned" not in store.before
        assert ledger.lines == ["1 open"] and (await found.current_execution(asked)).status == "completed"


async def test_a_grant_that_cannot_be_stored_leaves_the_answer_and_the_page_says_so() -> None:
    async with visit(store=WatchedGrants(fails=True)) as (found, browser):
        asked, page = await _form(browser, found)
        answer = await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        said = "was approved, but nothing else was allowed: the disk is full"
        assert answer.status == 503 and said in answer.words
        assert found.ledger.lines == ["erase [1, 2]"] and await found.warden.service.grants.list() == ()
        shown = await browser.open(f"/inbox/suspensions/{asked}")
        assert "Approved." in shown.words and "Also allowed" not in shown.words


@requirement("inbox:grants")
async def test_a_form_that_comes_twice_or_from_two_tabs_at_once_allows_once() -> None:
    async with visit() as (found, browser):
        asked, page = await _form(browser, found)
        answers: list[Page] = []

        async def send(uses: str) -> None:
            answers.append(await browser.submit(page.form("/grant/make"), uses=uses, minutes="60"))

        async with anyio.create_task_group() as tabs:
            tabs.start_soon(send, "3")
            tabs.start_soon(send, "4")
        await send("5")
        assert [answer.status for answer in answers] == [303] * 3
        [grant] = await found.warden.service.grants.list()
        assert grant.grant_id == asked and grant.uses in (3, 4) and found.ledger.lines == ["erase [1, 2]"]
        words = (await browser.open(f"/inbox/suspensions/{asked}")).said
        assert f"Also allowed: At most {grant.uses} calls with exactly these values" in words
        kinds = [row.kind for row in (await read_audit_page(found.warden.service.store)).rows]
        assert kinds.count("grant_made") == 1


async def test_a_tool_that_only_reads_as_its_server_says_comes_with_the_command_that_trusts_it() -> None:
    async def look(arguments: dict[str, JsonValue], context: CallContext) -> str:
        return "found"

    reads: dict[str, JsonValue] = {"readOnlyHint": True}
    async with visit() as (found, browser):
        for hints, source, is_said in (
            (reads, "crm", True),
            ({**reads, "destructiveHint": True}, "crm", False),
            ({}, "crm", False),
            (reads, "python", False),
        ):
            definition = ToolDefinition(
                name=f"{source}_look", description="", input_schema={}, source=source, annotations=hints
            )
            found.warden.tools.replace_group(source, [Tool(define(definition), look)])
            page = await browser.open_question(await found.ask(tool_step("look", definition.name, {})))
            assert (f"planwarden trust {source} {definition.name}" in page.words) is is_said


@requirement("inbox:step-grants", "grants:step")
async def test_a_person_allows_a_step_of_a_saved_plan_once_from_its_question_and_answers_it(tmp_path: Path) -> None:
    _write_plan(tmp_path)
    async with _open(tmp_path) as (found, browser):
        where = await _ask(found)
        assert "Approve, and allow this step in later runs of the saved plan" in (await browser.open(where)).words
        page = await browser.open(f"{where}/allow-step")
        assert "erase in step purge of the saved plan Tidy up (weekly) as it is today, version" in page.said
        assert "in runs of local" in page.said and "any value of step find" in page.said
        assert "Any change of the plan, the tool or the arguments’ source asks again" in page.said
        assert page.form("/allow-step/make").fields["until"] == ["2027-02-21"]
        for uses in ("2", "9"):
            made = await browser.submit(page.form("/allow-step/make"), uses=uses, until="2026-11-30")
            assert (made.status, made.headers["location"]) == (303, where)
        assert found.ledger.lines == ["erase [1, 2, 3]"]
        [grant] = await found.warden.service.grants.list()
        assert grant.step is not None and (grant.step.plan, grant.step.step_id) == ("weekly", "purge")
        assert (grant.uses, grant.owner, grant.created_by) == (2, "local", "ann")
        assert (grant.assurance, grant.channel) == ("human", "inbox")
        assert grant.expires_at.isoformat() == "2026-12-01T00:00:00+00:00", "when the chosen day is over"
        terms = (
            f"erase in step purge of the saved plan Tidy up, version {grant.step.version[:12]}, with the arguments "
            "that the plan writes there, at most 2 calls a day (UTC), until 30 November 2026, in runs of local; any "
            "change of the plan, the tool or the arguments' source asks again. Allowed by ann (a person, in the inbox)."
        )
        assert f"Also allowed: {terms}" in (await browser.open(where)).said
        listed = (await browser.open("/inbox/grants")).said
        assert terms in listed and "2 of 2 left today (UTC) ends" in listed
        _write_plan(tmp_path, description="changed")
        changed = await browser.open("/inbox/grants")
        assert "the saved plan has changed since, so new runs ask" in changed.words
        await browser.submit(changed.form("/revoke"))
        assert "Ended" in (await browser.open("/inbox/grants")).words


@requirement("inbox:step-grants")
async def test_a_loop_of_a_saved_plan_is_allowed_from_the_one_question_about_its_rows(tmp_path: Path) -> None:
    _write_plan(tmp_path, "weekly", FIND, EACH)
    async with _open(tmp_path) as (found, browser):
        page = await browser.open(f"{await _ask(found)}/allow-step")
        assert "Approve 3 calls of erase, and allow this step" in page.said and "the step is a loop" in page.words
        assert "row 1" in page.words and "any value of the item of the loop" in page.said
        assert (await browser.submit(page.form("/allow-step/make"), uses="4")).status == 303
        assert (await found.warden.run_plan("weekly")).status == "completed"
        assert found.ledger.lines == ["erase [1]", "erase [2]", "erase [3]"] * 2


DAYS = ("", "tomorrow", "2027-02-31", "20270221", "2026-11-22", "2027-02-22")
UNUSABLE = (
    ("grant", {"uses": ("0", "-1", "1001", "x", "٣"), "minutes": ("481", "")}),
    ("allow-step", {"uses": ("0", "1001", "x", "٣"), "until": DAYS}),
)


@pytest.mark.parametrize(("name", "fields"), UNUSABLE)
async def test_unusable_numbers_and_days_and_a_revised_or_decided_question_allow_nothing(
    tmp_path: Path, name: str, fields: dict[str, tuple[str, ...]]
) -> None:
    _write_plan(tmp_path)
    async with _open(tmp_path) as (found, browser):
        where = await _ask(found)
        form = (await browser.open(f"{where}/{name}")).form("/make")
        for field, texts in fields.items():
            for text in texts:
                answer = await browser.submit(form, **{field: text})
                assert answer.status == 422 and 'role="alert"' in answer.text, (field, text)
                assert field == "minutes" or not text or answer.form("/make").fields[field] == [text]
        # What was chosen stays: no value of an argument is ticked.
        ticked = {name: None for name in form.fields if name.startswith("fix.")}
        again = (await browser.submit(form, uses="x", **ticked)).form("/make").fields
        assert not ticked.keys() & again.keys() and again.get("minutes") == form.fields.get("minutes")
        assert (await browser.submit(form, digest="0" * 64)).status == 409
        assert found.ledger.lines == []
        await browser.decide(where.rpartition("/")[2], "approve")
        assert (await browser.submit(form)).status == 409
        assert await found.warden.service.grants.list() == ()


@requirement("inbox:step-grants")
async def test_what_a_step_grant_never_covers_is_not_offered_and_not_made(tmp_path: Path) -> None:
    _write_plan(tmp_path, "ship", tool_step("ship", "deploy", {}))
    _write_plan(tmp_path, "sure", tool_step("sure", "displayConfirmation", {"action": "Sure?"}))
    _write_plan(tmp_path)
    async with _open(tmp_path, tools=(kit.acting("deploy", [], "critical"),)) as (found, browser):
        plain = f"/inbox/suspensions/{(await found.ask()).suspension_id}"
        edited = await _ask(found)
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        row = await found.warden.service.store.find_suspension(edited.rpartition("/")[2])
        assert row is not None
        edit = planwarden.Decision(approved=True, modified_args={"ids": [7]})
        await decide(found.warden, row, edit, claimed)
        sure = await _ask(found, "sure")
        assert "/grant" not in (await browser.open(sure)).text.replace("/inbox/grants", "")
        assert (await browser.open(f"{sure}/grant")).status == 422
        for where in (await _ask(found, "ship"), sure, plain, edited):
            page = await browser.open(where)
            assert "allow-step" not in page.text, where
            refused = await browser.open(f"{where}/allow-step")
            assert refused.status == 422 and "cannot be allowed in advance" in refused.words, where
            tokens = {name: page.form("/decision").fields[name] for name in ("csrf", "digest")}
            sent = await browser.send(f"{where}/allow-step/make", {**tokens, "uses": ["2"], "until": ["2026-11-25"]})
            assert sent.status == 422, where
        assert await found.warden.service.grants.list() == ()


@requirement("inbox:step-grants")
async def test_a_plan_that_changed_since_its_run_began_or_its_page_was_shown_allows_nothing(tmp_path: Path) -> None:
    _write_plan(tmp_path)
    async with _open(tmp_path) as (found, browser):
        where = await _ask(found)
        form = (await browser.open(f"{where}/allow-step")).form("/allow-step/make")
        _write_plan(tmp_path, description="changed")
        for answer in (await browser.open(f"{where}/allow-step"), await browser.submit(form)):
            assert answer.status == 422 and "no longer what this run began with" in answer.words
        (tmp_path / "plans" / "weekly.json").unlink()
        assert (await browser.submit(form)).status == 422
        assert await found.warden.service.grants.list() == () and found.ledger.lines == []
