"""The browser of this machine, the marks of tests that need it, and what is done in it.

axe-core finds what keeps people from using a page: contrast, names, landmarks, focus. It is fetched once from npm into
`.clients/`, by the Node of this environment (https://github.com/dequelabs/axe-core). `open_view` plays a host of MCP
Apps: it draws our view, and passes its calls on to our server.
"""

import html
import importlib.util
import json
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.types import CallToolResult

from planwarden.server.mcp.app import build_page
from tests.clients.installed import Package

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--metrics-recording-only",
)


def find_chromium() -> str | None:
    return os.environ.get("CHROMIUM") or next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


CHROMIUM = find_chromium()
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="there is no Chromium on this machine, which `make browser` installs, or no playwright",
)
DRIVES_CHROMIUM = [NEEDS_CHROMIUM, pytest.mark.browser]


if TYPE_CHECKING:
    from playwright.async_api import Browser, Frame, Page

AXE = Package("axe-core", "4.14.1")


def read_axe() -> str:
    """Returns the program to run in a page. Raises `Unavailable` where it cannot be fetched."""
    return (AXE.install() / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


async def find_violations(page: "Page", program: str, rules: Sequence[str] = ()) -> list[str]:
    """Returns one line for each finding: the rule, what it says, and the elements. No `rules` means all of them."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(program)
    found: list[dict[str, object]] = await page.evaluate(
        """async (rules) => {
            const options = { resultTypes: ["violations"], ...(rules.length ? { runOnly: rules } : {}) };
            return (await axe.run(document, options)).violations.flatMap((found) => found.nodes.map((node) => ({
                rule: found.id, help: found.help, where: node.html, why: node.failureSummary })));
        }""",
        [*rules],
    )
    return [f"{item['rule']}: {item['help']}: {str(item['where'])[:200]} ({item['why']})" for item in found]


APPS = [advertise(EXTENSION_ID, {"mimeTypes": [APP_MIME_TYPE]})]
_HOST = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>A host</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{margin:0}iframe{border:0;width:100%;height:100vh;display:block}</style>
<main><h1>A host</h1><iframe id="view" title="planwarden" srcdoc="%VIEW%"></iframe></main>
<script>
window.sent = [];
const frame = document.getElementById("view");
const post = (message) => frame.contentWindow.postMessage({ jsonrpc: "2.0", ...message }, "*");
window.addEventListener("message", async (event) => {
  const message = event.data;
  if (event.source !== frame.contentWindow) return;
  window.sent.push(message);
  if (message.method === "ui/initialize")
    post({ id: message.id, result: { protocolVersion: "2026-01-26", hostInfo: {}, hostContext: { theme: "%THEME%" },
      hostCapabilities: { serverTools: {} } } });
  else if (message.method === "ui/notifications/initialized")
    post({ method: "ui/notifications/tool-result", params: %RESULT% });
  else if (message.method === "tools/call")
    post({ id: message.id, result: await window.callTool(message.params.name, message.params.arguments) });
  else if (message.id !== undefined) post({ id: message.id, result: {} });
});
</script></html>"""


@dataclass
class HostPage:
    """What the host draws, and which tools the view called."""

    page: "Page"
    view: "Frame"
    called: list[str]

    async def status(self) -> str:
        return await self.view.locator("#status").inner_text()


async def open_view(
    page: "Page",
    client: Client,
    result: CallToolResult,
    theme: str = "light",
    before: Callable[[str], Awaitable[object]] | None = None,
) -> HostPage:
    """Draws a result; what the view calls, `client` calls after `before` took its name, so that the view is live."""
    called: list[str] = []

    async def call_tool(name: str, arguments: dict[str, Any]) -> object:
        called.append(name)
        if before is not None:
            await before(name)
        return to_wire(await client.call_tool(name, arguments))

    # The package does not say what its callback returns.
    await page.expose_function("callTool", call_tool)  # pyright: ignore[reportUnknownMemberType]
    text = _HOST.replace("%THEME%", theme).replace("%VIEW%", html.escape(build_page(), quote=True))
    await page.set_content(text.replace("%RESULT%", json.dumps(to_wire(result)).replace("<", "\\u003c")))
    handle = await page.query_selector("iframe")
    view = None if handle is None else await handle.content_frame()
    assert view is not None
    await view.wait_for_function("document.getElementById('status').textContent !== 'Waiting for the plan.'")
    return HostPage(page, view, called)


def to_wire(result: CallToolResult) -> dict[str, Any]:
    return json.loads(result.model_dump_json(by_alias=True, exclude_none=True))


async def log_in(page: "Page", link: str) -> None:
    """Opens the link of a person, and agrees on its page."""
    await page.goto(link)
    await page.click("main button[type=submit]")
    await page.wait_for_selector("nav")


@asynccontextmanager
async def launch_browser(path: str) -> AsyncGenerator["Browser"]:
    """Runs the Chromium of this machine while the block runs; nothing is downloaded."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(FLAGS), headless=True)
        try:
            yield browser
        finally:
            await browser.close()
