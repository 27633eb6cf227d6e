"""Questions that send a client away: addresses decide nothing, sealed state has one effect, and asking is braked."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import mcp.server.request_state
import pytest
from mcp import Client, MCPError, types

from planwarden.agent.common.errors import RateLimited
from planwarden.server.mcp.server import QUESTION_TTL_S
from tests.kit import YES, MemoryStore, Settings, by, decide, ok, open_desk, requirement, served
from tests.server.mcp import support
from tests.server.mcp.http_support import client_of, serving, token_for
from tests.support.fakes import WatchedStore
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

both = pytest.mark.parametrize("era", support.ERAS)

DANGEROUS = plan(tool_step("a", "erase", {"ids": [1, 2]}))
CONFIRMED = plan(confirm("b"))
NOW: support.Document = {"decision": {"approved": True}, "waitSeconds": 0}


@requirement("resume:link", "resume:table")
@both
@pytest.mark.parametrize(
    ("action", "content"),
    [
        ("accept", None),
        ("accept", {"decision": "approve"}),
        ("accept", {"approved": True}),
        ("decline", None),
        ("cancel", None),
    ],
    ids=str,
)
async def test_an_address_opened_or_not_decides_nothing(
    tmp_path: Path, era: support.Era, action: Any, content: dict[str, Any] | None
) -> None:
    async with open_desk(tmp_path, era, asks=support.Browser(action, content), inbox_url=support.INBOX) as desk:
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        with anyio.fail_after(60):
            # Nobody waits for a page that was not opened, whatever the call's time.
            wait = 0 if action == "accept" else 300
            still = await desk.ok("resume_execution", **support.ids_of(asked), **{**NOW, "waitSeconds": wait})
        assert (still["status"], still["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
        said = "has not decided on the page yet" if action == "accept" else "did not open the page"
        assert said in still["nextAction"] and support.INBOX in still["nextAction"]


@requirement("resume:link")
@both
@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_on_the_page_while_the_call_waits_is_its_result(
    tmp_path: Path, era: support.Era, approved: bool
) -> None:
    ledger, opened, told = Ledger(), anyio.Event(), list[object]()

    async def opens(url: str) -> None:
        opened.set()

    async def on_message(message: object) -> None:
        told.append(message)

    browser = support.Browser(opens=opens)
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=browser, message_handler=on_message) as client,
        anyio.create_task_group() as tasks,
    ):
        found.warden.service.inbox_url = support.INBOX
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        suspension = support.ids_of(asked)["suspensionId"]

        async def decide() -> None:
            await opened.wait()
            await support.decide_on_page(found, approved=approved)

        with anyio.fail_after(60):
            tasks.start_soon(decide)
            done = await ok(client, "resume_execution", **support.ids_of(asked), decision={"approved": True})
        assert done["status"] == ("completed" if approved else "rejected")
        assert ledger.lines == ["erase [1, 2]"] * approved
        [params] = browser.sent
        assert params.url == f"{support.INBOX}/suspensions/{suspension}"
        complete = [
            entry.params.elicitation_id for entry in told if isinstance(entry, types.ElicitCompleteNotification)
        ]
        assert complete == ([suspension] if era == "legacy" else [])


class FakeInboxOpener:
    """Opens an inbox at an address, or cannot; keeps who was called."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.opened = 0
        self.called = list[str]()

    def address(self) -> str | None:
        self.opened += 1
        return self.url

    def show_in_browser(self, suspension_id: str) -> None:
        self.called.append(suspension_id)


@requirement("resume:link")
@both
async def test_the_inbox_is_opened_once_and_the_person_called_when_the_client_can_show_neither(
    tmp_path: Path, era: support.Era
) -> None:
    opener = FakeInboxOpener(support.INBOX)
    async with open_desk(tmp_path, era) as desk:
        desk.warden.service.inbox_opener = opener
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        url = f"{support.INBOX}/suspensions/{support.ids_of(asked)['suspensionId']}"
        assert "resume_execution" not in asked["nextAction"]
        for _ in range(2):
            # A client that cannot open addresses is told the address.
            assert support.question_of(asked)["howToAnswer"]["inboxUrl"] == url and url in asked["nextAction"]
            asked = await desk.ok("resume_execution", **support.ids_of(asked), **NOW)
        assert (opener.opened, desk.ledger.lines) == (1, [])
        assert opener.called == [support.ids_of(asked)["suspensionId"]] * 3


