"""Questions that a person decides outside of MCP: the client gets an address, and the store has the decision."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx2
import mcp.server.request_state
import pytest
from mcp import Client, MCPError
from mcp.types import (
    ElicitCompleteNotification,
    ElicitRequest,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.server.mcp.server import QUESTION_TTL_S
from tests.kit import Ledger, Settings, confirm, ok, open_desk, plan, requirement, served, tool_step
from tests.server.mcp.http_support import HEADERS, client_of, serving, token_for
from tests.server.mcp.support import (
    ERAS,
    Browser,
    Document,
    Era,
    Person,
    Served,
    approving,
    ids_of,
    nobody,
    question_of,
)

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("era", ERAS)

INBOX = "http://127.0.0.1:4711/inbox"
DANGEROUS = plan(tool_step("a", "erase", {"ids": [1, 2]}))
NOW: Document = {"decision": {"approved": True}, "waitSeconds": 0}


async def _decide(found: Served, url: str, *, approved: bool = True) -> None:
    """What the page behind the address does when the person decides there."""
    suspension = url.rpartition("/")[2]
    row = await found.warden.service.engine.store.find_suspension(suspension)
    assert row is not None
    authority = Authority(assurance="human", channel="inbox", principal="ann", digest=row.digest)
    await found.warden.service.answer(
        row.thread_id, suspension, Decision(approved=approved), authority, wait_seconds=0, principal=None
    )


@requirement("resume:link", "resume:table")
@both
async def test_the_person_is_sent_to_the_page_of_that_question(tmp_path: Path, era: Era) -> None:
    browser = Browser()
    async with open_desk(tmp_path, era, asks=browser) as desk:
        desk.warden.service.inbox_url = INBOX
        browser.opens = lambda url: _decide(desk, url)
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        done = await desk.ok("resume_execution", **ids_of(asked), **NOW)
        done = await desk.ok("get_execution", threadId=done["threadId"])
        assert (done["status"], desk.ledger.lines) == ("completed", ["erase [1, 2]"])
        [params] = browser.sent
        assert params.url == f"{INBOX}/suspensions/{ids_of(asked)['suspensionId']}"
        assert params.message.splitlines()[:2] == ["Run this call? erase (risk: dangerous)", "ids=[1, 2]"]
        assert params.message.endswith("accepting here only opens it.")


@requirement("resume:link")
@both
@pytest.mark.parametrize("content", [None, {}, {"decision": "approve"}, {"approved": True}], ids=str)
async def test_an_opened_page_without_a_decision_is_pending(
    tmp_path: Path, era: Era, content: dict[str, Any] | None
) -> None:
    browser = Browser(content=content)
    async with open_desk(tmp_path, era, asks=browser) as desk:
        desk.warden.service.inbox_url = INBOX
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        still = await desk.ok("resume_execution", **ids_of(asked), **NOW)
        assert (still["status"], still["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
        assert "has not decided on the page yet" in still["nextAction"] and INBOX in still["nextAction"]


@requirement("resume:table")
@both
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_page_that_was_not_opened_decides_nothing(tmp_path: Path, era: Era, action: Any) -> None:
    browser = Browser(action)
    async with open_desk(tmp_path, era, asks=browser) as desk:
        desk.warden.service.inbox_url = INBOX
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        with anyio.fail_after(60):
            # Nobody waits for a page that was not opened, whatever the call's time.
            still = await desk.ok("resume_execution", **ids_of(asked), decision={"approved": True})
        assert (still["status"], still["awaiting"], desk.ledger.lines) == ("suspended", "human", [])
        assert "did not open the page" in still["nextAction"]


@requirement("resume:link")
@both
@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_on_the_page_while_the_call_waits_is_its_result(
    tmp_path: Path, era: Era, approved: bool
) -> None:
    ledger, opened, told = Ledger(), anyio.Event(), list[object]()

    async def opens(url: str) -> None:
        opened.set()

    async def on_message(message: object) -> None:
        told.append(message)

    browser = Browser(opens=opens)
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=browser, message_handler=on_message) as client,
        anyio.create_task_group() as tasks,
    ):
        found.warden.service.inbox_url = INBOX
        asked = await ok(client, "execute_plan", plan=DANGEROUS)

        async def decide() -> None:
            await opened.wait()
            await _decide(found, browser.sent[0].url, approved=approved)

        with anyio.fail_after(60):
            tasks.start_soon(decide)
            done = await ok(client, "resume_execution", **ids_of(asked), decision={"approved": True})
        assert done["status"] == ("completed" if approved else "rejected")
        assert ledger.lines == ["erase [1, 2]"] * approved
        complete = [entry for entry in told if isinstance(entry, ElicitCompleteNotification)]
        if era == "legacy":
            assert [entry.params.elicitation_id for entry in complete] == [ids_of(asked)["suspensionId"]]
        else:
            assert complete == []


class FakeInboxOpener:
    """Opens an inbox at an address, or cannot; keeps who was called."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.opened = 0
        self.called = list[str]()

    def address(self) -> str | None:
        self.opened += 1
        return self.url

    def call_person(self, suspension_id: str) -> None:
        self.called.append(suspension_id)


