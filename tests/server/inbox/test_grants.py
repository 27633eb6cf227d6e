"""Standing grants on pages: made from a question for exactly what was checked, shown, used up, and ended."""

import anyio
import pytest
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import StoreError
from planwarden.agent.core.audit import AuditEntry
from planwarden.agent.core.tool import CallContext, Risk, ToolDefinition
from planwarden.agent.ports.grant import Grant
from planwarden.server.api.grants import GrantRequest
from planwarden.server.mcp.tools import TOOLS
from planwarden.tools.base import Tool, define
from tests.kit import Authority, Ledger, MemoryStore, plan, requirement, tool_step
from tests.server.inbox.support import ERASE, Browser, Inbox, Page, visit

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


OTHER = tool_step("e", "erase", {"ids": [9]})


async def _form(browser: Browser, found: Inbox) -> tuple[str, Page]:
    asked = await found.ask()
    return asked.suspension_id, await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")


def _fixed(page: Page) -> list[str]:
    return [name for name in page.form("/grant/make").fields if name.startswith("fix.")]


@requirement("inbox:grants")
async def test_calls_with_the_checked_values_run_without_asking_until_they_are_used_up() -> None:
    async with visit() as (found, browser):
        asked, page = await _form(browser, found)
        made = await browser.submit(page.form("/grant/make"), uses="2", minutes="60")
        assert (made.status, made.headers["location"]) == (303, f"/inbox/suspensions/{asked}")
        assert found.ledger.lines == ["erase [1, 2]"]
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
        [checked] = _fixed(page)
        await browser.submit(page.form("/grant/make"), uses="5", minutes="15", **{checked: None})
        assert (await found.warden.execute_plan(plan(OTHER))).status == "completed"
        assert (await browser.submit((await browser.open("/inbox/grants")).form("/revoke"))).status == 303
        assert (await found.warden.execute_plan(plan(OTHER))).status == "suspended"
        kinds = [row.kind for row in (await found.warden.service.audit.read_page()).rows]
        assert "grant_made" in kinds and "grant_revoked" in kinds


async def test_unusable_numbers_and_a_revised_or_decided_question_allow_nothing() -> None:
    async with visit() as (found, browser):
        asked, page = await _form(browser, found)
        form = page.form("/grant/make")
        for name, texts in {"uses": ("0", "-1", "1001", "x", "٣"), "minutes": ("481", "")}.items():
            for text in texts:
                fields = {"uses": "5", "minutes": "60", name: text}
                assert (await browser.submit(form, **fields)).status == 422, (name, text)
        assert (await browser.submit(form, uses="5", minutes="60", digest="0" * 64)).status == 409
        await browser.decide(asked, "reject")
        assert (await browser.submit(form, uses="5", minutes="60")).status == 409
        assert await found.warden.service.grants.list() == ()


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
        words = page.said
        assert "Let calls have other arguments, too, with any value: bcc, amount" in words
        others = {"others": "yes"} if is_ticked else {}
        await browser.submit(page.form("/grant/make"), uses="5", minutes="15", **others)
        for more in ({"bcc": "eve"}, {"amount": 1e9}):
            step = tool_step("a", "send", {"to": "ann", "text": "hello", **more})
            assert (await found.warden.execute_plan(plan(step))).status == ("completed" if is_ticked else "suspended")
        assert len(sent) == (3 if is_ticked else 1)
        allowed = (await browser.open("/inbox/grants")).said
        opened = " and any value of bcc, amount" if is_ticked else ""
        assert f"with exactly these values{opened}, and no other argument; in plans of local" in allowed


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
            assert said in page.said
        form = page.form("/grant/make")
        del form.fields[_fixed(page)[0]]
        made = await browser.submit(form, uses="1", minutes="15")
        assert (made.status, made.headers["location"]) == (303, where)
        outcome = (await browser.open(where)).said
        assert "Approved. Step 1 of 3 is completed. The plan waits for an answer." in outcome
        assert ledger.lines == ["post one news", "post two news"]
        [grant] = await found.warden.service.grants.list()
        assert (grant.uses_left, grant.assurance, grant.created_by) == (0, "human", "ann")
        allowed = (await browser.open("/inbox/grants")).said
        assert (
            "At most 1 call with exactly these values and any value of text, and no other argument; in plans" in allowed
        )
        [waiting] = (await found.warden.list_suspensions()).suspensions
        assert waiting.found == ()


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
        words = (await browser.open(f"/inbox/suspensions/{asked}")).said
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
            asked = await found.ask(tool_step("look", definition.name, {}))
            page = await browser.open_question(asked)
            assert (f"planwarden trust {source} {definition.name}" in page.words) is is_said
            # Until then, its calls can be allowed for a while as every other one.
            assert (await browser.open(f"/inbox/suspensions/{asked.suspension_id}/grant")).status == 200
