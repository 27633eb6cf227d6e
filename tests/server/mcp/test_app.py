"""The MCP App: which hosts see it, what its nonce allows, what a model cannot press, and what a browser draws of it."""

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.types import CallToolResult
from pydantic import JsonValue

from planwarden.server.mcp.app import META_KEY, NONCE_TTL_S, PLAN_KEY, URI, Nonces, build_page
from planwarden.server.mcp.tools.listing import TOOLS
from planwarden.server.settings.tables import ExecutionTable, SettingsTables
from tests import kit
from tests.server.mcp.support import INBOX, Desk, Document, Era, ids_of
from tests.support import browser

ASKED = kit.plan(kit.confirm("a", "write it down?"), kit.tool_step("b", "note", {"text": "x"}))
DANGEROUS = kit.plan(kit.tool_step("a", "erase", {"ids": [1]}))
YES: Document = {"decision": "approve"}
NASTY = (
    "</svg><img src=x onerror=alert(1)><script>parent.hacked=1</script>\u202e[Approve]\x1b[2J]]>&amp;\nRun this call?"
)
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture
async def host(tmp_path: Path, era: Era) -> AsyncGenerator[Desk]:
    """A host that draws apps and shows no forms."""
    async with kit.open_desk(tmp_path, era, extensions=browser.APPS) as opened:
        yield opened


def _questions(result: CallToolResult) -> list[Document]:
    assert result.meta is not None
    found: list[Document] = result.meta[META_KEY]
    return found


async def _show(host: Desk, asked: Document) -> Document:
    [question] = _questions(await host.call("get_execution", threadId=asked["threadId"]))
    return question


def _press(asked: Document, question: Document, **content: Any) -> Document:
    return {**ids_of(asked), "nonce": question["nonce"], "content": content, "waitSeconds": 60}


@kit.requirement("app:nonce")
async def test_the_nonce_is_nowhere_that_a_model_reads(host: Desk) -> None:
    asked = await host.ok("execute_plan", plan=ASKED)
    result = await host.call("get_execution", threadId=asked["threadId"])
    [question] = _questions(result)
    assert len(question["nonce"]) >= 43
    read = [
        str(result.content),
        json.dumps(result.structured_content),
        str(await host.client.read_resource("planwarden://suspensions")),
        str(await host.client.read_resource(f"planwarden://executions/{asked['threadId']}")),
        str(await host.call("list_suspensions")),
        str(await host.refused("app_decide", **{**_press(asked, question, **YES), "content": "x"})),
    ]
    assert not any(question["nonce"] in text for text in read)


@kit.requirement("app:nonce")
@pytest.mark.parametrize("nonce", ["", "x" * 43, "null"])
async def test_a_model_that_calls_the_apps_tool_decides_nothing_and_is_told_to_stop(host: Desk, nonce: str) -> None:
    async with kit.Client(host.server) as model:
        asked = await kit.ok(model, "execute_plan", plan=ASKED)
        await _show(host, asked)
        codes: list[str] = []
        for said in ("approve", "reject", "approve", "reject", "approve", "approve"):
            call: Document = {**ids_of(asked), "nonce": nonce, "content": {"decision": said}}
            codes.append((await kit.refused(model, "app_decide", **call))["code"])
    assert codes == ["invalid_arguments"] * 5 + ["rate_limited"]
    assert (await _show(host, asked))["suspensionId"] == ids_of(asked)["suspensionId"] and host.ledger.lines == []


@kit.requirement("app:nonce")
async def test_a_nonce_counts_for_its_own_question_and_with_a_decision(host: Desk) -> None:
    first, second = [await host.ok("execute_plan", plan=ASKED) for _ in range(2)]
    question = await _show(host, first)
    press = _press(first, question, **YES)
    for content in ({}, {"decision": True}, {"decision": "yes"}, {"reason": "x"}):
        error = await host.refused("app_decide", **{**press, "content": content})
        assert error["code"] == "invalid_arguments", content
    assert (await host.refused("app_decide", **{**press, **ids_of(second)}))["code"] == "invalid_arguments"
    crossed = {**press, "threadId": second["threadId"]}
    assert (await host.refused("app_decide", **crossed))["code"] == "unknown_suspension"
    assert host.ledger.lines == []
    await host.ok("app_decide", **press)
    assert host.ledger.lines == ["note x"]


