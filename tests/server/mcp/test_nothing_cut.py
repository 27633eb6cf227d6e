"""What is cut cannot be decided: through a form, the view of the MCP App, the inbox, with a ledger of effects."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import EXTENSION_ID

import planwarden
from planwarden.server.mcp.app.view import META_KEY
from tests.requirements import requirement
from tests.server.inbox.support import open_inbox
from tests.server.mcp.support import ERAS, Document, Era, approving, ids_of, nobody, ok, question_of, sender, served
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("era", ERAS)]

YES: Document = {"approved": True}
FRIENDLY = "Send a friendly greeting to the team, " + "as every year, " * 19 + "and pay everybody."


@requirement("forms:whole")
async def test_an_action_that_a_form_cannot_show_whole_is_decided_on_the_page(tmp_path: Path, era: Era) -> None:
    assert len(FRIENDLY) == 341
    ledger = Ledger()
    asking = plan(confirm("a", FRIENDLY), tool_step("b", "note", {"text": "paid"}))
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=nobody) as client,
    ):
        asked = await ok(client, "execute_plan", plan=asking)
        still = await ok(client, "resume_execution", **ids_of(asked), decision=YES)
        assert (still["status"], still["awaiting"], ledger.lines) == ("suspended", "human", [])
        browser = open_inbox(found.warden).browser()
        await browser.log_in()
        suspension_id = question_of(asked)["suspensionId"]
        page = await browser.open(f"/inbox/suspensions/{suspension_id}")
        assert page.words.count(FRIENDLY) == 2 and FRIENDLY in page.words.split("Where it comes from")[1]
        assert (await browser.decide(suspension_id, "approve")).status == 303
    assert ledger.lines == ["note paid"]


@requirement("forms:whole")
async def test_a_short_action_stands_among_the_facts_of_a_form(tmp_path: Path, era: Era) -> None:
    ledger, person = Ledger(), approving()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        Client(found.server, mode=era, elicitation_callback=person) as client,
    ):
        asked = await ok(
            client, "execute_plan", plan=plan(confirm("a", "Greet?"), tool_step("b", "note", {"text": "x"}))
        )
        await ok(client, "resume_execution", **ids_of(asked), decision=YES)
    assert person.shown[0].message.splitlines()[1] == 'action="Greet?"' and ledger.lines == ["note x"]


@requirement("forms:whole")
@pytest.mark.parametrize("chars", [300, 500])
async def test_the_view_has_a_nonce_only_where_it_shows_every_value_whole(tmp_path: Path, era: Era, chars: int) -> None:
    ledger, to = Ledger(), "x" * chars
    app = [advertise(EXTENSION_ID, {"mimeTypes": ["text/html;profile=mcp-app"]})]
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, mode=era, extensions=app) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send", {"to": to})))
        still: Any = await client.call_tool("resume_execution", {**ids_of(asked), "decision": YES})
        [question] = still.meta[META_KEY]
        assert (question["nonce"] is not None) == (question["schema"] is not None) == (chars < 400)
        assert any("... [" in fact for fact in question["facts"]) == (chars > 400)
        pressed = {**ids_of(asked), "nonce": question["nonce"] or "x", "content": {"decision": "approve"}}
        await client.call_tool("app_decide", {**pressed, "waitSeconds": 60})
    assert ledger.lines == ([f"send {to} 1 False"] if chars < 400 else [])


@requirement("forms:whole")
async def test_the_page_shows_names_words_and_forms_whole(tmp_path: Path, era: Era) -> None:
    name, words, label = "n" * 900, "w" * 1_500 + "END", "l" * 900

    @planwarden.tool(execution_mode="blocking", effect="read", risk="confirm")
    async def ask(given: dict[str, str]) -> planwarden.Suspend:
        """Ask."""
        form: dict[str, Any] = {"type": "object", "properties": {label: {"type": "string", "description": label + "D"}}}
        return planwarden.Suspend(message=words, form=form)

    async with served(tmp_path, tools=[ask]) as found, Client(found.server, mode=era) as client:
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "ask", {"given": {name: "x"}})))
        browser = open_inbox(found.warden).browser()
        await browser.log_in()
        page = await browser.open(f"/inbox/suspensions/{question_of(asked)['suspensionId']}")
        for text in (name, words, label, label + "D"):
            assert text in page.words
