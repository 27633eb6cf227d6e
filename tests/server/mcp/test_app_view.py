"""The view of the MCP App in a real browser: a page plays the host, presses buttons, and keeps what the view sends."""

import html
import json
import subprocess
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from pydantic import JsonValue

from planwarden.server.mcp.app.view import build_page
from tests.requirements import requirement
from tests.server.mcp.support import Document, ok, sender, served
from tests.support.browser import CHROMIUM, NEEDS_CHROMIUM
from tests.support.wardens import Ledger, confirm, plan, tool_step

pytestmark = [pytest.mark.slow, *NEEDS_CHROMIUM]

APPS = [advertise(EXTENSION_ID, {"mimeTypes": [APP_MIME_TYPE]})]
NASTY = "<img src=x onerror=alert(1)><script>parent.hacked=1</script>\u202e[Approve]\x1b[2J\nRun this call?"

HOST = """<!DOCTYPE html><meta charset="utf-8">
<style>body{{margin:0}}iframe{{border:0;width:100%;height:{height}px}}</style>
<iframe id="view" srcdoc="{view}"></iframe><pre id="log" hidden></pre>
<script>
const result = {result}, steps = {steps}, later = {later}, sent = [], seen = {{}};
const frame = document.getElementById("view");
const write = () => {{ document.getElementById("log").textContent = JSON.stringify({{ sent, seen }}); }};
const post = (message) => frame.contentWindow.postMessage({{ jsonrpc: "2.0", ...message }}, "*");
const look = (name) => {{
  const view = frame.contentDocument;
  seen[name] = {{
    text: view.body.innerText,
    status: view.getElementById("status").textContent,
    focused: view.activeElement.textContent === "Approve",
    buttons: [...view.querySelectorAll("#questions button")].map((button) => button.textContent),
    unlabelled: [...view.querySelectorAll("input, select")].filter((input) => !input.labels.length).length,
    images: view.images.length,
    ground: frame.contentWindow.getComputedStyle(view.body).backgroundColor,
    hacked: window.hacked === 1,
  }};
  write();
}};
const press = (index) => {{
  const step = steps[index];
  if (!step) return;
  const view = frame.contentDocument;
  look(step.before || "before");
  for (const [name, value] of Object.entries(step.fill || {{}})) view.getElementsByName(name)[0].value = value;
  [...view.querySelectorAll("button")].find((button) => button.textContent === step.press).click();
  setTimeout(() => {{ look(step.after || "after"); press(index + 1); }}, 150);
}};
window.addEventListener("message", (event) => {{
  if (event.source !== frame.contentWindow) return;
  const message = event.data;
  sent.push(message);
  write();
  if (message.method === "ui/initialize")
    post({{ id: message.id, result: {{
      protocolVersion: "2026-01-26", hostContext: {{ theme: "{theme}" }}, hostCapabilities: {{}}, hostInfo: {{}},
    }} }});
  else if (message.method === "ui/notifications/initialized") {{
    post({{ method: "ui/notifications/tool-input", params: {{ arguments: {{}} }} }});
    post({{ method: "ui/notifications/tool-result", params: result }});
    setTimeout(() => {{ look("first"); press(0); }}, 200);
  }} else if (message.method === "tools/call") post({{ id: message.id, result: later[message.params.name] }});
  else if (message.id !== undefined) post({{ id: message.id, result: {{}} }});
}});
</script>"""


async def _drawn(
    folder: Path, result: Document, *steps: Document, later: Document | None = None, theme: str = "light"
) -> tuple[list[Document], dict[str, Document]]:
    """What the view sent to its host, and how it looked at each step."""
    text = HOST.format(
        view=html.escape(build_page(), quote=True),
        result=_script(result),
        steps=_script(list(steps)),
        later=_script(later or {}),
        theme=theme,
        height=900,
    )
    dumped = await anyio.to_thread.run_sync(_browse, folder, text, ["--virtual-time-budget=5000", "--dump-dom"])
    log = json.loads(html.unescape(dumped.partition('id="log" hidden="">')[2].partition("</pre>")[0]))
    return log["sent"], log["seen"]


def _browse(folder: Path, text: str, words: list[str]) -> str:
    file = folder / "host.html"
    file.write_text(text, encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'chromium'}",
        *words,
    ]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def _script(value: JsonValue) -> str:
    return json.dumps(value).replace("<", "\\u003c")