@kit.requirement("app:assurance")
async def test_a_dangerous_call_gets_an_address_instead_of_buttons(host: Desk) -> None:
    host.warden.service.inbox_url = INBOX
    asked = await host.ok("execute_plan", plan=DANGEROUS)
    question = await _show(host, asked)
    assert (question["nonce"], question["schema"]) == (None, None)
    assert question["inboxUrl"] == f"{INBOX}/suspensions/{question['suspensionId']}"
    assert question["command"] == f"planwarden approve {question['suspensionId']}"
    # Even if a nonce had been issued, the gate would ask for more.
    [asking] = (await host.warden.list_suspensions()).suspensions
    nonce = host.server.nonces.issue("local", asking, host.warden.service.store.clock.now())
    still = await host.ok("app_decide", **_press(asked, {"nonce": nonce}, **YES))
    assert (still["status"], still["awaiting"], host.ledger.lines) == ("suspended", "human", [])


@kit.requirement("app:listing")
async def test_only_hosts_that_draw_apps_see_the_app(host: Desk, era: Era) -> None:
    other = [advertise(EXTENSION_ID, {"mimeTypes": ["text/html"]})]
    for extensions in ([], other):
        async with kit.Client(host.server, mode=era, extensions=extensions) as client:
            tools = (await client.list_tools()).tools
            assert len(tools) == len(TOOLS) and not any(tool.meta for tool in tools)
            assert all("ui://" not in str(resource.uri) for resource in (await client.list_resources()).resources)
            asked = await kit.ok(client, "execute_plan", plan=ASKED)
            result = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
            assert META_KEY not in (result.meta or {})
    tools = {tool.name: tool for tool in (await host.client.list_tools()).tools}
    shows = {"create_plan", "run_goal", "execute_plan", "run_plan", "retry_execution", "ask_person"}
    shows |= {"get_execution", "resume_execution"}
    for_apps = {name: {"ui": {"resourceUri": URI, "visibility": ["app"]}} for name in ("app_decide", "app_show")}
    drawn = {name: {"ui": {"resourceUri": URI}} for name in shows}
    assert {name: tool.meta for name, tool in tools.items() if tool.meta} == {**drawn, **for_apps}
    assert len(tools) == len(TOOLS) + len(for_apps)
    assert URI in [str(resource.uri) for resource in (await host.client.list_resources()).resources]


@kit.requirement("app:view")
async def test_the_view_may_load_nothing(host: Desk) -> None:
    [view] = (await host.client.read_resource(URI)).contents
    assert view.mime_type == APP_MIME_TYPE and view.meta is not None
    policy: dict[str, list[str]] = view.meta["ui"]["csp"]
    assert len(policy) == 4 and not any(policy.values())
    text = build_page()
    assert "default-src 'none'" in text and "unsafe" not in text and "%CSP%" not in text
    for loading in ("http://", "https://", "src=", "href=", "@import", "url(", "innerHTML", "eval(", "autofocus"):
        assert loading not in text, loading
    assert not re.search(r"\son[a-z]+\s*=", text), "no inline handlers"


@kit.requirement("app:nonce")
async def test_nonces_end_with_time_and_hold_for_one_principal_question_and_home(host: Desk) -> None:
    [first], [second] = [(await host.warden.execute_plan(ASKED)).suspensions for _ in range(2)]
    nonces, now = Nonces(b"k" * 32), 1_000.0
    issued = nonces.issue("ann", first, now)
    assert nonces.issue("bob", first, now) != issued
    assert nonces.verify("bob", first.suspension_id, issued, now) is None
    assert nonces.verify("ann", second.suspension_id, issued, now) is None
    assert Nonces(b"j" * 32).verify("ann", first.suspension_id, issued, now) is None
    for forged in ("", ".", "..", issued[:-1], issued.replace(first.digest, second.digest), f"9{issued}", "\udc80"):
        assert nonces.verify("ann", first.suspension_id, forged, now) is None
    assert Nonces(b"k" * 32).verify("ann", first.suspension_id, issued, now) == first.digest
    assert nonces.verify("ann", first.suspension_id, issued, now + NONCE_TTL_S) is None


def _plan(result: CallToolResult) -> Document:
    assert result.meta is not None
    return result.meta[PLAN_KEY]


