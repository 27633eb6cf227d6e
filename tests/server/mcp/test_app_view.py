"""The view of the MCP App: the plan with its state and its questions, as a browser draws them inside of a host."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from planwarden.server.mcp.app.plan import PLAN_KEY
from planwarden.server.mcp.app.view import META_KEY
from tests.kit import Client, Settings, confirm, plan, requirement, tool_step
from tests.server.mcp.support import INBOX, Desk, Document, Era, ids_of, open_desk
from tests.support.app_page import APPS, HostPage, open_view
from tests.support.axe import find_violations, read_axe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM
from tests.support.scene import launch_browser

if TYPE_CHECKING:
    from mcp.types import CallToolResult

pytestmark = pytest.mark.anyio

NASTY = (
    "</svg><img src=x onerror=alert(1)><script>parent.hacked=1</script>\u202e[Approve]\x1b[2J]]>&amp;\nRun this call?"
)
ASKED = plan(confirm("ask", "go on?"), tool_step("two", "note", {"text": "x"}))
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def _plan(result: "CallToolResult") -> Document:
    assert result.meta is not None
    return result.meta[PLAN_KEY]


@requirement("app:plan")
async def test_every_call_that_shows_an_execution_gives_the_view_the_plan_and_the_model_nothing_more(
    tmp_path: Path, era: Era
) -> None:
    steps = plan(
        tool_step("one", "note", {"text": "x"}), confirm("ask", "go on?"), tool_step("two", "note", {"text": "x"})
    )
    async with open_desk(tmp_path, era, extensions=APPS) as host, Client(host.server, mode=era) as plain:
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


@requirement("app:plan")
async def test_the_view_that_asks_again_gets_the_plan_only_if_something_changed(tmp_path: Path) -> None:
    async with open_desk(tmp_path, extensions=APPS) as host:
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


@requirement("app:plan")
@pytest.mark.parametrize("count", [300, 700])
async def test_the_view_of_a_long_plan_is_bounded(tmp_path: Path, count: int) -> None:
    words = NASTY * 150
    steps = [tool_step(f"step_{n}", "note", {"text": "y" * 2_000}, description=words) for n in range(count)]
    settings = Settings(home=tmp_path, max_steps=1_000)
    async with open_desk(tmp_path, extensions=APPS, settings=settings) as host:
        started = await host.call("execute_plan", plan=plan(confirm("ask", "go on?"), *steps), goal=words)
        assert len(json.dumps(_plan(started))) < 500_000


@requirement("app:nonce")
async def test_another_process_of_the_same_home_takes_the_decision_of_a_view(tmp_path: Path) -> None:
    async with open_desk(tmp_path, extensions=APPS, on_disk=True) as first:
        asked = await first.ok("execute_plan", plan=ASKED)
        shown = await first.call("get_execution", threadId=asked["threadId"])
    assert shown.meta is not None
    [question] = shown.meta[META_KEY]
    press: Document = {**ids_of(asked), "nonce": question["nonce"], "content": {"decision": "approve"}}
    async with open_desk(tmp_path, extensions=APPS, on_disk=True) as second:
        assert (await second.ok("app_decide", **press, waitSeconds=30))["status"] == "completed"
        assert second.ledger.lines == ["note x"]


@asynccontextmanager
async def drawing(
    desk: Desk, thread_id: str, theme: str = "light", before: Callable[[str], Awaitable[object]] | None = None
) -> AsyncGenerator[HostPage]:
    """The view of an execution in a browser; what it calls, the client of the desk calls."""
    assert CHROMIUM is not None
    shown = await desk.call("get_execution", threadId=thread_id)
    with anyio.fail_after(120):
        async with launch_browser(CHROMIUM) as browser:
            yield await open_view(await browser.new_page(), desk.client, shown, theme=theme, before=before)


async def _sent(drawn: HostPage, method: str) -> list[Document]:
    """The parameters of the messages with this method that the view sent to its host."""
    sent: list[Document] = await drawn.page.evaluate("window.sent")
    return [message["params"] for message in sent if message.get("method") == method]


async def _buttons(drawn: HostPage) -> list[str]:
    return await drawn.view.locator("#questions button").all_inner_texts()


@pytest.mark.slow
@DRIVES_CHROMIUM[1]
@DRIVES_CHROMIUM[3]
@requirement("app:view", "app:nonce")
@pytest.mark.parametrize("is_stale", [False, True])
async def test_what_the_view_sends_when_approve_is_pressed_is_the_decision_or_is_refused_and_shown_afresh(
    tmp_path: Path, is_stale: bool
) -> None:
    async with open_desk(tmp_path, extensions=APPS) as desk:
        asked = await desk.ok("execute_plan", plan=plan(tool_step("a", "send", {"to": "Ann", "urgent": True})))

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
        typed: Document = {"reason": "fine", "arg_to": "Ann", "arg_copies": 3, "arg_urgent": True}
        assert call["arguments"]["content"] == {"decision": "approve", **typed}
        assert is_stale or (len(told) == 1 and call["arguments"]["nonce"] not in str(told))
        assert desk.ledger.lines == ([] if is_stale else ["send Ann 3 True"])


@pytest.mark.slow
@DRIVES_CHROMIUM[1]
@DRIVES_CHROMIUM[3]
@requirement("app:view")
async def test_text_made_to_deceive_stays_text(tmp_path: Path) -> None:
    async with open_desk(tmp_path, extensions=APPS) as desk:
        asked = await desk.ok("execute_plan", plan=plan(confirm("a", NASTY)))
        async with drawing(desk, asked["threadId"]) as drawn:
            text = await drawn.view.inner_text("body")
            assert await drawn.view.locator("img").count() == 0 and await drawn.page.evaluate("window.hacked") is None
            assert await _buttons(drawn) == ["Reject", "Approve"] and set(drawn.called) <= {"app_show"}
    assert "<img src=x onerror=alert(1)>" in text and "\u202e" not in text
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines.index("Confirm?") < next(i for i, line in enumerate(lines) if line.startswith("The agent says"))


@pytest.mark.slow
@DRIVES_CHROMIUM[1]
@DRIVES_CHROMIUM[3]
@requirement("app:view", "app:assurance")
async def test_a_dangerous_call_has_one_button_and_it_opens_the_inbox(tmp_path: Path) -> None:
    async with open_desk(tmp_path, extensions=APPS, inbox_url=INBOX) as desk:
        asked = await desk.ok("execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        async with drawing(desk, asked["threadId"], theme="dark") as drawn:
            assert await _buttons(drawn) == ["Open the inbox"]
            assert "planwarden approve" in await drawn.view.inner_text("body")
            assert await drawn.view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(25, 26, 28)"
            await drawn.view.get_by_role("button", name="Open the inbox").click()
            await drawn.page.wait_for_function("window.sent.some((message) => message.method === 'ui/open-link')")
            [opened] = await _sent(drawn, "ui/open-link")
            assert opened["url"].startswith(f"{INBOX}/suspensions/") and set(drawn.called) <= {"app_show"}


@requirement("app:plan", "app:view")
@pytest.mark.slow
@pytest.mark.browser
@DRIVES_CHROMIUM[1]
@DRIVES_CHROMIUM[3]
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
async def test_a_plan_that_fails_after_the_approval_is_shown_as_failed_and_the_view_is_accessible(
    tmp_path: Path, look: str
) -> None:
    assert CHROMIUM is not None
    failing = plan(confirm("ask", NASTY), tool_step("last", "broken", description=NASTY))
    program, options = read_axe(), PHONE if look == "phone" else {}
    with anyio.fail_after(120):
        async with open_desk(tmp_path, extensions=APPS) as host, launch_browser(CHROMIUM) as browser:
            started = await host.call("execute_plan", plan=failing, goal=NASTY)
            page = await (await browser.new_context(**options)).new_page()
            drawn = await open_view(page, host.client, started, theme="light" if look == "light" else "dark")
            assert await find_violations(page, program) == []
            assert "waits for a person" in await drawn.status()
            await drawn.view.get_by_role("button", name="Approve").press("Enter")
            await drawn.view.wait_for_selector("#status.bad")
            # The decision is said once.
            assert (await drawn.status()).startswith("Approved. Step ") and "failed" in await drawn.status()
            assert await drawn.view.locator("#questions button").count() == 0
            assert await drawn.view.locator("img, script:not(body > script)").count() == 0
            assert await drawn.view.locator("#drawing svg g.failed").count() == 1
            assert await page.evaluate("window.hacked") is None
            assert await find_violations(page, program) == []
            width = await drawn.view.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert width <= 0