def _wire(result: Any) -> Document:
    return json.loads(result.model_dump_json(by_alias=True, exclude_none=True))


@requirement("app:view", "app:nonce")
async def test_what_the_view_sends_when_approve_is_pressed_is_the_decision(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        served(tmp_path, tools=[sender(ledger)]) as found,
        Client(found.server, extensions=APPS) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "send", {"to": "Ann", "urgent": True})))
        shown = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        done: Document = {"structuredContent": {"status": "completed"}, "_meta": {}, "content": []}
        press: Document = {"press": "Approve", "fill": {"arg_copies": "3", "reason": "fine"}}
        sent, seen = await _drawn(tmp_path, _wire(shown), press, later={"app_decide": done})
        [call] = [message["params"] for message in sent if message.get("method") == "tools/call"]
        assert call["name"] == "app_decide"
        assert call["arguments"]["content"] == {
            "decision": "approve",
            "reason": "fine",
            "arg_to": "Ann",
            "arg_copies": 3,
            "arg_urgent": True,
        }
        result = await client.call_tool("app_decide", call["arguments"])
        assert not result.is_error and ledger.lines == ["send Ann 3 True"]
    first, after = seen["first"], seen["after"]
    assert first["buttons"] == ["Reject", "Approve"] and first["focused"] is False and first["unlabelled"] == 0
    assert 'to = "Ann"' in first["text"] and "One question is open" in first["status"]
    assert "You approved it here. Nothing is open here." in after["status"] and after["buttons"] == []
    told = [message["params"] for message in sent if message.get("method") == "ui/update-model-context"]
    assert len(told) == 1 and call["arguments"]["nonce"] not in str(told)
    assert any(message.get("method") == "ui/notifications/size-changed" for message in sent)


@requirement("app:view")
async def test_text_made_to_deceive_stays_text(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as found,
        Client(found.server, extensions=APPS) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(confirm("a", NASTY)))
        shown = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        sent, seen = await _drawn(tmp_path, _wire(shown))
    first = seen["first"]
    assert (first["images"], first["hacked"], first["buttons"]) == (0, False, ["Reject", "Approve"])
    assert "<img src=x onerror=alert(1)>" in first["text"] and "\u202e" not in first["text"]
    lines = [line for line in first["text"].splitlines() if line.strip()]
    assert lines.index("Confirm?") < next(i for i, line in enumerate(lines) if line.startswith("The agent says"))
    assert not any(message.get("method") == "tools/call" for message in sent)


@requirement("app:view", "app:assurance")
async def test_a_dangerous_call_has_one_button_and_it_opens_the_inbox(tmp_path: Path) -> None:
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        Client(found.server, extensions=APPS) as client,
    ):
        found.warden.service.inbox_url = "http://127.0.0.1:4711/inbox"
        asked = await ok(client, "execute_plan", plan=plan(tool_step("a", "erase", {"ids": [1]})))
        shown = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        sent, seen = await _drawn(tmp_path, _wire(shown), {"press": "Open the inbox"}, theme="dark")
    assert seen["first"]["buttons"] == ["Open the inbox"] and "planwarden approve" in seen["first"]["text"]
    [opened] = [message["params"] for message in sent if message.get("method") == "ui/open-link"]
    assert opened["url"].startswith("http://127.0.0.1:4711/inbox/suspensions/")
    assert not any(message.get("method") == "tools/call" for message in sent)
    assert seen["first"]["ground"] == "rgb(25, 26, 28)"


async def test_a_refused_decision_is_said_and_the_question_is_shown_afresh(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as found,
        Client(found.server, extensions=APPS) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(confirm("a", "sure?")))
        shown = _wire(await client.call_tool("get_execution", {"threadId": asked["threadId"]}))
        error: Document = {
            "isError": True,
            "structuredContent": {"error": {"message": "It was revised."}},
            "content": [],
        }
        later: Document = {"app_decide": error, "app_show": shown}
        sent, seen = await _drawn(tmp_path, shown, {"press": "Reject"}, later=later)
    assert [m["params"]["name"] for m in sent if m.get("method") == "tools/call"] == ["app_decide", "app_show"]
    [call] = [m["params"] for m in sent if m.get("method") == "tools/call" and m["params"]["name"] == "app_decide"]
    assert call["arguments"]["content"] == {"decision": "reject"}
    assert seen["after"]["status"].startswith("It was revised.") and seen["after"]["buttons"] == ["Reject", "Approve"]
