"""Standing grants on pages: made from a question for exactly what was checked, shown, used up, and ended."""

import json
import re
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.tool import CallContext, Risk, ToolDefinition
from planwarden.agent.ports.grant import Grant
from planwarden.server.api.grants import GrantRequest
from planwarden.server.mcp.tools import TOOLS
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.grant_words import format_last_day
from planwarden.storage.memory.store import MemoryStore
from planwarden.tools.base import Tool, define
from tests.requirements import requirement
from tests.server.inbox.support import ERASE, Browser, Inbox, Page, visit
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = pytest.mark.anyio


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


def _fixed(page: Page) -> list[str]:
    return [name for name in page.form("/grant/make").fields if name.startswith("fix.")]


@requirement("inbox:grants")
async def test_calls_with_the_checked_values_run_without_asking_until_they_are_used_up() -> None:
    async with visit() as (found, browser):
        asked, page = await _form(browser, found)
        assert len(_fixed(page)) == 1
        made = await browser.submit(page.form("/grant/make"), uses="2", minutes="60")
        assert (made.status, made.headers["location"]) == (303, f"/inbox/suspensions/{asked}")
        assert found.ledger.lines == ["erase [1, 2]"]
        for _ in range(2):
            assert (await found.warden.execute_plan(plan(ERASE))).status == "completed"
        assert (await found.warden.execute_plan(plan(ERASE))).status == "suspended"
        assert (await found.warden.execute_plan(plan(tool_step("e", "erase", {"ids": [9]})))).status == "suspended"
        assert found.ledger.lines == ["erase [1, 2]"] * 3
        words = (await browser.open("/inbox/grants")).words
        assert "0 of 2 left" in words and "Allowed by ann (a person, in the inbox)" in words and "Ended" in words


@requirement("inbox:grants")
async def test_a_value_that_was_unchecked_may_be_anything() -> None:
    async with visit() as (found, browser):
        _, page = await _form(browser, found)
        form = page.form("/grant/make")
        del form.fields[_fixed(page)[0]]
        await browser.submit(form, uses="5", minutes="15")
        assert (await found.warden.execute_plan(plan(tool_step("e", "erase", {"ids": [9]})))).status == "completed"


@requirement("inbox:grants")
@pytest.mark.parametrize("is_ticked", [False, True])
async def test_arguments_that_were_not_shown_are_allowed_only_by_a_tick_that_lists_them(is_ticked: bool) -> None:
    sent: list[object] = []

    async def handle(arguments: dict[str, JsonValue], context: CallContext) -> object:
        sent.append(arguments)
        return "sent"

    names = ("to", "text", "bcc", "amount")
    schema: dict[str, JsonValue] = {"type": "object", "properties": {name: {} for name in names}}
    definition = ToolDefinition(name="send", description="Send.", input_schema=schema, risk="dangerous")
    async with visit(tools=[Tool(define(definition), handle)]) as (found, browser):
        asked = await found.ask(tool_step("a", "send", {"to": "ann", "text": "hello"}))
        page = await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")
        words = " ".join(page.words.split())
        assert "Let calls have other arguments, too, with any value: bcc, amount" in words
        others = {"others": "yes"} if is_ticked else {}
        await browser.submit(page.form("/grant/make"), uses="5", minutes="15", **others)
        for more in ({"bcc": "eve"}, {"amount": 1e9}):
            step = tool_step("a", "send", {"to": "ann", "text": "hello", **more})
            assert (await found.warden.execute_plan(plan(step))).status == ("completed" if is_ticked else "suspended")
        assert len(sent) == (3 if is_ticked else 1)
        allowed = " ".join((await browser.open("/inbox/grants")).words.split())
        opened = " and any value of bcc, amount" if is_ticked else ""
        assert f"with exactly these values{opened}, and no other argument; in plans of local" in allowed


@requirement("inbox:grants")
async def test_a_grant_is_ended_with_a_button() -> None:
    async with visit() as (found, browser):
        _, page = await _form(browser, found)
        await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        grants = await browser.open("/inbox/grants")
        assert (await browser.submit(grants.form("/revoke"))).status == 303
        assert (await found.warden.execute_plan(plan(ERASE))).status == "suspended"
        kinds = [row.kind for row in (await found.warden.service.audit.read_page()).rows]
        assert "grant_made" in kinds and "grant_revoked" in kinds