@kit.requirement("app:plan")
async def test_calls_that_show_an_execution_give_the_view_the_plan_and_the_model_no_more(host: Desk, era: Era) -> None:
    note: dict[str, JsonValue] = {"text": "x"}
    steps = kit.plan(
        kit.tool_step("one", "note", note), kit.confirm("ask", "go on?"), kit.tool_step("two", "note", note)
    )
    async with kit.Client(host.server, mode=era) as plain:
        started = await host.call("execute_plan", plan=steps, goal="Two notes")
        shown = _plan(started)
        assert shown["title"] == "Two notes" and shown["state"] == "The plan waits for a person."
        assert (shown["tone"], shown["progress"], shown["isOver"]) == ("busy", "1 of 3 steps", False)
        assert shown["place"] == "Step 2 of 3, ask: waits for a person."
        assert shown["results"] == [{"step": "one", "text": '{"written": "x"}'}] and shown["graph"].startswith("<svg")
        thread: Document = {"threadId": started.structured_content["threadId"]}
        for name in ("get_execution", "app_show"):
            assert _plan(await host.call(name, **thread)) == shown
        read, told = await host.call("get_execution", **thread), await plain.call_tool("get_execution", thread)
        assert (read.content, read.structured_content) == (told.content, told.structured_content)
        assert PLAN_KEY not in (told.meta or {})


@kit.requirement("app:plan")
async def test_the_view_that_asks_again_gets_the_plan_only_if_something_changed(tmp_path: Path) -> None:
    async with kit.open_desk(tmp_path, extensions=browser.APPS) as host:
        asked = await host.ok("execute_plan", plan=ASKED)
        first = await host.call("app_show", threadId=asked["threadId"])
        seen: Document = {"seen": _plan(first)["seen"], **ids_of(asked)}
        again = await host.call("app_show", **seen)
        assert again.meta is None or not again.meta.keys() & {PLAN_KEY, META_KEY}
        assert len(json.dumps(again.structured_content)) < 100
        await host.call("resume_execution", **ids_of(asked), decision={"approved": False})
        changed = await host.call("app_show", **seen)
        assert changed.meta is not None and changed.meta[META_KEY] == []
        assert _plan(changed)["outcome"]["tone"] == "bad" and _plan(changed)["outcome"]["text"].startswith("Rejected. ")
        assert _plan(changed)["isOver"] is True
        for wrong in ({"threadId": "none"}, {"threadId": "none", "seen": seen["seen"]}):
            assert (await host.refused("app_show", **wrong))["code"] == "unknown_thread"


@kit.requirement("app:plan")
@pytest.mark.parametrize("count", kit.first_only(300, 700))
async def test_the_view_of_a_long_plan_is_bounded(tmp_path: Path, count: int) -> None:
    words = NASTY * 150
    steps = [kit.tool_step(f"step_{n}", "note", {"text": "y" * 2_000}, description=words) for n in range(count)]
    tables = SettingsTables(execution=ExecutionTable.model_validate({"maxSteps": 1_000}))
    settings = kit.Settings(home=tmp_path, tables=tables)
    async with kit.open_desk(tmp_path, extensions=browser.APPS, settings=settings) as host:
        started = await host.call("execute_plan", plan=kit.plan(kit.confirm("ask", "go on?"), *steps), goal=words)
        assert len(json.dumps(_plan(started))) < 500_000


@asynccontextmanager
async def drawing(
    desk: Desk, thread_id: str, theme: str = "light", before: Callable[[str], Awaitable[object]] | None = None
) -> AsyncGenerator[browser.HostPage]:
    """The view of an execution in a browser; what it calls, the client of the desk calls."""
    assert browser.CHROMIUM is not None
    shown = await desk.call("get_execution", threadId=thread_id)
    with anyio.fail_after(120):
        async with browser.launch_browser(browser.CHROMIUM) as chromium:
            yield await browser.open_view(await chromium.new_page(), desk.client, shown, theme=theme, before=before)


async def _sent(drawn: browser.HostPage, method: str) -> list[Document]:
    sent: list[Document] = await drawn.page.evaluate("window.sent")
    return [message["params"] for message in sent if message.get("method") == method]


async def _buttons(drawn: browser.HostPage) -> list[str]:
    return await drawn.view.locator("#questions button").all_inner_texts()


