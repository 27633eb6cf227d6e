"""A page that plays a host of MCP Apps: it draws our view, and passes its calls on to our server."""

import html
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp import Client
from mcp.client.extension import advertise
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.types import CallToolResult

from planwarden.server.mcp.app.view import build_page

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

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
