"""The view shows the plan with its state, as true as its page, and with nothing that a model reads."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp import Client

from planwarden.server.mcp.app.plan import PLAN_KEY
from planwarden.server.mcp.app.view import META_KEY
from planwarden.server.settings.configuration import Settings
from tests.requirements import requirement
from tests.server.mcp.support import ERAS, Document, Era, ids_of, ok, refused, served
from tests.support.app_page import APPS, open_view
from tests.support.axe import find_violations, read_axe
from tests.support.browser import CHROMIUM, DRIVES_CHROMIUM
from tests.support.scene import launch_browser
from tests.support.wardens import Ledger, confirm, plan, tool_step

if TYPE_CHECKING:
    from mcp.types import CallToolResult

pytestmark = pytest.mark.anyio
both = pytest.mark.parametrize("era", ERAS)

NASTY = "</svg><img src=x onerror=alert(1)><script>parent.hacked=1</script>\u202e\x1b[2J]]>&amp;"
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def _plan(result: "CallToolResult") -> Document:
    assert result.meta is not None
    return result.meta[PLAN_KEY]


@requirement("app:plan")
@both
async def test_every_call_that_shows_an_execution_gives_the_view_the_plan_and_the_model_nothing_more(
    tmp_path: Path, era: Era
) -> None:
    steps = plan(
        tool_step("one", "note", {"text": "x"}), confirm("ask", "go on?"), tool_step("two", "note", {"text": "x"})
    )
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        Client(found.server, mode=era, extensions=APPS) as host,
        Client(found.server, mode=era) as plain,
    ):
        started = await host.call_tool("execute_plan", {"plan": steps, "goal": "Two notes"})
        shown = _plan(started)
        assert shown["title"] == "Two notes" and shown["state"] == "The plan waits for a person."
        assert (shown["tone"], shown["progress"], shown["isOver"]) == ("busy", "1 of 3 steps", False)
        assert shown["place"] == "Step 2 of 3, ask: waits for a person."
        assert shown["results"] == [{"step": "one", "text": '{"written": "x"}'}] and shown["graph"].startswith("<svg")
        thread: Document = {"threadId": started.structured_content["threadId"]}
        for name, more in (("get_execution", {}), ("app_show", {})):
            assert _plan(await host.call_tool(name, {**thread, **more})) == shown
        read, told = await host.call_tool("get_execution", thread), await plain.call_tool("get_execution", thread)
        assert (read.content, read.structured_content) == (told.content, told.structured_content)
        assert PLAN_KEY not in (told.meta or {})


@requirement("app:plan")
@both
async def test_the_view_that_asks_again_gets_the_plan_only_if_something_changed(tmp_path: Path, era: Era) -> None:
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        Client(found.server, mode=era, extensions=APPS) as host,
    ):
        asked = await ok(
            host, "execute_plan", plan=plan(confirm("ask", "go on?"), tool_step("two", "note", {"text": "x"}))
        )
        first = await host.call_tool("app_show", {"threadId": asked["threadId"]})
        seen: Document = {"threadId": asked["threadId"], "seen": _plan(first)["seen"], **ids_of(asked)}
        again = await host.call_tool("app_show", seen)
        assert again.meta is None or not again.meta.keys() & {PLAN_KEY, META_KEY}
        assert len(json.dumps(again.structured_content)) < 100
        await host.call_tool("resume_execution", {**ids_of(asked), "decision": {"approved": False}})
        changed = await host.call_tool("app_show", seen)
        assert changed.meta is not None and changed.meta[META_KEY] == []
        assert _plan(changed)["outcome"]["tone"] == "bad" and _plan(changed)["outcome"]["text"].startswith("Rejected. ")
        assert _plan(changed)["isOver"] is True
        for wrong in ({"threadId": "none"}, {"threadId": "none", "seen": seen["seen"]}):
            assert (await refused(host, "app_show", **wrong))["code"] == "unknown_thread"


@requirement("app:plan")
@pytest.mark.parametrize("count", [300, 700])
async def test_the_view_of_a_long_plan_is_bounded(tmp_path: Path, count: int) -> None:
    words = NASTY * 200
    steps = [tool_step(f"step_{n}", "note", {"text": "y" * 2_000}, description=words) for n in range(count)]
    settings = Settings(home=tmp_path, max_steps=1_000)
    asking: Document = {"plan": plan(confirm("ask", "go on?"), *steps), "goal": words}
    async with (
        served(tmp_path, tools=Ledger().tools(), settings=settings) as found,
        Client(found.server, extensions=APPS) as host,
    ):
        started = await host.call_tool("execute_plan", asking)
        assert len(json.dumps(_plan(started))) < 500_000


@requirement("app:nonce")
async def test_another_process_of_the_same_home_takes_the_decision_of_a_view(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=ledger.tools(), on_disk=True) as first,
        Client(first.server, extensions=APPS) as host,
    ):
        asked = await ok(
            host, "execute_plan", plan=plan(confirm("ask", "go on?"), tool_step("two", "note", {"text": "x"}))
        )
        shown = await host.call_tool("get_execution", {"threadId": asked["threadId"]})
    assert shown.meta is not None
    [question] = shown.meta[META_KEY]
    press: Document = {
        **ids_of(asked),
        "nonce": question["nonce"],
        "content": {"decision": "approve"},
        "waitSeconds": 30,
    }
    async with (
        served(tmp_path, tools=ledger.tools(), on_disk=True) as second,
        Client(second.server, extensions=APPS) as host,
    ):
        assert (await ok(host, "app_decide", **press))["status"] == "completed"
    assert ledger.lines == ["note x"]


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
        async with (
            served(tmp_path, tools=Ledger().tools()) as found,
            Client(found.server, extensions=APPS) as host,
            launch_browser(CHROMIUM) as browser,
        ):
            started = await host.call_tool("execute_plan", {"plan": failing, "goal": NASTY})
            page = await (await browser.new_context(**options)).new_page()
            drawn = await open_view(page, host, started, theme="light" if look == "light" else "dark")
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