@pytest.mark.parametrize(
    "changes",
    [
        {"uses": "0"},
        {"uses": "-1"},
        {"uses": "1001"},
        {"uses": "x"},
        {"uses": "٣"},
        {"minutes": "481"},
        {"minutes": ""},
    ],
)
async def test_numbers_that_are_not_usable_allow_nothing(changes: dict[str, str]) -> None:
    async with visit() as (found, browser):
        _, page = await _form(browser, found)
        fields = {"uses": "5", "minutes": "60", **changes}
        answer = await browser.submit(page.form("/grant/make"), **fields)
        assert answer.status == 422 and await found.warden.service.grants.list() == ()


async def test_a_decided_or_revised_question_allows_nothing() -> None:
    async with visit() as (found, browser):
        asked, page = await _form(browser, found)
        stale = await browser.submit(page.form("/grant/make"), uses="5", minutes="60", digest="0" * 64)
        assert stale.status == 409
        await browser.decide(asked, "reject")
        late = await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        assert late.status == 409 and await found.warden.service.grants.list() == ()


@requirement("inbox:grants")
@pytest.mark.parametrize("risk", ["confirm", "dangerous"])
async def test_allowing_approves_the_question_too_and_lets_the_next_calls_of_the_plan_through(risk: Risk) -> None:
    ledger = Ledger()

    @planwarden.tool(risk=risk)
    async def post(text: str, channel: str = "news") -> str:
        """Post."""
        ledger.lines.append(f"post {text} {channel}")
        return "posted"

    async with visit(ledger, tools=[post]) as (found, browser):
        asked = await found.ask(*(tool_step(name, "post", {"text": name}) for name in ("one", "two", "three")))
        where = f"/inbox/suspensions/{asked.suspension_id}"
        assert "Approve, and allow calls like this for a while" in (await browser.open(where)).words
        page = await browser.open(f"{where}/grant")
        for said in ("Approve post, and run calls like it without asking", "calls of post", "in plans of local"):
            assert said in " ".join(page.words.split())
        form = page.form("/grant/make")
        del form.fields[_fixed(page)[0]]
        made = await browser.submit(form, uses="1", minutes="15")
        assert (made.status, made.headers["location"]) == (303, where)
        outcome = " ".join((await browser.open(where)).words.split())
        assert "Approved. Step 1 of 3 is completed. The plan waits for another answer." in outcome
        assert ledger.lines == ["post one news", "post two news"]
        [grant] = await found.warden.service.grants.list()
        assert (grant.uses_left, grant.assurance, grant.created_by) == (0, "human", "ann")
        allowed = " ".join((await browser.open("/inbox/grants")).words.split())
        assert (
            "At most 1 call with exactly these values and any value of text, and no other argument; in plans" in allowed
        )
        [waiting] = (await found.warden.list_suspensions()).suspensions
        assert waiting.found == ()


@requirement("inbox:grants", "grants:step")
async def test_a_grant_for_a_step_is_shown_with_plan_version_step_and_what_is_left_today_and_is_ended(
    tmp_path: Path,
) -> None:
    (tmp_path / "plans").mkdir()
    file = tmp_path / "plans" / "weekly.json"
    file.write_text(json.dumps(plan(ERASE)))
    async with visit(settings=Settings(home=tmp_path)) as (found, browser):
        grants = found.warden.service.grants
        step = (await grants.find_step("weekly", "erase", "erase")).step
        request = GrantRequest(tool_name="erase", step=step, uses=3, expires_in_s=90 * 86_400.0)
        listed = await grants.make(request, Authority(assurance="human", channel="terminal", principal="ann"))
        page = await browser.open("/inbox/grants")
        words = " ".join(page.words.split())
        version = step.plan_digest[:12]
        assert "3 of 3 left today (UTC) ends" in words
        assert (
            f"erase in step erase of the saved plan weekly, version {version}, with the arguments that the plan "
            f"writes there, at most 3 calls a day (UTC), until {format_last_day(listed.expires_at)}, in runs of "
            "everybody; any change of the plan, the tool or the arguments' source asks again. Allowed by ann (a "
            "person, at the terminal)."
        ) in words
        file.write_text(json.dumps({"title": "changed", **plan(ERASE)}))
        changed = await browser.open("/inbox/grants")
        assert "the saved plan has changed since, so new runs ask" in changed.words
        await browser.submit(changed.form("/revoke"))
        assert "Ended" in (await browser.open("/inbox/grants")).words
        assert (await found.warden.run_plan("weekly")).status == "suspended"