@requirement("resume:link")
@both
async def test_the_inbox_is_opened_once_and_the_person_called_when_the_client_can_show_neither(
    tmp_path: Path, era: Era
) -> None:
    ledger, opener = Ledger(), FakeInboxOpener(INBOX)
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=approving()) as shown,
        Client(found.server, mode=era) as plain,
    ):
        found.warden.service.inbox_opener = opener
        easy = await ok(shown, "execute_plan", plan=plan(confirm("b")))
        assert (await ok(shown, "resume_execution", **ids_of(easy), **NOW))["status"] == "completed"
        assert opener.called == []
        asked = await ok(plain, "execute_plan", plan=DANGEROUS)
        url = f"{INBOX}/suspensions/{ids_of(asked)['suspensionId']}"
        assert question_of(asked)["howToAnswer"]["inboxUrl"] == url
        assert url in asked["nextAction"] and "resume_execution" not in asked["nextAction"]
        for _ in range(2):
            # A client that cannot open addresses is told the address.
            still = await ok(plain, "resume_execution", **ids_of(asked), **NOW)
            assert question_of(still)["howToAnswer"]["inboxUrl"] == url and url in still["nextAction"]
        assert (opener.opened, ledger.lines) == (1, [])
        assert opener.called == [ids_of(asked)["suspensionId"]] * 3


@both
async def test_a_form_that_cannot_hold_the_question_becomes_an_address(tmp_path: Path, era: Era) -> None:
    form: Document = {"type": "object", "properties": {"who": {"type": "object", "properties": {}}}}
    browser = Browser()
    asks = plan(tool_step("ask", "requestInput", {"message": "Who?", "form": form}))
    async with open_desk(tmp_path, era, asks=browser) as desk:
        desk.warden.service.inbox_url = INBOX
        asked = await desk.ok("execute_plan", plan=asks)
        await desk.ok("resume_execution", **ids_of(asked), **NOW)
        assert [params.url.rpartition("/")[2] for params in browser.sent] == [ids_of(asked)["suspensionId"]]


@requirement("resume:brake")
@both
async def test_sending_a_person_to_the_page_is_slowed_down(tmp_path: Path, era: Era) -> None:
    browser = Browser()
    async with open_desk(tmp_path, era, asks=browser) as desk:
        desk.warden.service.inbox_url = INBOX
        asked = await desk.ok("execute_plan", plan=DANGEROUS)
        for _ in range(5):
            await desk.ok("resume_execution", **ids_of(asked), **NOW)
        for _ in range(3):
            error = await desk.refused("resume_execution", **ids_of(asked), **NOW)
            assert error["code"] == "rate_limited" and error["details"]["retryAfterSeconds"] > 0
        assert (len(browser.sent), desk.ledger.lines) == (5, [])
        await _decide(desk, browser.sent[0].url)
        assert (await desk.ok("get_execution", threadId=asked["threadId"]))["status"] == "completed"


@requirement("resume:brake")
@both
@pytest.mark.parametrize("person", [Person("decline"), Person("cancel"), Person(content={})], ids=str)
async def test_showing_a_person_the_same_form_again_and_again_is_slowed_down(
    tmp_path: Path, era: Era, person: Person
) -> None:
    person = Person(person.action, person.content)
    async with open_desk(tmp_path, era, asks=person) as desk:
        asked = await desk.ok("execute_plan", plan=plan(confirm("b")))
        for _ in range(5):
            assert (await desk.ok("resume_execution", **ids_of(asked), **NOW))["status"] == "suspended"
        assert (await desk.refused("resume_execution", **ids_of(asked), **NOW))["code"] == "rate_limited"
        assert len(person.shown) == 5


async def _returned(client: Client, arguments: Document) -> str:
    result = await client.session.call_tool("resume_execution", arguments, allow_input_required=True)
    assert isinstance(result, InputRequiredResult) and result.request_state is not None
    return result.request_state


@asynccontextmanager
async def _asked(home: Path, question: Document = DANGEROUS) -> AsyncGenerator[tuple[Served, Client, Ledger, Document]]:
    """A server that has an inbox, a client that asks nobody, the ledger, and the arguments that resume the question."""
    ledger = Ledger()
    async with (
        served(home, tools=ledger.tools()) as found,
        Client(found.server, elicitation_callback=nobody) as client,
    ):
        found.warden.service.inbox_url = INBOX
        asked = await ok(client, "execute_plan", plan=question)
        yield found, client, ledger, {**ids_of(asked), **NOW}


def _says(action: Any, **content: Any) -> Document:
    return {"decision": ElicitResult(action=action, content=content or None)}