@requirement("resume:brake")
@both
@pytest.mark.parametrize(
    "asks",
    [support.Browser, lambda: support.Person("decline"), lambda: support.Person(content={})],
    ids=["page", "declined", "empty"],
)
async def test_putting_the_same_question_to_a_person_again_and_again_is_slowed_down(
    tmp_path: Path, era: support.Era, asks: Any
) -> None:
    person: support.Browser | support.Person = asks()
    async with open_desk(tmp_path, era, asks=person, inbox_url=support.INBOX) as desk:
        asked = await desk.ok("execute_plan", plan=DANGEROUS if isinstance(person, support.Browser) else CONFIRMED)
        for _ in range(5):
            assert (await desk.ok("resume_execution", **support.ids_of(asked), **NOW))["status"] == "suspended"
        for _ in range(3):
            error = await desk.refused("resume_execution", **support.ids_of(asked), **NOW)
            assert error["code"] == "rate_limited" and error["details"]["retryAfterSeconds"] > 0
        assert len(person.sent if isinstance(person, support.Browser) else person.shown) == 5
        await support.decide_on_page(desk)
        assert (await desk.ok("get_execution", threadId=asked["threadId"]))["status"] == "completed"


@requirement("resume:brake")
async def test_a_server_that_starts_again_goes_on_counting(tmp_path: Path) -> None:
    async with open_desk(tmp_path, asks=support.nobody, on_disk=True) as desk:
        ids = support.ids_of(await desk.ok("execute_plan", plan=DANGEROUS))
        for _ in range(4):
            assert (await desk.ok("resume_execution", **ids, **NOW))["status"] == "suspended"
    async with open_desk(tmp_path, asks=support.nobody, on_disk=True) as desk:
        assert (await desk.ok("resume_execution", **ids, **NOW))["status"] == "suspended"
        assert (await desk.refused("resume_execution", **ids, **NOW))["code"] == "rate_limited"


@requirement("resume:brake")
async def test_a_form_that_a_person_closed_does_not_count_as_a_decision_without_a_person(tmp_path: Path) -> None:
    person = support.Person("cancel")
    async with open_desk(tmp_path, asks=person) as desk:
        ids = support.ids_of(await desk.ok("execute_plan", plan=CONFIRMED))
        for decision in ({}, {"reason": "They agreed."}) * 2 + ({},):
            await desk.ok("resume_execution", **ids, decision=decision)
        error = await desk.refused("resume_execution", **ids)
        assert f"suspension {ids['suspensionId']!r} was put to a person in vain 5 times; a person" in error["message"]
        person.action, person.content = "accept", {"decision": "approve"}
        assert (await desk.ok("resume_execution", **ids, decision={"approved": True}))["status"] == "completed"


@requirement("resume:brake")
async def test_attempts_are_also_counted_on_a_store_of_a_program_that_keeps_no_records() -> None:
    async with warden(Ledger(), store=WatchedStore(MemoryStore())) as made:
        asked = await made.execute_plan(DANGEROUS)
        claim = partial(
            decide, made.service, asked, YES, by("local", "claimed", "mcp"), principal="local", wait_seconds=0
        )
        for _ in range(5):
            assert (await claim()).status == "suspended"
        with pytest.raises(RateLimited):
            await claim()


async def _return(client: Client, arguments: support.Document) -> types.InputRequiredResult:
    result = await client.session.call_tool("resume_execution", arguments, allow_input_required=True)
    assert isinstance(result, types.InputRequiredResult) and result.request_state is not None
    assert arguments["suspensionId"] not in result.request_state
    return result


async def _answer(client: Client, arguments: support.Document, state: str | None, action: Any, **content: Any) -> Any:
    answer: Any = {"decision": types.ElicitResult(action=action, content=content or None)}
    return await client.session.call_tool(
        "resume_execution", arguments, input_responses=answer, request_state=state, allow_input_required=True
    )


@asynccontextmanager
async def _asked(
    home: Path, question: support.Document = DANGEROUS
) -> AsyncGenerator[tuple[support.Desk, support.Document]]:
    """A server that has an inbox, with a client that asks nobody, and the arguments that resume the question."""
    async with open_desk(home, asks=support.nobody, inbox_url=support.INBOX) as desk:
        asked = await desk.ok("execute_plan", plan=question)
        yield desk, {**support.ids_of(asked), **NOW}