@pytest.mark.slow
@browser.NEEDS_CHROMIUM
@kit.requirement("app:view", "app:nonce")
@pytest.mark.parametrize("is_stale", [False, True])
async def test_what_the_view_sends_when_approve_is_pressed_is_the_decision_or_is_refused_and_shown_afresh(
    tmp_path: Path, is_stale: bool
) -> None:
    async with kit.open_desk(tmp_path, extensions=browser.APPS) as desk:
        asked = await desk.ok("execute_plan", plan=kit.plan(kit.tool_step("a", "send", {"to": "Ann", "urgent": True})))

        async def revise(name: str) -> None:
            if is_stale and name == "app_decide":
                edit = {"approved": True, "modifiedArgs": {"to": "Eve"}}
                await desk.call("resume_execution", **ids_of(asked), decision=edit)

        async with drawing(desk, asked["threadId"], before=revise) as drawn:
            view = drawn.view
            assert await _buttons(drawn) == ["Reject", "Approve"]
            assert await view.evaluate("document.activeElement.textContent") != "Approve"
            unlabelled = "[...document.querySelectorAll('input, select')].filter((input) => !input.labels.length)"
            assert await view.evaluate(f"{unlabelled}.length") == 0
            assert 'to = "Ann"' in await view.inner_text("body") and "One question is open" in await drawn.status()
            await view.locator("[name=arg_copies]").fill("3")
            await view.locator("[name=reason]").fill("fine")
            await view.get_by_role("button", name="Approve").click()
            if is_stale:
                await view.locator("#questions", has_text="Eve").wait_for()
                assert drawn.called[drawn.called.index("app_decide") :][:2] == ["app_decide", "app_show"]
                assert await _buttons(drawn) == ["Reject", "Approve"]
            else:
                await view.locator("#questions button").first.wait_for(state="detached")
                assert "approved" in (await drawn.status()).lower()
            told = await _sent(drawn, "ui/update-model-context")
            [call] = [call for call in await _sent(drawn, "tools/call") if call["name"] == "app_decide"]
            assert await _sent(drawn, "ui/notifications/size-changed")
        typed: Document = {"reason": "fine", "arg_to": "Ann", "arg_copies": "3", "arg_urgent": True}
        assert call["arguments"]["content"] == {"decision": "approve", **typed}
        assert is_stale or (len(told) == 1 and call["arguments"]["nonce"] not in str(told))
        assert desk.ledger.lines == ([] if is_stale else ["send Ann 3 True"])


LONG = 2**53 + 1
"""JavaScript rounds it down."""


async def _approve(drawn: browser.HostPage, typed: dict[str, str]) -> None:
    for name, text in typed.items():
        await drawn.view.locator(f"[name={name}]").fill(text)
    await drawn.view.get_by_role("button", name="Approve").click()
    await drawn.view.locator("#questions button").first.wait_for(state="detached")


@pytest.mark.slow
@browser.NEEDS_CHROMIUM
@kit.requirement("app:view", "forms:round-trip")
@pytest.mark.parametrize(
    ("copies", "typed", "edited"),
    [
        (LONG, {}, {}),
        (5.0, {}, {}),
        (1, {"arg_copies": str(LONG)}, {"copies": LONG}),
        (1, {"arg_to": ""}, {"to": ""}),
    ],
    ids=["long number", "decimal point", "long number typed", "emptied text"],
)
async def test_arguments_run_as_the_view_shows_them_when_approve_is_pressed(
    tmp_path: Path, copies: float, typed: dict[str, str], edited: dict[str, JsonValue]
) -> None:
    before: dict[str, JsonValue] = {"to": "Ann", "copies": copies, "urgent": True}
    async with kit.open_desk(tmp_path, extensions=browser.APPS) as desk:
        asked = await desk.ok("execute_plan", plan=kit.plan(kit.tool_step("a", "send", before)))
        async with drawing(desk, asked["threadId"]) as drawn:
            await _approve(drawn, typed)
        [suspension] = (await desk.warden.service.find(asked["executionId"])).suspensions.values()
        question = suspension.question
        assert json.dumps(question.arguments) == json.dumps({**before, **edited})
        assert [edit.arguments for edit in question.edits] == ([tuple(edited)] if edited else [])
        assert len(desk.ledger.lines) == 1


@pytest.mark.slow
@browser.NEEDS_CHROMIUM
@kit.requirement("app:view")
async def test_the_view_approves_nothing_while_a_number_is_missing_and_keeps_what_was_typed(tmp_path: Path) -> None:
    async with kit.open_desk(tmp_path, extensions=browser.APPS) as desk:
        asked = await desk.ok("execute_plan", plan=kit.plan(kit.tool_step("a", "send", {"to": "Ann"})))
        async with drawing(desk, asked["threadId"]) as drawn:
            inputs = [drawn.view.locator(f"[name={name}]") for name in ("arg_to", "arg_copies")]
            approve = drawn.view.get_by_role("button", name="Approve")
            await inputs[0].fill("Bob")
            await inputs[1].fill("")
            await approve.click()
            # The browser says what is missing there.
            assert await inputs[1].evaluate("node => node === document.activeElement && node.validity.valueMissing")
            await inputs[1].fill("abc")
            await approve.click()
            await drawn.view.get_by_text("not usable").wait_for()
            assert [await entry.input_value() for entry in inputs] == ["Bob", "abc"]
            await _approve(drawn, {"arg_copies": "2"})
            assert drawn.called.count("app_decide") == 2
        assert desk.ledger.lines == ["send Bob 2 False"]


