"""The MCP App: which hosts see it, what its nonce allows, and that a model cannot press its buttons."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.types import CallToolResult

from planwarden.server.mcp.app.nonces import NONCE_TTL_S, Nonces
from planwarden.server.mcp.app.view import META_KEY, URI, build_page
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.tools import TOOLS
from planwarden.server.views.suspension import Suspension
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.memory import MemoryStore
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Document, Era, ids_of, ok, question_of, refused, served
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("era", ERAS)

APPS = [advertise(EXTENSION_ID, {"mimeTypes": [APP_MIME_TYPE]})]
CONFIRMED = plan(confirm("a", "write it down?"), tool_step("b", "note", {"text": "x"}))
DANGEROUS = plan(tool_step("a", "erase", {"ids": [1]}))
YES: Document = {"decision": "approve"}


def _host(server: PlanwardenServer, era: Era) -> Client:
    """A host that draws apps and shows no forms."""
    return Client(server, mode=era, extensions=APPS)


async def _shown(client: Client, thread_id: str) -> list[Document]:
    """What the view gets to see."""
    result = await client.call_tool("get_execution", {"threadId": thread_id})
    return _questions(result)


def _questions(result: CallToolResult) -> list[Document]:
    assert result.meta is not None
    found: list[Document] = result.meta[META_KEY]
    return found


def _press(asked: Document, question: Document, **content: Any) -> Document:
    return {**ids_of(asked), "nonce": question["nonce"], "content": content, "waitSeconds": 60}


@requirement("app:nonce", "app:assurance")
@both
async def test_the_view_gets_the_three_voices_and_a_form_until_the_person_decided(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, _host(found.server, era) as client:
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        still = await client.call_tool("resume_execution", {**ids_of(asked), "decision": {"approved": True}})
        [question] = _questions(still)
        assert (question["heading"], question["facts"][0]) == ("Confirm?", "Tool: displayConfirmation")
        assert (question["label"], question["words"]) == ("The agent says (unverified)", "write it down?")
        assert question["schema"]["required"] == ["decision"]
        result = await client.call_tool("app_decide", _press(asked, question, **YES))
        assert _questions(result) == [] and ledger.lines == ["note x"]


@requirement("app:assurance")
@both
@pytest.mark.parametrize(("covered", "is_decided"), [(3, True), (20, False)])
async def test_the_view_decides_what_is_too_long_for_a_form_and_fits_into_it(
    tmp_path: Path, era: Era, covered: int, is_decided: bool
) -> None:
    ledger = Ledger()
    steps = [tool_step(f"s{n}", "note", {"text": "y" * 300}) for n in range(covered)]
    asking = plan(confirm("ask", confirms=[f"s{n}" for n in range(covered)]), *steps)
    async with served(tmp_path, tools=ledger.tools()) as found, _host(found.server, era) as client:
        asked = await ok(client, "execute_plan", plan=asking, options={"synthesize": False})
        still = await client.call_tool("resume_execution", {**ids_of(asked), "decision": {"approved": True}})
        [question] = _questions(still)
        assert (question["schema"] is not None, question["nonce"] is not None) == (is_decided, is_decided)
        assert len(question["facts"]) > 2 * covered and ledger.lines == []


@requirement("app:nonce")
@both
async def test_the_nonce_is_nowhere_that_a_model_reads(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path, tools=Ledger().tools()) as found, _host(found.server, era) as client:
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        result = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        [question] = _questions(result)
        nonce = question["nonce"]
        assert len(nonce) >= 43
        read = [
            str(result.content),
            json.dumps(result.structured_content),
            str(await client.read_resource("planwarden://suspensions")),
            str(await client.read_resource(f"planwarden://executions/{asked['threadId']}")),
            str(await client.call_tool("list_suspensions", {})),
            str(await refused(client, "app_decide", **{**_press(asked, question, **YES), "content": "x"})),
        ]
        assert not any(nonce in text for text in read)


@requirement("app:nonce")
@both
@pytest.mark.parametrize("nonce", ["", "x" * 43, "null"])
async def test_a_model_that_calls_the_apps_tool_decides_nothing_and_is_told_to_stop(
    tmp_path: Path, era: Era, nonce: str
) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools()) as found,
        _host(found.server, era) as view,
        Client(found.server, mode=era) as model,
    ):
        asked = await ok(model, "execute_plan", plan=CONFIRMED)
        await _shown(view, asked["threadId"])
        codes: list[str] = []
        for said in ("approve", "reject", "approve", "reject", "approve", "approve"):
            call: Document = {**ids_of(asked), "nonce": nonce, "content": {"decision": said}}
            codes.append((await refused(model, "app_decide", **call))["code"])
        assert codes == ["invalid_arguments"] * 5 + ["rate_limited"]
        assert (ledger.lines, (await _shown(view, asked["threadId"]))[0]["suspensionId"]) == (
            [],
            ids_of(asked)["suspensionId"],
        )


@requirement("app:nonce")
@both
async def test_a_nonce_counts_once_for_its_own_question(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, _host(found.server, era) as client:
        first, second = [await ok(client, "execute_plan", plan=CONFIRMED) for _ in range(2)]
        [question] = await _shown(client, first["threadId"])
        other = {**_press(first, question, **YES), **ids_of(second)}
        assert (await refused(client, "app_decide", **other))["code"] == "invalid_arguments"
        crossed = {**_press(first, question, **YES), "threadId": second["threadId"]}
        assert (await refused(client, "app_decide", **crossed))["code"] == "unknown_suspension"
        assert ledger.lines == []
        await ok(client, "app_decide", **_press(first, question, **YES))
        # Pressed twice: the recorded outcome; pressed otherwise: too late.
        assert (await ok(client, "app_decide", **_press(first, question, **YES)))["status"] == "completed"
        error = await refused(client, "app_decide", **_press(first, question, decision="reject"))
        assert (error["code"], ledger.lines) == ("already_decided", ["note x"])


@requirement("app:nonce")
@both
@pytest.mark.parametrize("content", [{}, {"decision": True}, {"decision": "yes"}, {"reason": "x"}], ids=str)
async def test_pressing_nothing_decides_nothing(tmp_path: Path, era: Era, content: Document) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, _host(found.server, era) as client:
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        [question] = await _shown(client, asked["threadId"])
        error = await refused(client, "app_decide", **_press(asked, question, **content))
        assert (error["code"], ledger.lines) == ("invalid_arguments", [])


@requirement("app:assurance")
@both
async def test_a_dangerous_call_gets_an_address_instead_of_buttons(tmp_path: Path, era: Era) -> None:
    ledger = Ledger()
    async with served(tmp_path, tools=ledger.tools()) as found, _host(found.server, era) as client:
        found.warden.service.inbox_url = "http://127.0.0.1:4711/inbox"
        asked = await ok(client, "execute_plan", plan=DANGEROUS)
        [question] = await _shown(client, asked["threadId"])
        assert (question["nonce"], question["schema"]) == (None, None)
        assert question["inboxUrl"] == f"http://127.0.0.1:4711/inbox/suspensions/{question['suspensionId']}"
        assert question["command"] == f"planwarden approve {question['suspensionId']}"
        # Even if a nonce had been issued, the gate would ask for more.
        [asking] = (await found.warden.list_suspensions()).suspensions
        nonce = found.server.nonces.issue("local", asking, found.warden.service.engine.store.clock.now())
        still = await ok(client, "app_decide", **_press(asked, {"nonce": nonce}, **YES))
        assert (still["status"], still["awaiting"], ledger.lines) == ("suspended", "human", [])


@requirement("app:listing")
@both
async def test_only_hosts_that_draw_apps_see_the_app(tmp_path: Path, era: Era) -> None:
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        _host(found.server, era) as host,
        Client(found.server, mode=era) as plain,
        Client(found.server, mode=era, extensions=[advertise(EXTENSION_ID, {"mimeTypes": ["text/html"]})]) as other,
    ):
        for client in (plain, other):
            tools = (await client.list_tools()).tools
            assert len(tools) == len(TOOLS) and not any(tool.meta for tool in tools)
            assert all("ui://" not in str(resource.uri) for resource in (await client.list_resources()).resources)
            asked = await ok(client, "execute_plan", plan=CONFIRMED)
            result = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
            assert META_KEY not in (result.meta or {})
        tools = {tool.name: tool for tool in (await host.list_tools()).tools}
        assert {name: tool.meta for name, tool in tools.items() if tool.meta} == {
            **{name: {"ui": {"resourceUri": URI}} for name in ("create_plan", "run_goal", "execute_plan", "run_plan")},
            "retry_execution": {"ui": {"resourceUri": URI}},
            "ask_person": {"ui": {"resourceUri": URI}},
            "get_execution": {"ui": {"resourceUri": URI}},
            "resume_execution": {"ui": {"resourceUri": URI}},
            "app_decide": {"ui": {"resourceUri": URI, "visibility": ["app"]}},
            "app_show": {"ui": {"resourceUri": URI, "visibility": ["app"]}},
        }
        seen = [
            tool for tool in tools.values() if "model" in ((tool.meta or {}).get("ui", {}).get("visibility", ["model"]))
        ]
        size = sum(len(t.name + (t.description or "") + json.dumps(t.input_schema)) for t in seen)
        assert len(seen) == len(TOOLS) and size / 4 <= 3_000
        assert URI in [str(resource.uri) for resource in (await host.list_resources()).resources]


@requirement("app:view")
@both
async def test_the_view_may_load_nothing(tmp_path: Path, era: Era) -> None:
    async with served(tmp_path) as found, _host(found.server, era) as host:
        [view] = (await host.read_resource(URI)).contents
        assert view.mime_type == APP_MIME_TYPE and view.meta is not None
        nothing: list[str] = []
        assert view.meta["ui"]["csp"] == {
            "connectDomains": nothing,
            "resourceDomains": nothing,
            "frameDomains": nothing,
            "baseUriDomains": nothing,
        }
        text = build_page()
        assert "default-src 'none'" in text and "unsafe" not in text and "%CSP%" not in text
        for loading in ("http://", "https://", "src=", "href=", "@import", "url(", "innerHTML", "eval(", "autofocus"):
            assert loading not in text, loading
        assert not re.search(r"\son[a-z]+\s*=", text), "no inline handlers"


async def _question() -> tuple[Suspension, Suspension]:
    async with warden(Ledger()) as w:
        first = (await w.execute_plan(CONFIRMED)).suspensions[0]
        second = (await w.execute_plan(CONFIRMED)).suspensions[0]
    return first, second


@requirement("app:nonce")
async def test_nonces_end_with_time_and_hold_for_one_principal_question_and_home() -> None:
    first, second = await _question()
    nonces, now = Nonces(b"k" * 32), 1_000.0
    issued = nonces.issue("ann", first, now)
    assert nonces.issue("bob", first, now) != issued
    assert nonces.read("bob", first.suspension_id, issued, now) is None
    assert nonces.read("ann", second.suspension_id, issued, now) is None
    assert Nonces(b"j" * 32).read("ann", first.suspension_id, issued, now) is None
    for forged in ("", ".", "..", issued[:-1], issued.replace(first.digest, second.digest), f"9{issued}", "\udc80"):
        assert nonces.read("ann", first.suspension_id, forged, now) is None
    assert Nonces(b"k" * 32).read("ann", first.suspension_id, issued, now) == first.digest
    assert nonces.read("ann", first.suspension_id, issued, now + NONCE_TTL_S) is None


@requirement("app:nonce")
async def test_an_old_view_has_to_be_shown_again(tmp_path: Path) -> None:
    clock = ManualClock()
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools(), store=MemoryStore(clock)) as found,
        _host(found.server, "auto") as client,
    ):
        asked = await ok(client, "execute_plan", plan=CONFIRMED)
        [question] = await _shown(client, asked["threadId"])
        clock.advance(NONCE_TTL_S)
        error = await refused(client, "app_decide", **_press(asked, question, **YES))
        assert "get_execution" in error["message"] and ledger.lines == []
        [fresh] = await _shown(client, asked["threadId"])
        await ok(client, "app_decide", **_press(asked, fresh, **YES))
        assert ledger.lines == ["note x"] and question_of(asked)["digest"]