@requirement("resume:brake", "resume:state")
@pytest.mark.parametrize(
    "answer", [_says("accept"), _says("decline"), _says("cancel")], ids=["accept", "decline", "cancel"]
)
@pytest.mark.parametrize("is_form", [True, False], ids=["form", "page"])
async def test_a_replayed_answer_without_a_decision_is_slowed_down_too(
    tmp_path: Path, answer: Document, is_form: bool
) -> None:
    question = plan(confirm("b")) if is_form else DANGEROUS
    async with _asked(tmp_path, question) as (_, client, ledger, arguments):
        state = await _returned(client, arguments)
        codes: list[str] = []
        for _ in range(8):
            result = await client.session.call_tool(
                "resume_execution", arguments, input_responses=answer, request_state=state
            )
            codes.append(result.structured_content["error"]["code"] if result.is_error else "asked")
        assert codes == ["asked"] * 5 + ["rate_limited"] * 3
        assert ledger.lines == []


@requirement("resume:state")
async def test_one_sealed_address_accepted_a_hundred_times_has_the_one_effect_of_the_decision(tmp_path: Path) -> None:
    async with _asked(tmp_path) as (found, client, ledger, arguments):
        state = await _returned(client, arguments)
        assert state and arguments["suspensionId"] not in state
        await _decide(found, f"{INBOX}/suspensions/{arguments['suspensionId']}")
        for _ in range(100):
            result = await client.session.call_tool(
                "resume_execution",
                arguments,
                input_responses=_says("accept", decision="approve"),
                request_state=state,
            )
            assert result.structured_content["status"] == "completed"
        assert ledger.lines == ["erase [1, 2]"]


@requirement("resume:state")
async def test_the_state_of_a_page_cannot_be_answered_as_a_form(tmp_path: Path) -> None:
    async with _asked(tmp_path) as (_, client, ledger, arguments):
        state = await _returned(client, arguments)
        for said in ("approve", "reject"):
            result = await client.session.call_tool(
                "resume_execution", arguments, input_responses=_says("accept", decision=said), request_state=state
            )
            assert (result.structured_content["status"], ledger.lines) == ("suspended", [])


@requirement("resume:state")
@pytest.mark.parametrize("is_form", [True, False], ids=["form", "page"])
async def test_a_question_that_was_returned_too_long_ago_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_form: bool
) -> None:
    question = plan(confirm("b")) if is_form else DANGEROUS
    async with _asked(tmp_path, question) as (_, client, ledger, arguments):
        long_ago = time.time() - QUESTION_TTL_S - 60
        with monkeypatch.context() as past:
            past.setattr(mcp.server.request_state, "time", SimpleNamespace(time=lambda: long_ago))
            state = await _returned(client, arguments)
        with pytest.raises(MCPError, match="requestState"):
            await client.session.call_tool(
                "resume_execution",
                arguments,
                input_responses=_says("accept", decision="approve"),
                request_state=state,
            )
        assert ledger.lines == []


@requirement("resume:state", "access:owners")
async def test_the_state_of_one_owner_is_worth_nothing_to_another(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ann, bob = await token_for(settings, "ann"), await token_for(settings, "bob")
    async with (
        serving(settings) as url,
        client_of(url, ann, "auto", approving()) as hers,
        client_of(url, bob, "auto", approving()) as his,
    ):
        asked = await ok(hers, "execute_plan", plan=plan(confirm("b")))
        arguments: Document = {**ids_of(asked), **NOW}
        state = await _returned(hers, arguments)
        answer = _says("accept", decision="approve")
        with pytest.raises(MCPError, match="requestState"):
            await his.session.call_tool("resume_execution", arguments, input_responses=answer, request_state=state)
        done = await hers.session.call_tool("resume_execution", arguments, input_responses=answer, request_state=state)
        assert done.structured_content["status"] in ("running", "completed")


async def test_a_protocol_that_knows_no_addresses_is_sent_none(tmp_path: Path) -> None:
    async with serving(Settings(home=tmp_path)) as url, httpx2.AsyncClient(headers=HEADERS, timeout=60) as http:
        hello: Document = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"elicitation": {"url": {}}},
            "clientInfo": {"name": "old", "version": "1"},
        }
        opened = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
        async with Client(url) as client:
            asked = await ok(client, "execute_plan", plan=plan(confirm("b")))
        params: Document = {"name": "resume_execution", "arguments": {**ids_of(asked), **NOW}}
        called = await http.post(
            url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}, headers=session
        )
        assert "elicitation/create" not in called.text and "awaiting" in called.text


async def test_the_returned_address_is_an_ordinary_one_and_always_the_same(tmp_path: Path) -> None:
    async with _asked(tmp_path) as (_, client, _, arguments):
        first, second = [
            await client.session.call_tool("resume_execution", arguments, allow_input_required=True) for _ in range(2)
        ]
        assert isinstance(first, InputRequiredResult) and isinstance(second, InputRequiredResult)
        assert first.input_requests == second.input_requests
        [request] = (first.input_requests or {}).values()
        assert isinstance(request, ElicitRequest) and isinstance(request.params, ElicitRequestURLParams)
        assert request.params.elicitation_id is None