@pytest.mark.slow
@browser.NEEDS_CHROMIUM
@kit.requirement("app:view", "forms:round-trip")
async def test_a_form_in_the_view_answers_with_exactly_what_stands_in_its_fields(tmp_path: Path) -> None:
    properties: dict[str, JsonValue] = {
        "account": {"type": "integer"},
        "limit": {"type": "integer", "default": LONG},
        "note": {"type": "string", "default": "soon"},
        "place": {"type": "string", "default": "here"},
        "other": {"type": "string"},
        "rest": {"type": "number"},
    }
    form: JsonValue = {"type": "object", "properties": properties, "required": ["account"]}
    step = kit.tool_step("a", "requestInput", {"message": "Which?", "form": form})
    async with kit.open_desk(tmp_path, extensions=browser.APPS) as desk:
        asked = await desk.ok("execute_plan", plan=kit.plan(step))
        async with drawing(desk, asked["threadId"]) as drawn:
            await _approve(drawn, {"account": str(LONG), "note": ""})
        [answered] = (await desk.ok("get_execution", threadId=asked["threadId"]))["steps"]
    content = {"account": LONG, "limit": LONG, "note": "", "place": "here"}
    assert answered["result"] == {"approved": True, "content": content}


@pytest.mark.slow
@browser.NEEDS_CHROMIUM
@kit.requirement("app:view", "app:assurance")
async def test_a_dangerous_call_has_one_button_to_open_the_inbox_and_deceiving_text_stays_text(tmp_path: Path) -> None:
    async with kit.open_desk(tmp_path, extensions=browser.APPS, inbox_url=INBOX) as desk:
        step = kit.tool_step("a", "erase", {"ids": [1]}, description=NASTY)
        asked = await desk.ok("execute_plan", plan=kit.plan(step))
        async with drawing(desk, asked["threadId"], theme="dark") as drawn:
            text = await drawn.view.inner_text("body")
            assert await drawn.view.locator("img").count() == 0 and await drawn.page.evaluate("window.hacked") is None
            assert "<img src=x onerror=alert(1)>" in text and "\u202e" not in text
            lines = [line for line in text.splitlines() if line.strip()]
            said = next(number for number, line in enumerate(lines) if line.startswith("The agent says"))
            assert lines.index("Run this call?") < said
            assert await _buttons(drawn) == ["Open the inbox"] and "planwarden approve" in text
            assert await drawn.view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(25, 26, 28)"
            await drawn.view.get_by_role("button", name="Open the inbox").click()
            await drawn.page.wait_for_function("window.sent.some((message) => message.method === 'ui/open-link')")
            [opened] = await _sent(drawn, "ui/open-link")
            assert opened["url"].startswith(f"{INBOX}/suspensions/") and set(drawn.called) <= {"app_show"}


@kit.requirement("app:plan", "app:view")
@pytest.mark.slow
@pytest.mark.browser
@browser.NEEDS_CHROMIUM
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_a_plan_that_fails_once_approved_is_shown_so_and_the_view_is_accessible(
    tmp_path: Path, look: str
) -> None:
    assert browser.CHROMIUM is not None
    failing = kit.plan(kit.confirm("ask", NASTY), kit.tool_step("last", "broken", description=NASTY))
    program, options = browser.read_axe(), PHONE if look == "phone" else {}
    with anyio.fail_after(120):
        async with (
            kit.open_desk(tmp_path, extensions=browser.APPS) as host,
            browser.launch_browser(browser.CHROMIUM) as chromium,
        ):
            started = await host.call("execute_plan", plan=failing, goal=NASTY)
            page = await (await chromium.new_context(**options)).new_page()
            drawn = await browser.open_view(page, host.client, started, theme="light" if look == "light" else "dark")
            assert await browser.find_violations(page, program) == []
            assert "waits for a person" in await drawn.status()
            await drawn.view.get_by_role("button", name="Approve").press("Enter")
            await drawn.view.wait_for_selector("#status.bad")
            # The decision is said once.
            assert (await drawn.status()).startswith("Approved. Step ") and "failed" in await drawn.status()
            assert await drawn.view.locator("#questions button").count() == 0
            assert await drawn.view.locator("img, script:not(body > script)").count() == 0
            assert await drawn.view.locator("#drawing svg g.failed").count() == 1
            assert await page.evaluate("window.hacked") is None
            assert await browser.find_violations(page, program) == []
            width = await drawn.view.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert width <= 0