async def test_a_call_that_no_grant_lets_through_says_that_others_are_allowed() -> None:
    async with visit() as (found, browser):
        _, page = await _form(browser, found)
        await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        asked = await found.ask(tool_step("e", "erase", {"ids": [9]}))
        assert asked.found == ("A person allowed calls of erase beforehand, but this call is not among them.",)


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
        assert (
            answer.status == 503 and "was approved, but nothing was allowed besides: the disk is full" in answer.words
        )
        assert found.ledger.lines == ["erase [1, 2]"] and await found.warden.service.grants.list() == ()
        shown = await browser.open(f"/inbox/suspensions/{asked}")
        assert "Approved." in shown.words and "Allowed besides" not in shown.words


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
        words = " ".join((await browser.open(f"/inbox/suspensions/{asked}")).words.split())
        assert f"Allowed besides: At most {grant.uses} calls with exactly these values" in words
        kinds = [row.kind for row in (await found.warden.service.audit.read_page()).rows]
        assert kinds.count("grant_made") == 1


async def test_of_a_rejection_and_a_permission_at_once_one_wins_and_nothing_is_allowed_without_an_answer() -> None:
    async with visit() as (found, browser):
        asked, page = await _form(browser, found)
        async with anyio.create_task_group() as tabs:
            tabs.start_soon(lambda: browser.submit(page.form("/grant/make"), uses="3", minutes="60"))
            tabs.start_soon(browser.decide, asked, "reject")
        grants = await found.warden.service.grants.list()
        row = await found.warden.service.engine.store.find_suspension(asked)
        assert row is not None
        decision = (await found.warden.service.engine.find(row.execution_id)).suspensions[asked].decision
        assert decision is not None and len(grants) == len(found.ledger.lines) == int(decision.approved)


@requirement("approval:grants")
async def test_nothing_that_a_model_can_call_makes_or_widens_a_grant() -> None:
    async with visit() as (found, browser):
        names = [tool.name for tool in TOOLS]
        assert not [name for name in names if "grant" in name or "allow" in name]
        asked, page = await _form(browser, found)
        row = await found.warden.service.engine.store.find_suspension(asked)
        assert row is not None
        claimed = Authority(assurance="claimed", channel="mcp", principal="local")
        for authority in (claimed, replace(claimed, assurance="client"), replace(claimed, assurance="caller")):
            with pytest.raises(planwarden.PlanwardenError, match="only a person can allow calls beforehand"):
                await found.warden.service.grants.make(
                    GrantRequest(tool_name="erase", uses=1, expires_in_s=60), authority
                )
        edit = planwarden.Decision(approved=True, modified_args={"ids": [1, 2, 3]})
        await found.warden.service.answer(row.thread_id, asked, edit, claimed, wait_seconds=60, principal=None)
        stale = await browser.submit(page.form("/grant/make"), uses="5", minutes="60")
        assert stale.status == 409 and await found.warden.service.grants.list() == ()
        assert found.ledger.lines == []


async def test_a_confirmation_cannot_be_allowed_in_advance_on_a_page() -> None:
    async with visit() as (found, browser):
        asked = await found.ask(confirm("c"))
        page = await browser.open_question(asked)
        assert not re.search(r"/grant\b", page.text)
        assert (await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")).status == 422


@pytest.mark.parametrize(
    ("hints", "source", "is_said"),
    [
        ({"readOnlyHint": True}, "crm", True),
        ({"readOnlyHint": True, "destructiveHint": True}, "crm", False),
        ({}, "crm", False),
        ({"readOnlyHint": True}, "python", False),
    ],
)
async def test_a_tool_that_only_reads_as_its_server_says_comes_with_the_command_that_trusts_it(
    hints: dict[str, JsonValue], source: str, is_said: bool
) -> None:
    async def look(arguments: dict[str, JsonValue], context: CallContext) -> str:
        return "found"

    definition = ToolDefinition(
        name="crm_look", description="Look.", input_schema={"type": "object"}, source=source, annotations=hints
    )
    async with visit() as (found, browser):
        found.warden.tools.replace_group(source, [Tool(define(definition), look)])
        asked = await found.ask(tool_step("look", "crm_look", {}))
        page = await browser.open_question(asked)
        assert ("planwarden trust crm crm_look" in page.words) is is_said
        # Until then, its calls can be allowed for a while as every other one.
        assert (await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")).status == 200