@requirement("resume:brake", "resume:state")
@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
@pytest.mark.parametrize("question", [CONFIRMED, DANGEROUS], ids=["form", "page"])
async def test_a_replayed_answer_without_a_decision_is_slowed_down_too(
    tmp_path: Path, action: str, question: support.Document
) -> None:
    async with _asked(tmp_path, question) as (desk, arguments):
        state = (await _return(desk.client, arguments)).request_state
        codes: list[str] = []
        for _ in range(8):
            result = await _answer(desk.client, arguments, state, action)
            codes.append(result.structured_content["error"]["code"] if result.is_error else "asked")
        assert codes == ["asked"] * 5 + ["rate_limited"] * 3 and desk.ledger.lines == []


@requirement("resume:state")
async def test_one_sealed_address_accepted_a_hundred_times_has_the_one_effect_of_the_decision(tmp_path: Path) -> None:
    async with _asked(tmp_path) as (desk, arguments):
        first, second = [await _return(desk.client, arguments) for _ in range(2)]
        assert first.input_requests == second.input_requests
        [request] = (first.input_requests or {}).values()
        assert isinstance(request, types.ElicitRequest) and isinstance(request.params, types.ElicitRequestURLParams)
        assert request.params.elicitation_id is None
        for said in ("approve", "reject"):
            # The state of a page is answered by no form.
            result = await _answer(desk.client, arguments, first.request_state, "accept", decision=said)
            assert (result.structured_content["status"], desk.ledger.lines) == ("suspended", [])
        await support.decide_on_page(desk)
        for _ in range(100):
            result = await _answer(desk.client, arguments, first.request_state, "accept", decision="approve")
            assert result.structured_content["status"] == "completed"
        assert desk.ledger.lines == ["erase [1, 2]"]


@requirement("resume:state")
async def test_a_forged_or_moved_state_is_refused_and_an_answer_without_one_is_asked_anew(tmp_path: Path) -> None:
    async with _asked(tmp_path, CONFIRMED) as (desk, arguments):
        other = {**support.ids_of(await desk.ok("execute_plan", plan=CONFIRMED)), **NOW}
        state = (await _return(desk.client, arguments)).request_state
        assert state is not None
        forged = (state[:-2] + "AA", '{"suspensionId": "x", "digest": "y"}')
        for given, sent in ((other, state), *((arguments, each) for each in forged)):
            with pytest.raises(MCPError, match="requestState"):
                await _answer(desk.client, given, sent, "accept", decision="approve")
        result = await _answer(desk.client, arguments, None, "accept", decision="approve")
        assert isinstance(result, types.InputRequiredResult) and (await desk.warden.list_suspensions()).total == 2


@requirement("resume:state")
@pytest.mark.parametrize("question", [CONFIRMED, DANGEROUS], ids=["form", "page"])
async def test_a_question_that_was_returned_too_long_ago_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: support.Document
) -> None:
    async with _asked(tmp_path, question) as (desk, arguments):
        long_ago = time.time() - QUESTION_TTL_S - 60
        with monkeypatch.context() as past:
            past.setattr(mcp.server.request_state, "time", SimpleNamespace(time=lambda: long_ago))
            state = (await _return(desk.client, arguments)).request_state
        with pytest.raises(MCPError, match="requestState"):
            await _answer(desk.client, arguments, state, "accept", decision="approve")
        assert desk.ledger.lines == []


@requirement("resume:state", "access:owners")
async def test_the_state_of_one_owner_is_worth_nothing_to_another(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ann, bob = await token_for(settings, "ann"), await token_for(settings, "bob")
    async with (
        serving(settings) as url,
        client_of(url, ann, "auto", support.approving()) as hers,
        client_of(url, bob, "auto", support.approving()) as his,
    ):
        asked = await ok(hers, "execute_plan", plan=CONFIRMED)
        arguments: support.Document = {**support.ids_of(asked), **NOW}
        state = (await _return(hers, arguments)).request_state
        with pytest.raises(MCPError, match="requestState"):
            await _answer(his, arguments, state, "accept", decision="approve")
        done = await _answer(hers, arguments, state, "accept", decision="approve")
        assert done.structured_content["status"] in ("running", "completed")
